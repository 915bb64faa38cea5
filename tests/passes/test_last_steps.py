"""Loops whose last steps are done after them: the values of Python, and scans where they are."""

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


def between_steps(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    n = x.shape[0]
    for t in range(n):
        h = torch.tanh(h @ w + x[t])
        if t < n - 1:
            h = h * 2
    return h


def the_end_of_a_range(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(1, len(x)):
        h = torch.tanh(h @ w + x[t])
        if t == len(x) - 1:
            h = h.exp()
    return h


def the_last_two(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    found: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(h @ w + x[t])
        if t >= x.shape[0] - 2:
            h = h * 2
        found.append(h)
    return torch.stack(found)


def a_look_ahead(x: Tensor, w: Tensor) -> Tensor:
    h = x[0] @ w
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        h = h + x[t + 1] if t + 1 != x.shape[0] else h @ w
    return h


def first_and_last(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        if t == 0:
            h = h @ w
        elif t <= x.shape[0] - 2:
            h = torch.tanh(h @ w + x[t])
        else:
            h = h + x[t]
    return h


def another_number(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(h @ w + x[t])
        if t < w.shape[0] - 1:
            h = h * 2
    return h


def ends_early(x: Tensor, w: Tensor) -> Tensor:
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.tanh(h @ w + x[t])
        if float(h.detach().abs().sum()) < 1.0:
            break
        if t == x.shape[0] - 1:
            h = h * 2
    return h


SCANS = [between_steps, the_end_of_a_range, the_last_two, a_look_ahead, first_and_last]
OTHERS = [another_number, ends_early]


@pytest.mark.parametrize("fn", SCANS, ids=lambda f: f.__name__)
def test_is_a_scan(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (40, 3, 2, 1):
        check(fn, compiled, n)
    report = str(compiled.explain(*arguments(40)))
    assert "once for each of" in report
    assert ", 0 ops left to PyTorch" in report


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_others_are_as_they_were(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (40, 7, 1):
        check(fn, compiled, n)


def test_no_step_at_all() -> None:
    def f(x: Tensor, n: int) -> Tensor:
        h = x * 1
        for t in range(n):
            h = h + 1 if t < n - 1 else h * 2
        return h

    compiled, x = lt.script(f), torch.ones(3)
    for n in (0, -2, 1, 5):
        assert torch.equal(compiled(x, n), f(x, n))
