"""Blocks of `no_grad` in captured graphs: what is made there carries no gradients, and no region
ends there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.memory.measure import measure_peak


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    torch._dynamo.reset()
    with faults.strict():
        yield
    torch._dynamo.reset()


def weighted(x: Tensor, y: Tensor) -> Tensor:
    """As complete IoU weights its last term."""
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    v = torch.atan(x[:, 0])[:, None] - torch.atan(y[:, 0])[None]
    with torch.no_grad():
        alpha = v / (1 + d + v * v)
    return (torch.exp(-d) + alpha * v).mean()


def nested(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        a = x * 2
        with torch.no_grad():
            b = a + y
        with torch.enable_grad():
            c = (y * 3).exp()
        d = c * x
    return a * x, b * y, c + d


def two_blocks(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        scale = x.abs().amax(0)
    x = x / scale
    with torch.no_grad():
        target = (x * y).sum(1, keepdim=True)
    return (x - target) * y, target


def views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x * y
    with torch.no_grad():
        a, b = z[1:], x.t()
    return a * 2, b + 1


def written(x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(len(x), 3)
    with torch.no_grad():
        z.copy_(x).mul_(y)
        n = len(x) * 2
    return z * x + n


def cast(x: Tensor, y: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            a = x @ y.t()
        b = x @ y.t()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        c = y @ x.t()
    return a.float() * b.float() + c.float()


def switched_on(x: Tensor, y: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    a = x * 2
    torch.set_grad_enabled(True)
    return a * y


def left_off(x: Tensor, y: Tensor) -> Tensor:
    a = x * y
    torch.set_grad_enabled(False)
    return a + x * 2


PROGRAMS = (weighted, nested, two_blocks, views, written, cast, switched_on, left_off)


def results_and_gradients(fn: Callable[..., Any], *args: Tensor) -> tuple[list[Tensor], list[Any]]:
    found = fn(*args)
    results = [found] if isinstance(found, Tensor) else list(found)
    total = sum((r.float() ** 2).sum() for r in results if r.requires_grad)
    if not isinstance(total, Tensor) or not total.requires_grad:
        return results, []
    return results, list(torch.autograd.grad(total, args, allow_unused=True))


@pytest.mark.parametrize("recording", [True, False])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_what_carries_gradients(fn: Callable[..., Any], recording: bool) -> None:
    torch.manual_seed(0)
    args = [torch.randn(40, 3).requires_grad_() for _ in range(2)]
    sides: list[tuple[list[Tensor], list[Any], bool]] = []
    for run in (fn, lt.compile(fn)):
        with torch.set_grad_enabled(recording):
            results, gradients = results_and_gradients(run, *args)
            sides.append((results, gradients, torch.is_grad_enabled()))
    (want, want_gradients, on), (got, got_gradients, still_on) = sides
    assert on == still_on
    for a, b in zip(got, want, strict=True):
        assert a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b)
    for a, b in zip(got_gradients, want_gradients, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_pairs_around_a_block_are_not_stored() -> None:
    """Of 9 MB."""
    torch.manual_seed(0)
    args = [torch.randn(1500, 3).requires_grad_() for _ in range(2)]
    compiled = lt.compile(weighted)

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(compiled(*args), args)

    step()
    assert measure_peak(step)[0].peak_bytes < 4_000_000
