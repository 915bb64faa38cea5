"""States that are of another shape or dtype after the first step are carried from there on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.grad.eager_gradients import randn, same


def recurrent(x: Tensor, w: Tensor, u: Tensor):
    h = torch.zeros(5, dtype=x.dtype)
    states = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        states.append(h)
    return torch.stack(states), h


def smoothed(x: Tensor, w: Tensor, u: Tensor):
    s, n = torch.zeros(1, dtype=x.dtype), 0
    for t in range(x.shape[0] - 1, -1, -1):
        s = 0.9 * s + torch.sin(x[t] @ w)
        n = n + 2
    return s * n


def widened(x: Tensor, w: Tensor, u: Tensor):
    h = torch.zeros(4, 5)  # float32
    out = torch.zeros(x.shape[0], 4, 5, dtype=x.dtype)
    for t in range(x.shape[0]):
        h = torch.sin(x[t] @ w + h.to(x.dtype) @ u)
        out[t] = h
    return out


PROGRAMS: list[Callable[..., Any]] = [recurrent, smoothed, widened]


@pytest.mark.parametrize("steps", [1, 2, 3, 40])
@pytest.mark.parametrize("f", PROGRAMS)
def test_like_eager(f: Callable[..., Any], steps: int) -> None:
    args = randn(steps, 4, 6), randn(6, 5, seed=1), randn(5, 5, seed=2)
    compiled = same(f, *args)
    if steps == 40:
        assert "once for each of s0 - 1 steps" in str(compiled.explain(*args))


def test_no_steps() -> None:
    args = randn(0, 4, 6), randn(6, 5, seed=1), randn(5, 5, seed=2)
    assert torch.equal(lt.script(smoothed)(*args), smoothed(*args))


def test_a_state_that_autocast_makes_half_of() -> None:
    compiled = lt.script(recurrent)
    args = [x.float() for x in (randn(40, 4, 6), randn(6, 5, seed=1), randn(5, 5, seed=2))]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = compiled(*args), recurrent(*args)
        assert "once for each of s0 - 1 steps" in str(compiled.explain(*args))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype is torch.bfloat16
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


def grows(x: Tensor, w: Tensor, u: Tensor):
    h = torch.zeros(1, 5, dtype=x.dtype)
    for t in range(x.shape[0]):
        h = torch.cat([h, x[t] @ w])
    return h


def test_one_that_changes_at_each_step_is_not_lifted() -> None:
    args = randn(40, 4, 6), randn(6, 5, seed=1), randn(5, 5, seed=2)
    compiled = lt.script(grows)
    torch.testing.assert_close(compiled(*args), grows(*args))
    assert "a carried tensor changes its shape or dtype" in str(compiled.explain(*args))
