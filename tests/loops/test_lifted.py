"""Loops that become axes: like eager, all compiled, and once for every trip count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import same


def summed(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc + x[i] * 2
    return acc


def added_in_place(x):
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc += x[i] * i
    return acc


def rows_of(x):
    total = 0.5
    for row in x:
        total = total + row.exp().sum()
    return total


def subtracted(x):
    acc = x.sum(0)
    for i in range(x.shape[0]):
        acc = acc - x[i] - 1
    return acc


def largest(x):
    top = torch.full((x.shape[1],), -1e9)
    low = torch.full((x.shape[1],), 1e9)
    for i in range(x.shape[0]):
        top = torch.maximum(top, x[i])
        low = torch.minimum(low, x[i] + 1)
    return top, low


def multiplied(x):
    p = torch.ones(x.shape[1])
    for i in range(x.shape[0]):
        p = p * (1 + x[i] * 0.01)
    return p


def stacked(x):
    return torch.stack([x[i].exp() for i in range(x.shape[0])])


def stacked_last(x):
    rows = [x[0] * 0]
    for i in range(x.shape[0]):
        rows.append(x[i] + i)
    return torch.stack(rows, dim=-1)


def concatenated(x):
    parts = []
    for i in range(x.shape[0]):
        parts.append(x[i : i + 1] * 3)
    return torch.cat(parts), torch.cat(parts, 1)


def filled(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        out[i] = x[i].cumsum(0) if False else x[i] + i
    return out


def columns(x):
    out = torch.empty_like(x)
    for j in range(x.shape[1]):
        out[:, j] = x[:, j] - x[:, j].mean()
    return out


def shifted(x):
    out = torch.zeros(x.shape[0] + 3, x.shape[1])
    for i in range(x.shape[0]):
        out[i + 2] += x[i]
    return out


def blocks(x):
    out = torch.zeros(x.shape[0] * 4, x.shape[1])
    for i in range(x.shape[0]):
        part = slice(i * 4, (i + 1) * 4)
        out[part] += x[i]
        out[part] *= 2
    return out


def pairs(x):
    out = torch.zeros(x.shape[0], x.shape[0])
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            out[i, j] = (x[i] - x[j]).abs().sum()
    return out


def flat_pairs(x):
    n = x.shape[0]
    out = torch.ones(n * n)
    for i in range(n):
        for j in range(n):
            out[i * n + j] += (x[i] * x[j]).sum()
    return out


def backwards(x):
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        out[n - 1 - i] = x[i]
    return out


def every_second(x):
    out = torch.zeros(x.shape[0] * 2, x.shape[1])
    for i in range(x.shape[0]):
        out[2 * i] = x[i]
    return out


def histogram(x):
    """Overlapping, but only added to."""
    out = torch.zeros(x.shape[0] + 4, x.shape[1])
    for i in range(x.shape[0]):
        out[i : i + 5] += x[i]
    return out


def two_results(x):
    out = torch.zeros_like(x)
    total = torch.zeros(x.shape[1])
    rows = []
    k = 0
    for i in range(x.shape[0]):
        y = x[k] * 2
        out[i] = y
        total += y
        rows.append(y + 1)
        k += 1
    return out, total, torch.stack(rows), k


def gathered(x):
    index = (x[:, 0] * x.shape[0]).long()
    acc = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        acc = acc + x[index[i : i + 1]].sum(0)  # x[index[i]] would be a view
    return acc


def aliased(x):
    out = torch.zeros_like(x)
    row = out[0]
    for i in range(x.shape[0]):
        out[i] += x[i]
    return row, out


def margins(x):
    """Parts of rows are written, with something before and after them."""
    out = x * 2
    for i in range(x.shape[0]):
        out[i, 1:-2] = x[i, :-3].exp()
        out[i, 4:] *= x[i, 4:]
    return out


def rotated(x):
    out = torch.zeros_like(x)
    for i in range(x.shape[1] // 2):
        a, b = x[:, 2 * i], x[:, 2 * i + 1]
        out[:, 2 * i] = a * 0.6 - b * 0.8
        out[:, 2 * i + 1] = a * 0.8 + b * 0.6
    return out


def wavelet(x):
    out = x * 1
    for i in range(x.shape[0] // 2):
        out[2 * i] = (x[2 * i] + x[2 * i + 1]) * 0.5
        out[2 * i + 1] -= x[2 * i]
    return out


def wide_and_narrow(x):
    out = torch.ones(3 * x.shape[0] + 2, x.shape[1])
    for i in range(x.shape[0]):
        out[3 * i + 3 : 3 * i + 5] = x[i]
        out[3 * i + 4] = x[i].sin()
        out[3 * i + 2] *= x[i]
    return out


def products_of_indices(x):
    out = torch.zeros(x.shape[0], x.shape[1])
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * (i * j) - (j - 2) ** 2 / 4
    return out


def squares_of_indices(x):
    total = torch.zeros(x.shape[1])
    for i in range(x.shape[0]):
        total = total + torch.exp(-x[i] - (i - 2) ** 2 / 8)
    return total, torch.stack([x[i, 0] * (i * i - 3 * i) for i in range(x.shape[0])])


def added_to_twice(x):
    acc, low = torch.zeros(x.shape[1]), x.sum(0)
    for i in range(x.shape[0]):
        acc = acc + 1
        acc = acc + x[i]
        low += 3
        low -= x[i]
    return acc, low


def multiplied_twice(x):
    p = torch.ones(x.shape[1])
    for i in range(x.shape[0]):
        p = p * 1.01
        p = p * (1 + x[i] * 0.01)
    return p


def largest_of_a_number_too(x):
    top = torch.full((x.shape[1],), -1e9)
    for i in range(x.shape[0]):
        top = torch.clamp(top, min=0.7)
        top = torch.maximum(top, x[i])
    return top


PROGRAMS: list[Callable[..., Any]] = [
    summed, added_in_place, rows_of, subtracted, largest, multiplied, stacked, stacked_last,
    concatenated, filled, columns, shifted, blocks, pairs, flat_pairs, backwards, every_second,
    histogram, two_results, gathered, aliased, margins, rotated,
    added_to_twice, multiplied_twice, largest_of_a_number_too, wavelet, wide_and_narrow,
    products_of_indices, squares_of_indices,
]  # fmt: skip
TRIPS = [1, 2, 33, 100]
NEEDS_A_ROW = (
    stacked, concatenated, two_results, stacked_last, aliased, gathered, squares_of_indices,
)  # fmt: skip


def check(got: Any, want: Any) -> None:
    if isinstance(want, torch.Tensor):
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)
    elif isinstance(want, tuple):
        for g, w in zip(got, want, strict=True):
            check(g, w)
    else:
        assert got == want
        assert type(got) is type(want)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_like_eager(fn: Callable[..., Any]) -> None:
    f = lt.script(fn)
    for n in TRIPS if fn in NEEDS_A_ROW else [0, *TRIPS]:
        for m in (5, 40):
            x = torch.rand(n, m)
            check(f(x), fn(x))


REFUSED_WITH_GRADIENTS = {
    wide_and_narrow: "the loop is not lifted: the gradient of an index that is not affine"
}


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_one_program_for_every_trip_count(fn: Callable[..., Any]) -> None:
    f = lt.script(fn)
    x = torch.rand(90, 50)
    assert "PyTorch" not in str(f.explain(x)).replace(", 0 ops left to PyTorch", "")
    f(x)
    before = lt.cache_stats()
    x = torch.rand(70, 60)
    check(f(x), fn(x))
    assert (lt.cache_stats() - before).compiles == 0


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_like_eager(fn: Callable[..., Any]) -> None:
    """They lift with gradients too, or say why not."""
    with faults.strict():
        same(fn, torch.rand(40, 33))
    text = str(lt.script(fn).explain(torch.rand(40, 33).requires_grad_()))
    assert REFUSED_WITH_GRADIENTS.get(fn, ", 0 ops left to PyTorch") in text


def pooled(x: torch.Tensor, k: int):
    n, m = x.shape[0] - k + 1, x.shape[1] - k + 1
    top = torch.full((n, m), -float("inf"))
    for i in range(k):
        for j in range(k):
            top = torch.maximum(top, x[i : i + n, j : j + m])
    return top


@pytest.mark.parametrize("k", [2, 3])
def test_ties_of_few_iterations_share_as_in_eager_mode(k: int) -> None:
    """Half to the last, a quarter to the one before: not evenly."""
    x = torch.randint(0, 2, (14, 20), generator=torch.Generator().manual_seed(k)).float()
    with faults.strict():
        same(pooled, x, k)


def test_extremes_of_many_iterations_stay_lifted() -> None:
    x = torch.rand(40, 33).requires_grad_()
    report = str(lt.script(largest).explain(x))
    assert "once for each of" not in report
    assert len(lt.script(largest).memory(x).buffers) < 20


def whole_numbers(x):
    t = 16777217
    for i in range(x.shape[0]):
        t = t % 2 + x[i] * 0.001
    return t


def halves(x):
    t, y = 70000.0, x.half()
    for i in range(x.shape[0]):
        t = t * 0.05 + y[i]
    return t


@pytest.mark.parametrize("fn", [whole_numbers, halves], ids=lambda f: f.__name__)
def test_a_number_that_its_tensor_would_not_hold_is_the_first_steps_own(
    fn: Callable[..., Any],
) -> None:
    f = lt.script(fn)
    for n in (0, 1, 5, 40):
        x = torch.rand(n, 6)
        want = fn(x)
        got = f(x)
        assert type(got) is type(want)
        if n:
            torch.testing.assert_close(got, want)
    assert ", 0 ops left to PyTorch" in str(f.explain(torch.rand(40, 6)))


def test_a_column_of_no_rows_hands_its_gradient_on() -> None:
    def columns_written(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for j in range(4):
            out[:, j] = x[:, j] * j
            out[:, j] += 1
        return out

    f = lt.script(columns_written)
    for n in (3, 0):
        x = torch.rand(n, 4).requires_grad_()
        assert f(x).requires_grad
        same(columns_written, torch.rand(n, 4))
