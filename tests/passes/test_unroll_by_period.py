"""Loops whose steps take turns: the values of Python, and scans where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.passes.test_first_steps import arguments, check


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with faults.strict():
        yield


def two_cells(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    outs: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w) if t % 2 == 0 else torch.sigmoid(h @ w - x[t])
        outs.append(h)
    return torch.stack(outs)


def every_third(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h, c = x[0], torch.zeros_like(x[0])
    for t in range(1, x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if (t + 1) % 3 == 2:
            c = c + h @ w
            h = h * 0.5
    return h, c


def a_slow_and_a_fast_state(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = slow = x[0]
    outs: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w + slow)
        if not t % 4:
            slow = torch.tanh(h @ w)
        if t % 2:
            outs.append(h)
    return slow, torch.stack(outs) if len(outs) > 0 else h


def less_than(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t % 3 < 2:
            h = h * 2
    return h


def by_the_outer_loop(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        for _ in range(2):
            h = torch.tanh(h @ w) if t % 2 else torch.tanh(h + x[t])
    return h


def of_a_number(x: Tensor, w: Tensor) -> Tensor:
    """The number of turns is not known before the run."""
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t % w.shape[0] == 0:
            h = h * 2
    return h


def too_many_turns(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t % 100 == 0:
            h = h * 2
    return h


def ends_early(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        if t % 2 == 1:
            h = h * 2
        if float(h.detach().abs().sum()) < 1.0:
            break
    return h


SCANS = [two_cells, every_third, less_than]
OTHERS = [a_slow_and_a_fast_state, by_the_outer_loop, of_a_number, too_many_turns, ends_early]


@pytest.mark.parametrize("fn", SCANS, ids=lambda f: f.__name__)
def test_is_a_scan(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (40, 41, 3):
        check(fn, compiled, n)
    report = str(compiled.explain(*arguments(40)))
    assert "once for each of" in report
    assert ", 0 ops left to PyTorch" in report


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_like_python(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (42, 7):
        check(fn, compiled, n)


def test_no_step_at_all() -> None:
    def f(x: Tensor, n: int) -> Tensor:
        h = x * 1
        for t in range(n):
            h = h + 1 if t % 2 else h * 3
        return h

    compiled, x = lt.script(f), torch.ones(3)
    for n in (0, -3, 1, 2, 5, 40, 41):
        assert torch.equal(compiled(x, n), f(x, n))


def test_within_a_budget_loops_are_as_they_were_written() -> None:
    """Its stretches know `x[t]`: each step is one, which computes both ways and takes its own."""
    x, w = arguments(40)
    compiled, limited = lt.script(two_cells), lt.script(two_cells, budget="1GB")
    torch.testing.assert_close(limited(x, w), two_cells(x, w))
    assert "once for each of s0 steps" not in str(compiled.explain(x, w))
    assert "once for each of s0 steps" in str(limited.explain(x, w))
