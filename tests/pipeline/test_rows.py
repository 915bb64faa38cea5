"""Loops over rows and lists: one kernel sequence, or at least one signature for all steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.execute import region


def cell(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x + h @ w)


def by_unbind(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for row in x.unbind(0):
        h = cell(row, h, w)
        outs += [h]
    return torch.stack(outs)


def by_turned_lists(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    rows = x.unbind(0)[::-1]
    outs: list[Tensor] = []
    for i in range(len(rows)):
        h = cell(rows[i], h, w)
        outs = [h] + outs  # noqa: RUF005
    return torch.stack(outs)


def by_packed_state(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    state: tuple[Tensor, Tensor] = (h, h)
    outs: list[Tensor] = []
    for row in x.unbind(0):
        h, c = state
        c = c * 0.5 + cell(row, h, w)
        state = (torch.tanh(c), c)
        outs.append(state[0])
    return torch.stack(outs)


@pytest.mark.parametrize("fn", [by_unbind, by_turned_lists, by_packed_state])
def test_one_scan(fn: Callable[..., Tensor]) -> None:
    x, h, w = torch.randn(40, 4, 6), torch.randn(4, 6), torch.randn(6, 6) * 0.2
    compiled: Any = lt.script(fn)
    torch.testing.assert_close(compiled(x, h, w), fn(x, h, w))
    report = compiled.explain(x, h, w)
    assert not report.torch_ops, str(report)
    assert len(report.regions) == 1, str(report)


def from_a_list(xs: list[Tensor], h: Tensor, w: Tensor) -> Tensor:
    for i in range(len(xs)):
        if h.sum() > -1e9:
            h = cell(xs[i], h, w)
    return h


def from_the_end(x: Tensor, h: Tensor, w: Tensor) -> Tensor:
    outs = [h]
    n = x.size(0)
    for i in range(n):
        if h.sum() > -1e9:
            h = cell(x[n - 1 - i], outs[-1], w)
            outs = outs + [h]  # noqa: RUF005
    return torch.stack(outs)


@pytest.mark.parametrize("fn", [from_a_list, from_the_end])
def test_steps_share_a_signature(fn: Callable[..., Tensor]) -> None:
    xs: Any = [torch.randn(4, 6) for _ in range(7)]
    args = (
        xs if fn is from_a_list else torch.stack(xs),
        torch.randn(4, 6),
        torch.randn(6, 6) * 0.2,
    )
    compiled: Any = lt.script(fn)
    torch.testing.assert_close(compiled(*args), fn(*args))
    assert not compiled.explain(*args).compiled_again


def in_some_steps(x: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, int]:
    count = 0
    for t in range(x.shape[0]):
        if h.sum() < 1:
            h = cell(x[t], h, w)
            count += 1
        else:
            h = h * 0.5
    return h, count


def until_it_is_small(x: Tensor, h: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total, done = torch.zeros(()), False
    for t in range(x.shape[0]):
        if not done:
            h = cell(x[t], h, w)
            done = bool(h.abs().max() < 0.5)
        total = total + h.sum() * x[t, 0, 0]
    return h, total


@pytest.mark.parametrize("fn", [in_some_steps, until_it_is_small])
def test_no_number_of_a_step_is_in_a_key(
    fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    args = torch.randn(40, 4, 6), torch.randn(4, 6), torch.randn(6, 6) * 0.2
    compiled: Any = lt.script(fn)
    torch.testing.assert_close(compiled(*args), fn(*args))
    found = region.Region.find
    missed: list[object] = []

    def looked_up(self: region.Region, values: Any) -> region.Entry:
        before = len(self.exact)
        entry = found(self, values)
        missed.extend([self] * (len(self.exact) - before))
        return entry

    monkeypatch.setattr(region.Region, "find", looked_up)
    other = torch.randn(70, 4, 6), *args[1:]
    torch.testing.assert_close(compiled(*other), fn(*other))
    assert len(missed) < 35  # in half of the steps


def sliced(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.size(0)):
        outs.append(x[i] * 2)
    return torch.stack(outs[::2])


def test_a_slice_of_what_was_collected_is_explained() -> None:
    x = torch.randn(40, 3)
    compiled: Any = lt.script(sliced)
    torch.testing.assert_close(compiled(x), sliced(x))
    assert compiled.explain(x).regions


def past_the_end(x: Tensor) -> Tensor:
    rows = x.unbind(0)
    return rows[len(rows)]


def test_past_the_end() -> None:
    with pytest.raises(IndexError):
        lt.script(past_the_end)(torch.randn(3, 2))
