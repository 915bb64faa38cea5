"""`lt.compile` goes on at `.item()` and `float()` of a float tensor: pairs are no results."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak

LOG: list[float] = []


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def scaled(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    scale = d.mean().item()
    return torch.exp(-d / scale).sum(1)


def logged(a: Tensor, b: Tensor) -> tuple[Tensor, float, float, float]:
    d = squared(a, b)
    s = float(d.mean())
    LOG.append(s)
    return (d * s).sum(1), s, float(f"{s:.3f}"), round(math.sqrt(max(s, 0.25)), 2)


def branched(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    top = d.max().item()
    if top > 1.5:
        d = d / top
    return d.sum(1)


def counted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    n = int(squared(a, b).mean().item() * 10) + 2
    return a[:n].sum(0), torch.zeros(n)


def of_several(a: Tensor, b: Tensor) -> Tensor:
    try:
        s = b.item()
    except RuntimeError:
        s = 2.0
    return a * s


def test_pairs_around_a_float_are_not_stored() -> None:
    a, b = torch.rand(1500, 3), torch.rand(1400, 3)
    compiled = lt.compile(scaled)
    torch.testing.assert_close(compiled(a, b), scaled(a, b))
    assert measure_peak(lambda: compiled(a, b))[0].peak_bytes < 1 << 20


@pytest.mark.parametrize("fn", [scaled, logged, branched, counted, of_several])
def test_results_are_those_of_python(fn: Any) -> None:
    torch._dynamo.reset()  # pyright: ignore[reportPrivateUsage]
    compiled, generator = lt.compile(fn), torch.Generator().manual_seed(0)
    for k in (1, 2, 1):
        a, b = (k * torch.rand(n, 3, generator=generator) for n in (20, 30))
        torch.testing.assert_close(compiled(a, b), fn(a, b))
    assert len(LOG) % 6 == 0


def test_gradients_around_a_float() -> None:
    a, b = torch.rand(20, 3, requires_grad=True), torch.rand(30, 3)
    found, expected = (
        torch.autograd.grad(f(a, b).sum(), [a])[0] for f in (lt.compile(scaled), scaled)
    )
    torch.testing.assert_close(found, expected)
