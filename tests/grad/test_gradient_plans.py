"""What a backward pass never builds: saved values and peak bytes, as plans for large sizes.

Nothing runs: inputs are on the meta device. One tensor over all pairs would be 400 MB and more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.tools import programs
from tests.texts import kernels_in

N, M = 10_000, 11_000
ROOM = 16 << 20


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=dtype.is_floating_point)


Case = tuple[Callable[..., Any], tuple[Tensor, ...], int, int]
# function, inputs, bytes of the gradients, most bytes saved beside inputs and outputs
CASES: dict[str, Case] = {
    "chamfer": (programs.chamfer, (meta(N, 3), meta(M, 3)), 12 * (N + M), 0),
    "gaussian": (programs.gaussian, (meta(N, 3), meta(M, 3), meta(M, 8)), 12 * N + 44 * M, 0),
    "attention": (
        programs.attention,
        tuple(meta(8, N, 64) for _ in range(3)),
        3 * 8 * N * 64 * 4,
        2 * 8 * N * 4,
    ),
    "cross entropy": (
        programs.linear_cross_entropy,
        (meta(N, 300), meta(M, 300), meta(N, dtype=torch.int64)),
        4 * 300 * (N + M),
        4 * 300 * (N + M),  # found in the forward pass
    ),
    "layer norm": (
        programs.layer_norm,
        (meta(N, 1024), meta(1024), meta(1024)),
        4 * 1024 * (N + 2),
        2 * 4 * N,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_of_pairs(name: str) -> None:
    function, inputs, gradient_bytes, saved_bytes = CASES[name]
    found = lt.script(function).explain(*inputs)
    assert not found.torch_ops, str(found)
    (region,) = found.regions
    backward = region.backward
    assert backward is not None
    assert sum(s.nbytes for s in backward.saved) <= saved_bytes, str(found)
    assert all(s.loc for s in backward.saved)
    peak = found.memory.peak_bytes if backward.at_once else backward.peak_bytes
    assert gradient_bytes <= peak <= gradient_bytes + ROOM, str(found)


def test_attention_computes_pairs_once() -> None:
    """One kernel of five products: no second pass for the sums over each row of s and its gradient,
    since sum[j](p * sum[c](g * v)) is sum[c](g * o)."""
    inputs = tuple(meta(8, N // 5, 64) for _ in range(3))
    compiled = lt.script(programs.attention)
    (region,) = compiled.explain(*inputs).regions
    assert region.backward is not None
    assert len(region.backward.kernels) == 1
    text = kernels_in(dict(compiled.stages(*inputs))["backward tile program"])
    sums = [line for line in text.splitlines() if " = sum[" in line]
    assert len(sums) == 6, text  # the five, and the rows' own over 64 columns


def test_without_gradients_nothing_is_told() -> None:
    a, b = (torch.empty(n, 3, device="meta") for n in (N, M))
    compiled = lt.script(programs.chamfer)
    assert all(r.backward is None for r in compiled.explain(a, b).regions)
    assert "backward" not in str(compiled.explain(a, b))
    with torch.no_grad():
        assert "backward" not in str(compiled.explain(meta(N, 3), meta(M, 3)))


def test_what_was_stacked_gets_its_own_row() -> None:
    """And no sum over the rows, of which all but one are 0."""

    def features(x):
        return torch.stack([torch.tanh(x), x.exp(), torch.cos(x * 3), x * x, x.sigmoid()], 1)

    stages = dict(lt.script(features).stages(meta(N)))
    assert "sum" not in stages["backward tensor expressions"]


def test_stages_of_the_backward_pass() -> None:
    names = [n for n, _ in lt.script(programs.gaussian).stages(meta(N, 3), meta(M, 3), meta(M, 8))]
    assert "backward tile program" in names


def chosen_experts(h: Tensor, weight: Tensor, places: Tensor) -> Tensor:
    found = torch.einsum("neh,ehd->ned", h, weight)
    return torch.gather(found, 1, places[..., None].expand(-1, -1, found.shape[-1]))


@pytest.mark.parametrize("count", [400, 800])
def test_terms_of_a_product_are_not_scattered(count: int) -> None:
    h, weight = meta(count, 6, 103), meta(6, 103, 71)
    places = torch.empty(count, 2, device="meta", dtype=torch.int64)
    peak_bytes = lt.script(chosen_experts).memory(h, weight, places).peak_bytes
    # the terms, n * 2 * 103 * 71 of them, would be 23 MB and more
    assert peak_bytes < 6 * 4 * (h.numel() + weight.numel()) + ROOM


def test_what_is_chosen_of_a_product_has_the_gradient_of_eager() -> None:
    torch.manual_seed(0)
    places = torch.rand(30, 6).topk(2, -1).indices
    tensors = [torch.randn(30, 6, 19, dtype=torch.float64, requires_grad=True),
               torch.randn(6, 19, 11, dtype=torch.float64, requires_grad=True)]  # fmt: skip
    found = torch.autograd.grad(lt.script(chosen_experts)(*tensors, places).sin().sum(), tensors)
    wanted = torch.autograd.grad(chosen_experts(*tensors, places).sin().sum(), tensors)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
