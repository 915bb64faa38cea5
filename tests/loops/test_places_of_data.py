"""Loops that read where data say, and go on from there: the way back of Viterbi's algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults

N = 40


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with faults.strict():
        yield


def viterbi(x, p):
    score, back = x[0] * 1.0, []
    for t in range(1, x.shape[0]):
        best, came_from = (score[:, None] + x[t] % 5).max(0)
        back.append(came_from)
        score = best + x[t]
    path = [score.argmax()]
    for came_from in reversed(back):
        path.append(came_from[path[-1]])
    return torch.stack(path[::-1])


def by_number(x, p):
    path = [p]
    for t in range(x.shape[0] - 1, -1, -1):
        path.append(x[t][path[-1]])
    path.reverse()
    return torch.stack(path)


def carried(x, p):
    path = [p]
    for t in range(x.shape[0]):
        p = x[t, p]
        path.append(p)
    return torch.stack(path)


def many_at_once(x, p):
    q = x[0]
    for t in range(x.shape[0]):
        q = x[t].expand(x.shape[1], -1).gather(1, q[:, None])[:, 0]
    return q + 0


SCANS = [viterbi, by_number, carried, many_at_once]


def last_of_a_list_of_views(x, p):
    rows = []
    for t in range(x.shape[0]):
        rows.append(x[t])
    return rows[-1]


def view_handed_out(x, p):
    for t in range(x.shape[0]):
        p = x[t, p]
    return p


def view_and_its_list(x, p):
    path = [p]
    for t in range(x.shape[0]):
        p = x[t, p]
        path.append(p)
    return p, torch.stack(path)


def changed_between(x, p):
    y = x * 2
    for t in range(x.shape[0]):
        p = y[t, p % 7]
        y[t, 0] = 100
    return p + 0, y


def changed_afterwards(x, p):
    y = x * 1
    for t in range(x.shape[0]):
        p = y[t, p]
    y += 5
    return p + 0, y


def items_of_a_list(x, p):
    rows = []
    for t in range(x.shape[0]):
        rows.append(x[t] * 1)
    path = []
    for t in range(x.shape[0]):
        p = rows[t][p]
        path.append(p)
    return path[-1], torch.stack(path), rows[-1]


def item_changed_afterwards(x, p):
    rows = []
    for t in range(x.shape[0]):
        rows.append(x[t] * 1)
    for t in range(x.shape[0]):
        p = rows[t][p]
    rows[-1] += 1
    return p + 0, torch.stack(rows)


def item_changed_between(x, p):
    rows = []
    for t in range(x.shape[0]):
        rows.append(x[t] * 1)
    for t in range(x.shape[0]):
        p = rows[t][p]
        rows[t][0] = 7
    return p + 0, torch.stack(rows)


OTHERS = [
    last_of_a_list_of_views, view_handed_out, view_and_its_list, changed_between,
    changed_afterwards, items_of_a_list, item_changed_afterwards, item_changed_between,
]  # fmt: skip


def given(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, N, (N, N), generator=generator), torch.tensor(3)]


def outcome(fn: Callable[..., Any], seed: int) -> list[Tensor]:
    """Results and arguments; and once more, when the first result has been changed in place."""
    args = given(seed)
    found = fn(*args)
    tensors = [*(found if isinstance(found, tuple) else (found,)), *args]
    before = [x.clone() for x in tensors]
    tensors[0].add_(1)
    return [*before, *tensors]


@pytest.mark.parametrize("fn", SCANS, ids=lambda fn: fn.__name__)
def test_is_a_scan(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for seed in range(2):
        for got, want in zip(outcome(compiled, seed), outcome(fn, seed), strict=True):
            torch.testing.assert_close(got, want)
    report = str(compiled.explain(*given(0)))
    assert "once for each of" in report
    assert ", 0 ops left to PyTorch" in report


@pytest.mark.parametrize("fn", OTHERS, ids=lambda fn: fn.__name__)
def test_views_stay_views(fn: Callable[..., Any]) -> None:
    for got, want in zip(outcome(lt.script(fn), 0), outcome(fn, 0), strict=True):
        torch.testing.assert_close(got, want)


def test_a_place_out_of_bounds_is_an_error() -> None:
    compiled = lt.script(carried)
    x, p = given(0)
    compiled(x, p)
    x[20] = N
    with pytest.raises(IndexError):
        compiled(x, p)
