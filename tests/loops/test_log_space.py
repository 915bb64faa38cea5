"""Recurrences of logarithms of sums: kernels with gradients, too, like eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.grad.eager_gradients import randn, same


def chain(x: Tensor, y: Tensor) -> Tensor:
    a = x[0]
    for t in range(1, x.shape[0]):
        a = torch.logaddexp(a, x[t]) + y[t]
    return a


def to_the_base_2(x: Tensor, y: Tensor) -> Tensor:
    a = x[0]
    for t in range(1, x.shape[0]):
        a = torch.logaddexp2(a + y[t], x[t])
    return a


def of_one_operand_twice(x: Tensor, y: Tensor) -> Tensor:
    a = x[0]
    for t in range(1, x.shape[0]):
        a = torch.logaddexp(a, a) - torch.hypot(y[t], y[t]) + x[t]
    return a


def shifted_rows(x: Tensor, y: Tensor) -> Tensor:
    """The forward scores of CTC, a row at a time: what is not there is -1e9."""
    a = x[0]
    for t in range(1, x.shape[0]):
        before = torch.cat([torch.full((1,), -1e9, dtype=x.dtype), a[:-1]])
        a = torch.logaddexp(a, before) + x[t] * y[t]
    return torch.logaddexp(a[-1], a[-2])


def lattice(x: Tensor, y: Tensor) -> Tensor:
    """As of an RNN-T: each place from the one above and the one before."""
    n, m = x.shape
    row = [torch.zeros((), dtype=x.dtype)]
    for j in range(1, m):
        row.append(row[-1] + y[0, j - 1])
    above = torch.stack(row)
    for i in range(1, n):
        row = [above[0] + x[i - 1, 0]]
        for j in range(1, m):
            row.append(torch.logaddexp(above[j] + x[i - 1, j], row[-1] + y[i, j - 1]))
        above = torch.stack(row)
    return above[-1] + x[n - 1, m - 1]


PROGRAMS = [chain, to_the_base_2, of_one_operand_twice, shifted_rows, lattice]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_like_eager(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    operands = (randn(9, 4).to(dtype), randn(9, 4, seed=1).to(dtype))
    compiled = same(fn, *operands)
    report = compiled.explain(*(x.detach().requires_grad_() for x in operands))
    assert len(report.regions) == 1, str(report)
    assert ", 0 ops left to PyTorch" in str(report), str(report)
