"""A recurrence whose state is a part of a larger tensor: `h = z[:, :6]`, `h, c = z.chunk(2, 1)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import randn, same

H = 6


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with faults.strict():
        yield


def both(x, h, c, w):
    return torch.tanh(torch.cat([x, h, c], 1) @ w)


def start(x):
    return x.new_zeros(x.shape[1], H)


def two_halves(x, w):
    h, c = start(x), start(x)
    for t in range(x.shape[0]):
        h, c = both(x[t], h, c, w).chunk(2, 1)
    return h * 2, c * 3


def first_part(x, w):
    h = start(x)
    for t in range(x.shape[0]):
        h = both(x[t], h, h, w)[:, :H]
    return h


def copy_of_the_first_part(x, w):
    h = start(x)
    for t in range(x.shape[0]):
        h = both(x[t], h, h, w)[:, :H].clone()
    return h


def part_and_whole(x, w):
    h, outs = start(x), []
    for t in range(x.shape[0]):
        z = both(x[t], h, h, w)
        h = z[:, :H]
        outs.append(z)
    return torch.stack(outs), h + 1


def parts_in_a_list(x, w):
    h, outs = start(x), []
    for t in range(x.shape[0]):
        h, o = both(x[t], h, h, w).chunk(2, 1)
        outs.append(o)
    return torch.stack(outs)


SCANS = [two_halves, first_part, copy_of_the_first_part, part_and_whole, parts_in_a_list]


def halves_handed_out(x, w):
    h, c = start(x), start(x)
    for t in range(x.shape[0]):
        h, c = both(x[t], h, c, w).chunk(2, 1)
    return h, c


def overlapping(x, w):
    h, c = start(x), start(x)
    for t in range(x.shape[0]):
        z = both(x[t], h, c, w)
        h, c = z[:, :H], z[:, 3 : H + 3]
    return h * 1, c * 1


def whole_changed_afterwards(x, w):
    z = x.new_zeros(x.shape[1], 2 * H)
    h = z[:, :H]
    for t in range(x.shape[0]):
        z = both(x[t], h, h, w)
        h = z[:, :H]
    z += 1
    return h * 1, z


def view_of_the_state_before(x, w):
    h = first = x[0] * 1
    for _ in range(x.shape[0]):
        h = h.flip(0).view(h.shape)[:, :]
    h += 1
    return first, h


def turned_each_time(x, w):
    h = first = w[:7, :7] * 1
    for _ in range(x.shape[0]):
        h = h.t()
    h += 1
    return first, h


def begins_as_a_part_of_what_changes(x, w):
    a = x[0] * 1
    part = a[:, :2]
    for t in range(x.shape[0]):
        a += x[t]
        part = part * 0.5
    return a, part


def begins_as_what_changes(x, w):
    h = same = x[0] * 1
    for t in range(x.shape[0]):
        same *= 0.5
        h = h + x[t]
    return same, h


def changes_places_and_then(x, w):
    rows = x * 1
    a, b = rows[0], rows[-1]
    for _ in range(x.shape[0]):
        a, b = b, a
    rows += 1
    return rows, a, b


OTHERS = [
    halves_handed_out, overlapping, whole_changed_afterwards, view_of_the_state_before,
    turned_each_time, begins_as_a_part_of_what_changes, begins_as_what_changes,
    changes_places_and_then,
]  # fmt: skip


def given(n: int) -> tuple[Tensor, Tensor]:
    return randn(n, 5, 7), randn(7 + 2 * H, 2 * H, seed=1) * 0.3


@pytest.mark.parametrize("fn", SCANS, ids=lambda fn: fn.__name__)
def test_is_a_scan(fn: Callable[..., Any]) -> None:
    compiled = same(fn, *given(40))
    assert "once for each of" in str(compiled.explain(*given(40)))
    compare(lt.script(fn), fn)


@pytest.mark.parametrize("fn", OTHERS, ids=lambda fn: fn.__name__)
def test_like_eager(fn: Callable[..., Any]) -> None:
    compare(lt.script(fn), fn)


def compare(compiled: Any, fn: Callable[..., Any]) -> None:
    """Values, and what changes with the first result."""
    for n in (40, 33, 2, 1):
        found, want = (flat(f(*given(n))) for f in (compiled, fn))
        for k in range(2):
            for y, expected in zip(found, want, strict=True):
                torch.testing.assert_close(y, expected, msg=f"{n} steps, pass {k}")
            found[0].add_(1)
            want[0].add_(1)


def flat(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)
