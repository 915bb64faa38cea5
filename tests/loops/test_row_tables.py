"""Tables filled in place from their own earlier rows: scans where rows are read at fixed distances,
left to PyTorch where not, like eager in any case, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.grad.eager_gradients import randn, same


def forward_scores(x: Tensor, a: Tensor) -> Tensor:
    alpha = torch.zeros_like(x)
    alpha[0] = x[0]
    for t in range(1, x.shape[0]):
        alpha[t] = torch.logsumexp(alpha[t - 1].unsqueeze(1) + a, 0) + x[t]
    return torch.logsumexp(alpha[-1], 0)


def backward_scores(x: Tensor, a: Tensor) -> Tensor:
    beta = torch.zeros_like(x)
    for t in range(x.shape[0] - 2, -1, -1):
        beta[t] = torch.logsumexp(beta[t + 1] + a + x[t + 1], 1)
    return beta


def second_order(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[0], y[1] = x[0], x[1] * 2
    for t in range(2, x.shape[0]):
        y[t] = 0.5 * y[t - 1] - 0.3 * y[t - 2] + x[t]
    return y * a[0, 0]


def third_of_before(x: Tensor, a: Tensor) -> Tensor:
    """Only the row three before is read: three chains beside each other."""
    y = x * 1.0
    for t in range(3, x.shape[0]):
        y[t] = torch.tanh(y[t - 3] @ a) + y[t]
    return y


def columns(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for j in range(1, x.shape[1]):
        y[:, j] = torch.tanh(y[:, j - 1] + x[:, j])
    return y @ a


def filled_one_by_one(x: Tensor, a: Tensor) -> Tensor:
    """The loop inside reads only another row than the one that it fills."""
    y = torch.full_like(x, -1e9)
    y[0, 0] = x[0, 0]
    for t in range(1, x.shape[0]):
        for s in range(1, x.shape[1]):
            y[t, s] = torch.logaddexp(y[t - 1, s].clone(), y[t - 1, s - 1].clone()) + x[t, s]
        y[t, 0] = y[t - 1, 0] * 1.0 + x[t, 0]
    return y @ a


def first_column_by_itself(x: Tensor, a: Tensor) -> Tensor:
    y = torch.full_like(x, -1e9)
    y[0, 0] = x[0, 0]
    for t in range(1, x.shape[0]):
        for s in range(x.shape[1]):
            before = y[t - 1, s].clone()
            if s > 0:
                before = torch.logaddexp(before, y[t - 1, s - 1].clone())
            y[t, s] = before + x[t, s]
    return y[-1] @ a


def part_of_a_row(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    y = x + a[0]
    for t in range(1, x.shape[0]):
        y[t, 1:] = y[t - 1, :-1] * 0.5 + y[t, 1:]
    return y.sum(0), y


def two_writes(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for t in range(1, x.shape[0]):
        y[t] = y[t - 1] * 0.9
        y[t] += x[t] * a[0]
    return y


def looks_ahead(x: Tensor, a: Tensor) -> Tensor:
    """Row t + 1 is still what it was before the loop."""
    y = x * 2
    for t in range(1, x.shape[0] - 1):
        y[t] = y[t - 1] * 0.5 + y[t + 1] * a[1]
    return y


def two_tables(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    best, other = torch.zeros_like(x), torch.zeros_like(x)
    best[0] = x[0]
    for t in range(1, x.shape[0]):
        other[t] = torch.tanh(best[t - 1] + other[t - 1])
        best[t] = torch.amax(best[t - 1].unsqueeze(1) + a, 0) + x[t] + other[t]
    return best, other


def beside_a_carry(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros_like(x)
    h = a[0]
    total = torch.zeros(x.shape[1], dtype=x.dtype)
    for t in range(1, x.shape[0]):
        h = torch.tanh(h @ a + y[t - 1])
        y[t] = h * x[t]
        total += y[t]
    return y, total + h


def ctc_like(x: Tensor, a: Tensor) -> Tensor:
    """States are left after themselves, after the one before, or after the one before that."""
    low = torch.full([1], -1e4, dtype=x.dtype)
    alpha = torch.full_like(x, -1e4)
    alpha[0, :2] = x[0, :2]
    for t in range(1, x.shape[0]):
        stay = alpha[t - 1]
        one = torch.cat([low, stay[:-1]])
        two = torch.cat([low, low, stay[:-2]]) + a[0]
        alpha[t] = torch.logsumexp(torch.stack([stay, one, two]), 0) + x[t]
    return alpha[-1, -2:].logsumexp(0)


def copies_of_rows(x: Tensor, a: Tensor) -> Tensor:
    """Eager mode needs the copies for its gradients; one of them is changed."""
    y = torch.zeros_like(x)
    y[0] = x[0]
    y[1] = x[1]
    for t in range(2, x.shape[0]):
        before = y[t - 2].clone()
        before *= 0.5
        y[t] = a[0] * y[t - 1].clone() + before + x[t]
    return y


SCANS: list[Callable[..., Any]] = [
    forward_scores, backward_scores, second_order, columns, part_of_a_row, two_tables, ctc_like,
    copies_of_rows, filled_one_by_one, first_column_by_itself,
]  # fmt: skip
NOT_IN_TRAINING: list[Callable[..., Any]] = [  # eager mode refuses: it saves rows that change
    third_of_before, looks_ahead,
]  # fmt: skip


def all_before(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for t in range(x.shape[0]):
        y[t] = torch.tanh(x[t] + y.sum(0) * a[0])
    return y


def wraps_around(x: Tensor, a: Tensor) -> Tensor:
    """At t = 0 the row before is the last one."""
    y = x * 1.0
    for t in range(x.shape[0]):
        y[t] = y[t - 1] * 0.5 + a[0]
    return y


def two_rows_at_once(x: Tensor, a: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for t in range(1, x.shape[0] - 1):
        y[t] = y[t - 1] + x[t]
        y[t + 1] = y[t] * a[0]
    return y


def every_other_row(x: Tensor, a: Tensor) -> Tensor:
    y = x * 1.0
    for t in range(1, x.shape[0] // 2):
        y[2 * t] = y[2 * t - 2] * 0.5 + y[2 * t - 1] + a[0]
    return y


def rows_by_data(x: Tensor, a: Tensor) -> Tensor:
    y = x * 1.0
    order = torch.arange(x.shape[0]).flip(0)
    for t in range(1, x.shape[0]):
        y[t] = y[order[t]] * 0.5 + a[0]
    return y


def read_afterwards(x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.zeros_like(x)
    seen = []
    for t in range(1, x.shape[0]):
        y[t] = y[t - 1] * 0.9 + x[t]
        seen.append(y.sum())
    return y * a[0], torch.stack(seen)


def own_row_too(x: Tensor, a: Tensor) -> Tensor:
    """Each element needs the one before it in its own row."""
    y = x * 0.5
    for t in range(1, x.shape[0]):
        for s in range(1, x.shape[1]):
            y[t, s] = torch.tanh(y[t - 1, s] + y[t, s - 1] * 0.5)
    return y


def the_transposed_element(x: Tensor, a: Tensor) -> Tensor:
    y = a * 0.5
    for t in range(1, a.shape[0]):
        for s in range(1, a.shape[0]):
            y[t, s] = y[s - 1, t] + x[t, s]
    return y


def the_same_row_every_third_time(x: Tensor, a: Tensor) -> Tensor:
    y = x * 0.5
    for t in range(1, x.shape[0]):
        for s in range(1, x.shape[1]):
            y[t, s] = y[t - t % 3, s - 1] + x[t, s]
    return y


def a_row_below(x: Tensor, a: Tensor) -> Tensor:
    """The row after this one, as it was before both loops."""
    y = x * 0.5
    for t in range(x.shape[0] - 1):
        for s in range(1, x.shape[1]):
            y[t, s] = y[t + 1, s - 1] + x[t, s]
    return y


OTHERS: list[Callable[..., Any]] = [
    two_writes, beside_a_carry, all_before, wraps_around, two_rows_at_once, every_other_row,
    rows_by_data, read_afterwards, own_row_too, the_transposed_element,
    the_same_row_every_third_time, a_row_below,
]  # fmt: skip


def given() -> tuple[Tensor, Tensor]:
    return randn(35, 6), randn(6, 6, seed=1) * 0.3


@pytest.mark.parametrize("fn", SCANS, ids=lambda f: f.__name__)
def test_is_a_scan_like_eager(fn: Callable[..., Any]) -> None:
    x, a = given()
    compiled = same(fn, x, a)
    text = str(compiled.explain(x, a))
    assert ", 0 ops left to PyTorch" in text, text
    assert "not lifted" not in text, text


@pytest.mark.parametrize("fn", [two_writes, beside_a_carry], ids=lambda f: f.__name__)
def test_gradients_of_what_is_no_scan(fn: Callable[..., Any]) -> None:
    same(fn, *given(), compiled_whole=False)


@pytest.mark.parametrize("fn", [*SCANS, *NOT_IN_TRAINING], ids=lambda f: f.__name__)
def test_one_program_for_any_number_of_rows(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    _, a = given()
    for n in (40, 33, 3):
        x = randn(n, 6, seed=n)
        for got, want in zip(_all(compiled(x, a)), _all(fn(x, a)), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("fn", OTHERS, ids=lambda f: f.__name__)
def test_what_is_no_scan_is_right(fn: Callable[..., Any]) -> None:
    x, a = given()
    compiled = lt.script(fn)
    for got, want in zip(_all(compiled(x, a)), _all(fn(x, a)), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "fn",
    [filled_one_by_one, first_column_by_itself, own_row_too, the_transposed_element, a_row_below],
    ids=lambda fn: fn.__name__,
)
def test_rows_of_any_length(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n, m in ((40, 36), (36, 35)):
        x, a = randn(n, m), randn(m, m, seed=1) * 0.3
        torch.testing.assert_close(compiled(x, a), fn(x, a))


def test_the_reason_names_loop_and_line() -> None:
    x, a = given()
    text = str(lt.script(all_before).explain(x, a))
    first = all_before.__code__.co_firstlineno
    assert f"test_row_tables.py:{first + 2}: the loop is not lifted" in text
    assert f"(sum at {__file__}:{first + 3})" in text


def _all(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
