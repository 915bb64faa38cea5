"""Loops that keep what they carry: one tensor, under several names, is predicted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt

N, M = 300, 5000


def smoothed(x: Tensor) -> Tensor:
    out, s = torch.empty_like(x), torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        s = 0.9 * x[t] + 0.1 * s
        out[t] = s
    return out


def highest(x: Tensor) -> tuple[Tensor, Tensor]:
    out, s = torch.zeros_like(x), torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        s = torch.maximum(x[t], 0.1 * s)
        out[t] = s
    return out, s


def twice(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, second, s = torch.empty_like(x), torch.empty_like(x), x[0] * 0
    for t in range(x.shape[0]):
        s = x[t] - 0.5 * s
        first[t] = s
        second[t] = s * 2
    return first, second, s


@pytest.mark.parametrize(("f", "kept"), [(smoothed, 1), (highest, 1), (twice, 2)])
def test_what_a_loop_carries_is_what_it_has_written(f: Callable[..., Any], kept: int) -> None:
    nbytes = N * M * 4
    compiled = lt.script(f)
    plan = compiled.memory(torch.empty(N, M, device="meta"))
    assert kept * nbytes <= plan.peak_bytes <= (kept + 0.1) * nbytes + (1 << 20)
    x = torch.rand(N, M)
    budget = int((kept + 0.2) * nbytes) + (1 << 20)
    torch.testing.assert_close(lt.script(f, budget=budget)(x), f(x))
