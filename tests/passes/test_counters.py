"""`while` loops that count are `for` loops: the same steps, the same numbers, and lifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lowtide as lt


def below(x):
    i, s = 0, torch.zeros(())
    while i < x.shape[0]:
        s = s + x[i]
        i += 1
    return s


def by_two(x):
    i, s = 0, torch.zeros(())
    while x.shape[0] > i:
        s = s + x[i] * i
        i = i + 2
    return s


def down(x):
    i, s = x.shape[0] - 1, torch.zeros(())
    while i >= 0:
        s = s + x[i]
        i -= 1
    return s


def down_by_three(x):
    i, s = x.shape[0] - 1, torch.zeros(())
    while i > 2:
        s = s + x[i]
        i -= 3
    return s, i


def up_to(x):
    i, s = 1, torch.zeros(())
    while i <= x.shape[0] - 1:
        s = s + x[i] - x[i - 1]
        i += 1
    return s, i


def left_by_break(x):
    i, s = 0, torch.zeros(())
    while True:
        s = s + x[i]
        i += 1
        if i >= x.shape[0]:
            break
    return s


def a_flag(x):
    going, i, s = True, 0, torch.zeros(())
    while going:
        s = s + x[i]
        i += 1
        going = i < x.shape[0]
    return s


def until_done(x):
    done, i, s = False, 0, torch.zeros(())
    while not done:
        s = s + x[i]
        i += 1
        if i == x.shape[0]:
            done = True
    return s, i


def unequal(x):
    i, s = 0, torch.zeros(())
    while i != x.shape[0]:
        s = s + x[i]
        i += 1
    return s


def two_counters(x):
    i, j, s = 0, x.shape[0] - 1, torch.zeros(())
    while i < x.shape[0]:
        s = s + x[i] * x[j]
        i += 1
        j -= 1
    return s, j


def rows(x):
    i, out = 0, []
    while i < x.shape[0]:
        out.append(x[i].sin())
        i += 1
    return torch.stack(out)


def writes(x):
    i, y = 0, torch.zeros_like(x)
    while i < x.shape[0]:
        y[i] = x[i] * 2
        i += 1
    return y


def nested(x):
    i, s = 0, torch.zeros(())
    while i < x.shape[0]:
        j = 0
        while j < x.shape[0]:
            s = s + x[i] * x[j]
            j += 1
        i += 1
    return s


LIFTED: list[Callable[..., Any]] = [
    below, by_two, down, down_by_three, up_to, left_by_break, a_flag, until_done, unequal,
    two_counters, rows, writes, nested,
]  # fmt: skip


def uneven(x):
    i, s = 1, torch.zeros(())
    while i < x.shape[0]:
        s = s + x[i]
        i *= 2
    return s, i


def the_bound_moves(x):
    i, n, s = 0, x.shape[0], torch.zeros(())
    while i < n:
        s = s + x[i]
        i += 1
        n -= 1
    return s, n


def two_conditions(x):
    i, s = 0, torch.zeros(())
    while i < x.shape[0] and s < 3:
        s = s + x[i].abs()
        i += 1
    return s, i


def the_length_of_what_grows(x):
    out = [x[0]]
    i = 0
    while i < min(len(out), 5):
        out.append(out[i] * 2)
        i += 1
    return out


def a_flag_of_the_data(x):
    done, i, s = False, 0, torch.zeros(())
    while not done and i < x.shape[0]:
        s = s + x[i].abs()
        done = bool(s > 2)
        i += 1
    return s, i


OTHERS: list[Callable[..., Any]] = [
    uneven, the_bound_moves, two_conditions, the_length_of_what_grows, a_flag_of_the_data,
]  # fmt: skip


def _same(compiled: Callable[..., Any], fn: Callable[..., Any], x: torch.Tensor) -> None:
    torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-4)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    for f, y in ((compiled, a), (fn, b)):
        made = f(y)
        first = made[0] if isinstance(made, tuple | list) else made
        if first.requires_grad:
            first.sum().backward()
    torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fn", LIFTED, ids=lambda fn: fn.__name__)
def test_lifted(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    compiled = lt.script(fn)
    for n in (50, 3, 1, 71):
        _same(compiled, fn, torch.randn(n))
    told = str(compiled.explain(torch.randn(50)))
    assert "not lifted" not in told
    assert "left to PyTorch" not in told or ", 0 ops left to PyTorch" in told


@pytest.mark.parametrize("fn", OTHERS, ids=lambda fn: fn.__name__)
def test_others_stay(fn: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    compiled = lt.script(fn)
    for n in (50, 3, 1):
        _same(compiled, fn, torch.randn(n))


@pytest.mark.parametrize("fn", [below, down, by_two, unequal, rows], ids=lambda fn: fn.__name__)
def test_no_step_at_all(fn: Callable[..., Any]) -> None:
    compiled, x = lt.script(fn), torch.randn(0)
    try:
        want = fn(x)
    except RuntimeError:  # of nothing to stack
        with pytest.raises(RuntimeError):
            compiled(x)
    else:
        torch.testing.assert_close(compiled(x), want)


def passes_by(x, n: int):
    i, s = 0, torch.zeros(())
    while i != n:
        s = s + x[i]
        i += 1
    return s


def test_what_never_ends_ends_as_in_python() -> None:
    with pytest.raises(IndexError):
        lt.script(passes_by)(torch.ones(40), -1)
