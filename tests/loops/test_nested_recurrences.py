"""Recurrences within recurrences: tables of which each element needs the one before it in its row
and the row before, and scans within scans. Steps of steps where that is legal, always like eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import close, flat, randn, same

Program = Callable[..., Any]


def dtw(x: Tensor) -> Tensor:
    n, m = x.shape
    r = torch.full((n + 1, m + 1), float("inf"), dtype=x.dtype)
    r[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            before = torch.stack([r[i - 1, j - 1], r[i - 1, j], r[i, j - 1]])
            r[i, j] = x[i - 1, j - 1] + before.min()
    return r[n, m]


def soft_dtw(x: Tensor) -> Tensor:
    n, m = x.shape
    g = 0.7
    r = torch.full((n + 1, m + 1), 1e6, dtype=x.dtype)
    r[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            r0, r1, r2 = -r[i - 1, j - 1] / g, -r[i - 1, j] / g, -r[i, j - 1] / g
            top = torch.maximum(torch.maximum(r0, r1), r2)
            total = torch.exp(r0 - top) + torch.exp(r1 - top) + torch.exp(r2 - top)
            r[i, j] = x[i - 1, j - 1] - g * (torch.log(total) + top)
    return r[n, m]


def batched(x: Tensor) -> Tensor:
    d = torch.stack([x, x * 2, x + 1])
    n, m = x.shape
    r = torch.full((3, n + 1, m + 1), 1e6, dtype=x.dtype)
    r[:, 0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            before = torch.stack([r[:, i - 1, j - 1], r[:, i - 1, j], r[:, i, j - 1]], -1)
            r[:, i, j] = d[:, i - 1, j - 1] - torch.logsumexp(-before, -1)
    return r[:, n, m]


def edits(x: Tensor) -> Tensor:
    a, b = x[:, 0] > 0.0, x[0] > 0.0
    n, m = x.shape
    r = torch.zeros(n + 1, m + 1)
    r[:, 0] = torch.arange(n + 1)
    r[0] = torch.arange(m + 1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            swapped = r[i - 1, j - 1] + torch.where(a[i - 1] == b[j - 1], 0.0, 1.0)
            r[i, j] = torch.minimum(torch.minimum(r[i - 1, j] + 1, r[i, j - 1] + 1), swapped)
    return r[n, m]


def aligned(x: Tensor) -> Tensor:
    """Needleman and Wunsch; the borders are loops of their own."""
    n, m = x.shape
    gap = 0.3
    r = torch.zeros(n + 1, m + 1, dtype=x.dtype)
    for i in range(1, n + 1):
        r[i, 0] = -gap * i
    for j in range(1, m + 1):
        r[0, j] = -gap * j
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            found = torch.stack([
                r[i - 1, j - 1] + x[i - 1, j - 1], r[i - 1, j] - gap, r[i, j - 1] - gap
            ])  # fmt: skip
            r[i, j] = found.max()
    return r[n, m]


def local(x: Tensor) -> Tensor:
    """Smith and Waterman, by rows that are made anew."""
    n, m = x.shape
    before = torch.zeros(m + 1, dtype=x.dtype)
    best = torch.zeros((), dtype=x.dtype)
    for i in range(n):
        row = torch.zeros(m + 1, dtype=x.dtype)
        for j in range(m):
            found = torch.stack([before[j] + x[i, j], before[j + 1] - 0.2, row[j] - 0.2])
            row[j + 1] = found.max().clamp(min=0)
        before = row
        best = torch.maximum(best, row.max())
    return best


def common(x: Tensor) -> Tensor:
    a, b = x[:, 0] > 0.0, x[0] > 0.0
    r = torch.zeros(x.shape[0] + 1, x.shape[1] + 1)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            longer = torch.maximum(r[i, j + 1], r[i + 1, j])
            r[i + 1, j + 1] = torch.where(a[i] == b[j], r[i, j] + 1, longer)
    return r


def affine_gaps(x: Tensor) -> Tensor:
    n, m = x.shape
    best, right, down = (torch.full((n + 1, m + 1), -1e3, dtype=x.dtype) for _ in range(3))
    best[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            right[i, j] = torch.logaddexp(best[i, j - 1] - 1.0, right[i, j - 1] - 0.1)
            down[i, j] = torch.logaddexp(best[i - 1, j] - 1.0, down[i - 1, j] - 0.1)
            ways = torch.stack([best[i - 1, j - 1], right[i, j], down[i, j]])
            best[i, j] = x[i - 1, j - 1] + torch.logsumexp(ways, 0)
    return best[n, m]


def integral(x: Tensor) -> Tensor:
    y = x.clone()
    for r in range(x.shape[0]):
        for c in range(1, x.shape[1]):
            y[r, c] = y[r, c] + y[r, c - 1]
    for r in range(1, x.shape[0]):
        for c in range(x.shape[1]):
            y[r, c] = y[r, c] + y[r - 1, c]
    return y


def filtered(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for i in range(1, x.shape[0]):
        for j in range(2, x.shape[1]):
            y[i, j] = x[i, j] + 0.3 * y[i - 1, j] + 0.4 * y[i, j - 1] - 0.2 * y[i, j - 2]
    return y


def there_and_back(x: Tensor) -> Tensor:
    """Each row twice: to the right, then to the left; the rows from the last one up."""
    y = x * 1.0
    for i in range(x.shape[0] - 2, -1, -1):
        y[i, 0] = y[i + 1, 0] * 0.5 + x[i, 0]
        for j in range(1, x.shape[1]):
            y[i, j] = torch.tanh(y[i, j] + y[i + 1, j - 1]) + y[i, j - 1] * 0.2
        for j in range(x.shape[1] - 2, -1, -1):
            y[i, j] = y[i, j] + y[i, j + 1] * 0.2
    return y


def by_columns(x: Tensor) -> Tensor:
    y = x * 1.0
    for j in range(1, x.shape[1] - 1):
        for i in range(1, x.shape[0]):
            y[i, j] = torch.tanh(y[i - 1, j] + y[i, j - 1]) + y[i, j + 1]
    return y


def fixed_points(x: Tensor) -> Tensor:
    w = x[:4, :4] * 0.3
    h = torch.zeros(4, dtype=x.dtype)
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        z = h
        for _ in range(x.shape[1]):
            z = torch.tanh(w @ z + x[t, :4] + h @ w)
        h = z * 0.5
        out.append(h)
    return torch.stack(out)


def epochs(x: Tensor) -> Tensor:
    s = torch.ones(x.shape[1], dtype=x.dtype)
    for _ in range(x.shape[1]):
        h = x[0] * s
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t])
        s = torch.sigmoid(h) + 0.1 * s
    return s


def a_number_through_all(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros_like(x)
    acc = torch.zeros((), dtype=x.dtype)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            acc = torch.tanh(acc + x[i, j])
            y[i, j] = acc
    return y, acc


def begun_by_the_total(x: Tensor) -> Tensor:
    """It only adds, but each loop inside begins with what there is so far."""
    total = torch.zeros((), dtype=x.dtype)
    for i in range(x.shape[0]):
        h = total
        for j in range(x.shape[1]):
            h = torch.tanh(h * 0.5 + x[i, j])
        total = total + h
    return total


def a_sum_of_the_row(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1.0
    s = torch.zeros((), dtype=x.dtype)
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = torch.tanh(y[i - 1, j] + s) + y[i, j - 1] * 0.5
        s = y[i].sum() * 0.1
    return y, s


def borders(x: Tensor) -> tuple[Tensor, Tensor]:
    """What the loops never write is read anywhere; the first row and column by a choice."""
    n, m = x.shape
    y = x * 1.0
    s = torch.zeros((), dtype=x.dtype)
    for i in range(n):
        for j in range(m - 1):
            if i > 0 and j > 0:
                y[i, j] = torch.tanh(y[i, j - 1] + y[i, 0] + y[i - 1, j]) + y[0, j] + y[i, m - 1]
        s = torch.tanh(s + y[0, 0])
    return y, s


LEGAL: list[Program] = [
    dtw, soft_dtw, batched, edits, aligned, local, common, affine_gaps, integral, filtered,
    there_and_back, by_columns, fixed_points, epochs, a_number_through_all, begun_by_the_total,
    a_sum_of_the_row, borders,
]  # fmt: skip


def three_deep(x: Tensor) -> Tensor:
    y = torch.stack([x, x * 0.5, x - 1, x * 0.1])
    for k in range(1, 4):
        for i in range(1, x.shape[0]):
            for j in range(1, x.shape[1]):
                y[k, i, j] = torch.tanh(y[k - 1, i, j] + y[k, i - 1, j] - y[k, i, j - 1])
    return y


def ahead(x: Tensor) -> Tensor:
    """What comes next in the row, and the row below, is as it was."""
    y = x * 1.0
    for i in range(1, x.shape[0] - 1):
        for j in range(1, x.shape[1] - 1):
            y[i, j] = y[i, j - 1] * 0.5 + y[i, j + 1] + y[i + 1, j] * y[i - 1, j]
    return y


def half_the_way(x: Tensor) -> Tensor:
    y = x * 1.0
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = y[i, j // 2] * 0.5 + y[i - 1, j]
    return y


def half_the_rows(x: Tensor) -> Tensor:
    y = x * 1.0
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = y[i // 2, j] * 0.5 + y[i, j - 1]
    return y


def by_data(x: Tensor) -> Tensor:
    y = x * 1.0
    k = (x[0] > 0.0).long()
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = y[i, k[j]] * 0.5 + y[i - 1, j]
    return y


def a_triangle(x: Tensor) -> Tensor:
    y = x * 1.0
    for i in range(1, min(x.shape[0], x.shape[1])):
        for j in range(1, i):
            y[i, j] = y[i - 1, j] * 0.5 + y[i, j - 1]
    return y


def own_row(x: Tensor) -> Tensor:
    y = x * 1.0
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[i, j] = torch.tanh(y[i].sum() * 0.1) + y[i - 1, j]
    return y


def the_diagonal(x: Tensor) -> Tensor:
    y = x @ x.T
    for _ in range(2, x.shape[0]):
        for j in range(1, x.shape[0]):
            y[j, j] = y[j - 1, j - 1] * 0.5 + y[j, j] * 0.1
    return y


def one_row_for_all(x: Tensor) -> Tensor:
    y = x * 1.0
    for i in range(1, x.shape[0]):
        for j in range(1, x.shape[1]):
            y[0, j] = torch.tanh(y[0, j] + y[0, j - 1] + x[i, j])
    return y


REFUSED: list[Program] = [
    half_the_way, half_the_rows, by_data, a_triangle, own_row, the_diagonal, one_row_for_all,
]  # fmt: skip


def like_eager(compiled: Program, fn: Program, x: Tensor) -> None:
    with faults.strict():
        for got, want in zip(flat(compiled(x)), flat(fn(x)), strict=True):
            close(got, want)


@pytest.mark.parametrize("fn", LEGAL, ids=lambda f: f.__name__)
def test_steps_of_steps_like_eager(fn: Program) -> None:
    compiled = same(fn, randn(9, 8))
    text = str(compiled.explain(randn(9, 8)))
    assert ", 0 ops left to PyTorch" in text, text
    assert "not lifted" not in text, text


@pytest.mark.parametrize("fn", LEGAL, ids=lambda f: f.__name__)
def test_one_program_for_all_sizes(fn: Program) -> None:
    compiled = lt.script(fn)
    like_eager(compiled, fn, randn(34, 33))
    before = lt.cache_stats()
    like_eager(compiled, fn, randn(41, 38, seed=1))
    like_eager(compiled, fn, randn(33, 50, seed=2))
    assert (lt.cache_stats() - before).compiles == 0


@pytest.mark.parametrize("fn", [dtw, integral, filtered, epochs], ids=lambda f: f.__name__)
def test_sizes_zero_and_one(fn: Program) -> None:
    compiled = lt.script(fn)
    for n, m in ((1, 1), (1, 5), (5, 1), (2, 2), (0, 3)):
        if n or fn is not epochs:
            like_eager(compiled, fn, randn(n, m))


def test_one_backward_pass_for_all_sizes() -> None:
    def gradient(fn: Program, x: Tensor) -> Tensor:
        x.requires_grad_()
        (found,) = torch.autograd.grad(fn(x).sum(), x)
        return found

    compiled = lt.script(soft_dtw)
    close(gradient(compiled, randn(34, 33)), gradient(soft_dtw, randn(34, 33)))
    before = lt.cache_stats()
    close(gradient(compiled, randn(36, 40)), gradient(soft_dtw, randn(36, 40)))
    since = lt.cache_stats() - before
    assert not since.compiles
    assert not since.kernels_built


def test_gradcheck() -> None:
    x = randn(4, 5).requires_grad_()
    with faults.strict():
        assert torch.autograd.gradcheck(lt.script(affine_gaps), (x,))


def test_three_deep() -> None:
    same(three_deep, randn(5, 6))


def test_reads_ahead() -> None:
    """Eager mode has no gradients of it: it saves elements that change."""
    compiled = lt.script(ahead)
    for n, m in ((34, 35), (40, 36), (3, 4)):
        like_eager(compiled, ahead, randn(n, m))
    assert "not lifted" not in str(compiled.explain(randn(34, 35)))


@pytest.mark.parametrize("fn", REFUSED, ids=lambda f: f.__name__)
def test_what_is_not_legal_stays_and_is_right(fn: Program) -> None:
    compiled = lt.script(fn)
    like_eager(compiled, fn, randn(34, 33))
    assert "not lifted" in str(compiled.explain(randn(34, 33)))


def read_in_steps(x: Tensor, w: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Steps read what the first of them begins with, too."""
    g = h0
    rows: list[Tensor] = []
    for i in range(x.shape[0]):
        h = g
        inner: list[Tensor] = []
        for j in range(x.shape[1]):
            h = torch.tanh(x[i, j] + h @ w)
            inner.append(h)
        rows.append(torch.stack(inner))
        g = h + h0
    return torch.stack(rows), g


@pytest.mark.parametrize("order", ["rows", "columns", "every second"])
def test_a_first_value_with_gaps(order: str) -> None:
    """Steps go by the strides of their own values, and of an operand by its own."""
    x, w = torch.randn(4, 3, 2, 5), torch.randn(5, 5) / 4
    orders = {
        "rows": torch.randn(2, 5),
        "columns": torch.randn(5, 2).t(),
        "every second": torch.randn(2, 10)[:, ::2],
    }
    h0 = orders[order]
    with faults.strict():
        found = lt.script(read_in_steps)(x, w, h0)
    torch.testing.assert_close(found, read_in_steps(x, w, h0))
