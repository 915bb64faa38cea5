"""Regions that record gradients do not end at values of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from benchmarks.pattern_zoo import mmd, splines
from lowtide.memory.measure import measure_peak


def complete_iou(a: Tensor, b: Tensor) -> Tensor:
    a, b = a[:, None], b[None]
    low, high = torch.max(a[..., :2], b[..., :2]), torch.min(a[..., 2:], b[..., 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    wa, ha = a[..., 2] - a[..., 0], a[..., 3] - a[..., 1]
    wb, hb = b[..., 2] - b[..., 0], b[..., 3] - b[..., 1]
    iou = inner / (wa * ha + wb * hb - inner + 1e-7)
    least, most = torch.min(a[..., :2], b[..., :2]), torch.max(a[..., 2:], b[..., 2:])
    diagonal = ((most - least) ** 2).sum(-1) + 1e-7
    across = a[..., 0] + a[..., 2] - b[..., 0] - b[..., 2]
    along = a[..., 1] + a[..., 3] - b[..., 1] - b[..., 3]
    v = 0.4 * (torch.atan(wa / (ha + 1e-7)) - torch.atan(wb / (hb + 1e-7))) ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return (1 - (iou - (across**2 + along**2) / 4 / diagonal - alpha * v)).mean()


# Sizes, and the bytes of one value of pairs.
CASES = {
    mmd: ((1500, 4), (1450, 4), 4 * 1500 * 1450),
    complete_iou: ((1500, 4), (1450, 4), 4 * 1500 * 1450),
    splines: ((512, 700), (700 * 8, 16), 4 * 512 * 700 * 8),
}


@pytest.mark.parametrize("make", [lt.script, lt.compile], ids=["script", "compile"])
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_no_pairs_are_kept(
    fn: Callable[[Tensor, Tensor], Tensor], make: Callable[..., Callable[..., Tensor]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    *sizes, pairs = CASES[fn]
    args = [torch.randn(size, generator=generator) for size in sizes]
    if fn is complete_iou:
        if make is lt.compile:
            pytest.skip("torch.no_grad() ends a region of a captured graph")
        args = [torch.cat([x[:, :2], x[:, :2] + x[:, 2:].abs() + 0.1], 1) for x in args]
    args = [x.requires_grad_() for x in args]
    run = make(fn)

    def gradients(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(f(*args), args)

    torch.testing.assert_close(gradients(run), gradients(fn), rtol=1e-4, atol=1e-6)
    assert measure_peak(lambda: gradients(run))[0].peak_bytes < 2.5 * pairs
