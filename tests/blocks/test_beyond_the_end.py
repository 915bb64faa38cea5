"""Products of blocks: what a block holds beyond the end of what is summed over adds nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels

INF = float("inf")


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def held(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """The first factor is held by the program, which has computed it beyond the end, too."""
    best = (x[:, :, None] + w[None]).amax(1)
    return best @ y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sides", ["left", "right", "both"])
def test_expanded_sides(
    sides: str, dtype: torch.dtype, made: list[BlockKernels], device: torch.device
) -> None:
    """All places along an axis of stride 0 are one, of which none is masked."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 50).to(device, dtype), torch.randn(50, 36).to(device, dtype)
    x = x[:, :1].expand(40, 50) if sides != "right" else x
    y = y[:1].expand(50, 36) if sides != "left" else y
    found = lt.script(product)(x, y)
    want = (x.double() @ y.double()).to(dtype)
    near = 1e-4 if dtype is torch.float32 else 0.02
    torch.testing.assert_close(found, want, rtol=near, atol=near)
    assert any("lt_dot(" in e.source for e in made)


def test_infinity_of_an_expanded_side(device: torch.device) -> None:
    x = torch.full((40, 1), INF, device=device).expand(40, 50)
    y = torch.rand(50, 36, device=device) + 1
    compiled = lt.script(product)
    assert torch.equal(compiled(x, y), torch.full((40, 36), INF, device=device))
    assert torch.equal(compiled(y.t(), x.t()), torch.full((36, 40), INF, device=device))


def test_infinity_that_is_held(made: list[BlockKernels], device: torch.device) -> None:
    x, w = torch.zeros(3000, 20, device=device), torch.zeros(20, 50, device=device)
    x[7] = INF
    y = torch.ones(50, 36, device=device)
    assert torch.equal(lt.script(held)(x, w, y), held(x, w, y))
    assert any("lt_dot(" in e.source for e in made)
