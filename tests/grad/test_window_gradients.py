"""Gradients of convolutions written by hand: like eager, and themselves convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import randn, same
from tests.loops import windows

Shape = tuple[int, int, int, int, int, int, int]  # n, height, width, k, stride, dilation, padding
SHAPES: list[Shape] = [(1, 40, 35, 3, 1, 1, 0), (2, 33, 34, 3, 1, 1, 1)]
MORE: list[Shape] = [(2, 35, 33, 2, 1, 2, 2), (1, 6, 40, 5, 1, 1, 0)]
STRIDED: list[Shape] = [(2, 35, 33, 2, 2, 1, 1), (1, 41, 37, 3, 2, 1, 1), (1, 40, 6, 3, 3, 1, 2)]


FEW = [windows.by_unfold, windows.by_einsum, windows.by_loops, windows.sums_of_columns]
CASES = [(fn, SHAPES[0]) for fn in windows.PROGRAMS] + [(fn, SHAPES[1]) for fn in FEW]
SLOW = [pytest.param(fn, x, marks=pytest.mark.slow) for fn in FEW for x in MORE]
LONG = [
    pytest.param(fn, SHAPES[1], marks=pytest.mark.long) for fn in windows.PROGRAMS if fn not in FEW
]


@pytest.mark.parametrize(
    ("fn", "shape"), [*CASES, *SLOW, *LONG], ids=lambda x: getattr(x, "__name__", str(x))
)
def test_like_eager(fn: Callable[..., Any], shape: Shape) -> None:
    n, height, width, *rest = shape
    if fn is windows.by_loops and n > 1:
        pytest.skip("its views mix images")
    k = rest[0]
    same(fn, randn(n, 3, height, width), randn(4, 3, k, k, seed=1), *rest)


@pytest.mark.parametrize("shape", STRIDED, ids=str)
def test_strided_windows_like_eager(shape: Shape) -> None:
    """Where the width is a symbol, not all of these are kernels: PyTorch runs the rest."""
    n, height, width, *rest = shape
    k = rest[0]
    x, w = randn(n, 3, height, width).requires_grad_(), randn(4, 3, k, k, seed=1).requires_grad_()
    with faults.strict():
        found = [
            torch.autograd.grad(f(x, w, *rest).square().sum(), (x, w))
            for f in (lt.script(windows.by_unfold), windows.by_unfold)
        ]
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def columns_of(x: Tensor, w: Tensor):
    """A layer as people write it by hand, here without its loops."""
    columns = F.unfold(x, 3)
    out = w.view(w.shape[0], -1) @ columns
    return out.view(x.shape[0], w.shape[0], x.shape[2] - 2, x.shape[3] - 2)


def test_no_columns_are_stored() -> None:
    """The gradient of the image sums over windows of the output's, padded; no 9-fold copy."""
    x = torch.empty(1, 8, 300, 400, device="meta", requires_grad=True)
    w = torch.empty(8, 8, 3, 3, device="meta", requires_grad=True)
    report = lt.script(columns_of).explain(x, w)
    assert not report.torch_ops, str(report)
    (region,) = report.regions
    assert region.backward is not None
    image = 4 * 8 * 304 * 404
    assert region.backward.peak_bytes < 2 * image + (4 << 20), str(report)


def masked(x: Tensor, w: Tensor):
    """Reads outside of x as zero, with a condition of its own beside that."""
    i = torch.arange(x.shape[0])[:, None] + torch.arange(3) - 1
    inside = (i >= 0) & (i < x.shape[0])
    read = torch.where(inside, x[i.clamp(0, x.shape[0] - 1)], torch.zeros(()))
    return (read * w).sum(1)


def test_infinite_weights_beside_a_border() -> None:
    """What is outside is never multiplied where the program itself does not multiply it."""
    x, w = torch.randn(40), torch.tensor([float("inf"), 1.0, 1.0])
    with faults.strict():
        torch.testing.assert_close(lt.script(masked)(x, w), masked(x, w), equal_nan=True)


def test_windows_differentiate_twice_through_eager() -> None:
    x, w = randn(1, 2, 34, 36).requires_grad_(), randn(3, 2, 3, 3).requires_grad_()
    f = lt.script(columns_of)
    (g,) = torch.autograd.grad(f(x, w).sin().sum(), x, create_graph=True)
    (e,) = torch.autograd.grad(columns_of(x, w).sin().sum(), x, create_graph=True)
    torch.testing.assert_close(
        torch.autograd.grad(g.pow(2).sum(), w), torch.autograd.grad(e.pow(2).sum(), w)
    )


def of_patches(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    patches = x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 1, 2, 4, 3, 5).flatten(-2)
    return patches.max(-1)[0] + patches.sum(-1)


def test_patches_of_sizes_that_vary() -> None:
    for height, width in ((64, 96), (40, 34)):
        same(of_patches, randn(2, 3, height, width))
