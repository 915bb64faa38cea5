"""Products of half precision: the units for products take what is only widened for the sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels

HALVES = {torch.bfloat16: "tl.bfloat16", torch.float16: "tl.float16"}


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def scaled(x: Tensor, y: Tensor) -> Tensor:
    """Rounded before it is summed up, as PyTorch does."""
    return torch.exp(x) @ y


def mixed(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() + 0.1) @ y.float()


def widened(x: Tensor, y: Tensor) -> Tensor:
    return x.float() @ y.float()


def dots(made: list[BlockKernels]) -> list[str]:
    return [line for e in made for line in e.source.splitlines() if "= lt_dot(" in line]


@pytest.mark.parametrize("fn", [product, scaled, widened])
@pytest.mark.parametrize("dtype", HALVES)
def test_both_sides_are_halves(
    fn: object, dtype: torch.dtype, made: list[BlockKernels], device: torch.device
) -> None:
    torch.manual_seed(0)
    x = torch.randn(37, 50).to(device, dtype)
    y = torch.randn(50, 33).to(device, dtype)
    found = lt.script(fn)(x, y)  # type: ignore[arg-type]
    left = torch.exp(x) if fn is scaled else x
    want = left.double() @ y.double()
    near = 0.02 if found.dtype is dtype else 1e-4
    torch.testing.assert_close(found.double(), want, rtol=near, atol=near)
    (line,) = set(dots(made))
    assert line.count(f".to({HALVES[dtype]})") == 2


def test_numbers_of_float32_stay_so(made: list[BlockKernels]) -> None:
    x, y = torch.randn(37, 50).bfloat16(), torch.randn(50, 33).bfloat16()
    torch.testing.assert_close(lt.script(mixed)(x, y), mixed(x, y), rtol=1e-4, atol=1e-4)
    (line,) = set(dots(made))
    assert "float16" not in line


def test_what_lies_beyond_the_end_adds_nothing() -> None:
    """Infinities next to the rows that are read."""
    x, y = torch.full((40, 64), float("inf")), torch.full((64, 40), float("inf"))
    x[:, :50], y[:50] = 1.0, 1.0
    x, y = x.bfloat16(), y.bfloat16()
    found = lt.script(product)(x[:, :50], y[:50])
    assert torch.equal(found, torch.full((40, 40), 50.0).bfloat16())
