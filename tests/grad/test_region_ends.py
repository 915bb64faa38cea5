"""Regions that record gradients do not end at values of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        total = torch.exp(-d / 0.5)
        for width in (1.0, 2.0, 4.0):
            total = total + torch.exp(-d / width)
        return total.mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def splines(x: Tensor, weight: Tensor) -> Tensor:
    grid = torch.linspace(-2.2, 2.2, 12)
    x = x[..., None]
    bases = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
    for k in range(1, 4):
        left = (x - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * bases[..., :-1]
        right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k]) * bases[..., 1:]
        bases = left + right
    return (bases.flatten(1) @ weight).square().mean()


# Sizes, and the bytes of one value of pairs.
CASES = {
    discrepancy: ((1500, 4), (1450, 4), 4 * 1500 * 1450),
    splines: ((512, 700), (700 * 8, 16), 4 * 512 * 700 * 8),
}


@pytest.mark.parametrize("make", [lt.script, lt.compile], ids=["script", "compile"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_no_pairs_are_kept(
    fn: Callable[[Tensor, Tensor], Tensor], make: Callable[..., Callable[..., Tensor]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    *sizes, pairs = CASES[fn]
    args = [torch.randn(size, generator=generator).requires_grad_() for size in sizes]
    run = make(fn)

    def gradients(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(f(*args), args)

    torch.testing.assert_close(gradients(run), gradients(fn), rtol=1e-4, atol=1e-6)
    assert measure_peak(lambda: gradients(run))[0].peak_bytes < 2.5 * pairs
