"""Loops that the data end: as many steps as eager mode does, with its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.c import driver
from lowtide.diagnostics import faults
from lowtide.runtime.steps import Steps, run_steps


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with faults.strict():
        yield


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps each loop has run."""
    found: list[int] = []

    def counted(steps: Steps) -> int:
        found.append(run_steps(steps))
        return found[-1]

    monkeypatch.setattr(driver, "run_steps", counted)
    return found


def by_break(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        if h.abs().max() < least:
            break
    return h


def break_first(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        n = torch.tanh(x[t] @ w + h)
        if n.abs().max() < least:
            break
        h = n
    return h


def by_flag(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    done = False
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            if h.abs().max() < least:
                done = True
    return h


def while_active(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    active = True
    for t in range(x.shape[0]):
        if not active:
            continue
        h = torch.tanh(x[t] @ w + h)
        active = bool(h.abs().max() >= least)
    return h


def by_a_tensor(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    done = torch.zeros((), dtype=torch.bool)
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            done = h.abs().max() < least
    return h


def with_a_sum(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, Tensor]:
    h, total = torch.zeros(x.shape[1]), torch.zeros(())
    for t in range(x.shape[0]):
        total = total + x[t].sum()
        h = torch.tanh(x[t] @ w + h)
        if h.abs().max() < least:
            break
    return h, total


def turns(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, Tensor]:
    a, b = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
    for t in range(x.shape[0]):
        a, b = b, torch.tanh(x[t] @ w + a)
        if b.abs().max() < least:
            break
    return a, b


def begins_as_given(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = w[0]
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        if h.abs().max() < least:
            break
    return h


def or_at_a_step(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        if t == 4 or h.abs().max() < least:
            break
    return h


def kept(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, Tensor]:
    out, h = torch.zeros_like(x), torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        out[t] = h
        if h.abs().max() < least:
            break
    return out, h


def counted(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, int]:
    h, count = torch.zeros(x.shape[1]), 0
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h)
        count += 1
        if h.abs().max() < least:
            break
    return h, count


def flag_is_returned(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, bool]:
    h, done = torch.zeros(x.shape[1]), False
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            done = bool(h.abs().max() < least)
    return h, done


def flag_from_outside(x: Tensor, w: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    done = least < 0
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            done = bool(h.abs().max() < least)
    return h


def goes_on_after(x: Tensor, w: Tensor, least: float) -> tuple[Tensor, Tensor]:
    h, total, done = torch.zeros(x.shape[1]), torch.zeros(()), False
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            done = bool(h.abs().max() < least)
        total = total + h.sum() * x[t, 0]
    return h, total


def set_again(x: Tensor, w: Tensor, least: float) -> Tensor:
    h, done = torch.zeros(x.shape[1]), False
    for t in range(x.shape[0]):
        if done:
            done = False
        else:
            h = torch.tanh(x[t] @ w + h)
            done = bool(h.abs().max() < least)
    return h


def not_a_truth(x: Tensor, w: Tensor, least: float) -> Tensor:
    h, done = torch.zeros(x.shape[1]), torch.zeros(())
    for t in range(x.shape[0]):
        if not done:
            h = torch.tanh(x[t] @ w + h)
            done = h  # of many elements: an error, if there is another step
    return h


LIFTED = [
    by_break,
    break_first,
    by_flag,
    while_active,
    by_a_tensor,
    with_a_sum,
    or_at_a_step,
]
OTHERS = [
    turns,
    begins_as_given,
    kept,
    counted,
    flag_is_returned,
    flag_from_outside,
    goes_on_after,
    set_again,
]


def ending_at(step: int, n: int) -> Tensor:
    """What takes the state to 0 at that step, if there is such a step, and away from it before and
    after."""
    x = torch.full((n, 6), 0.3)
    if 0 <= step < n:
        h = torch.zeros(6)
        for t in range(step):
            h = torch.tanh(x[t] + h)
        x[step] = -h
    return x


@pytest.mark.parametrize("fn", [*LIFTED, *OTHERS])
def test_like_eager(fn: Callable[..., Any]) -> None:
    f, w = lt.script(fn), torch.eye(6)
    for n in (0, 1, 2, 7, 40):
        for step in (0, 1, 3, n - 1, n):
            x = ending_at(step, n)
            torch.testing.assert_close(f(x, w, 0.1), fn(x, w, 0.1))
    x = ending_at(50, 40)
    x[5, 2] = math.nan
    torch.testing.assert_close(f(x, w, 0.1), fn(x, w, 0.1), equal_nan=True)
    torch.testing.assert_close(f(x, w, -1.0), fn(x, w, -1.0), equal_nan=True)


@pytest.mark.parametrize("fn", LIFTED)
def test_steps_that_change_nothing_are_not_run(fn: Callable[..., Any], steps: list[int]) -> None:
    f, w = lt.script(fn), torch.eye(6)
    f(ending_at(3, 40), w, 0.1)
    assert steps == [4]
    assert ", 0 ops left to PyTorch" in str(f.explain(ending_at(3, 40), w, 0.1))
    assert "at most" in str(f.explain(ending_at(3, 40), w, 0.1))
    f(ending_at(50, 40), w, 0.1)
    assert steps == [4, 5 if fn is or_at_a_step else 40]


@pytest.mark.parametrize("fn", [*LIFTED, *OTHERS])
def test_gradients(fn: Callable[..., Any]) -> None:
    f = lt.script(fn)
    for step in (3, 50):
        found: list[Tensor] = []
        for call in (f, fn):
            x, w = ending_at(step, 8).requires_grad_(), torch.eye(6).requires_grad_()
            made = call(x, w, 0.1)
            h = made[0] if isinstance(made, tuple) else made
            found += torch.autograd.grad(h.sum(), (x, w))
        for ours, theirs in zip(found[:2], found[2:], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_a_flag_is_not_asked_after_the_last_step() -> None:
    f, w = lt.script(not_a_truth), torch.eye(6)
    x = ending_at(3, 1)
    torch.testing.assert_close(f(x, w, 0.1), not_a_truth(x, w, 0.1))
    with pytest.raises(RuntimeError, match="ambiguous"):
        f(ending_at(3, 2), w, 0.1)


def test_what_only_steps_read_is_computed_in_them() -> None:
    f, w = lt.script(by_break), torch.eye(6)
    lines = str(f.explain(ending_at(3, 40), w, 0.1)).splitlines()
    kernels = [line for line in lines if ".k" in line]
    assert [line.split(".")[0].strip() for line in kernels] == ["part0", "part0", "loop1"]


def before_it(x: Tensor, w: Tensor) -> Tensor:
    y, h = x @ w, torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(y[t] + h)
        if h.abs().max() < 0.1:
            break
    return h


def test_what_is_made_before_the_loop_stays_there() -> None:
    f, w = lt.script(before_it), torch.eye(40)
    x = torch.full((40, 40), 0.3)
    torch.testing.assert_close(f(x, w), before_it(x, w))
    told = str(f.explain(x, w))
    assert told.index("matmul") < told.index("at most")


def ends_within(x: Tensor, w: Tensor) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        for _ in range(20):
            n = torch.tanh(x[t] + h @ w)
            d = (n - h).abs().max()
            h = n
            if d < 1e-3:
                break
    return h


def test_in_each_step_of_another_loop(steps: list[int]) -> None:
    f, w = lt.script(ends_within), torch.eye(6) * 0.5
    x = ending_at(3, 5)
    torch.testing.assert_close(f(x, w), ends_within(x, w))
    assert len(steps) == 5
    assert max(steps) < 20


def settles(x):
    done, i = False, 0
    while not done and i < 20:
        new = torch.tanh(x * 0.9)
        if (new - x).abs().max() < 1e-3:
            done = True
        x, i = new, i + 1
    return x


def power(a):
    v = torch.ones(a.shape[0])
    for _ in range(50):
        w = a @ v
        w = w / w.norm()
        if (w - v).norm() < 1e-6:
            break
        v = w
    return v


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (settles, "the loop is not lifted: it needs the values of a tensor (in py.bool at "),
        (power, "the loop is not lifted: it ends where the data or the index say so, and loops 50"),
    ],
)
def test_reasons_are_sentences(function: Callable[..., torch.Tensor], why: str) -> None:
    x = torch.rand(4, 4, requires_grad=True)
    assert why in str(lt.script(function).explain(x))
