"""What a clamp and its limits get at a tie and at NaN is what this PyTorch gives them.

PyTorch 2.14 gives a number that is the limit's equal nothing, and halves a tie of tensors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt

COPIES = 200  # so many that it is compiled
ENDS = (0.0, 1.0, math.nan)
X, LOW, HIGH = (
    torch.tensor(c * COPIES) for c in zip(*itertools.product((*ENDS, 2.0), ENDS, ENDS), strict=True)
)


def clamped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.clamp(x * 1, low, high)


def at_least(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.clamp_min(x * 1, low)


def at_most(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.clamp(x * 1, max=high)


def fmax(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.fmax(x, low)


def fmin(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.fmin(x, high)


def between_numbers(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(0, 1)


def at_a_number(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(1, 1)


def no_range(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(1, 0)


def at_least_1(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp_min(1)


def at_most_1(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clip(max=1)


def at_least_a_scalar(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(min=torch.zeros(()))


def between_scalars(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return x.clamp(torch.zeros(()), torch.ones(()))


def hardtanh(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.nn.functional.hardtanh(x.nan_to_num(0.5), 0.0, 1.0)


FUNCTIONS = [
    clamped,
    at_least,
    at_most,
    fmax,
    fmin,
    between_numbers,
    at_a_number,
    no_range,
    at_least_1,
    at_most_1,
    at_least_a_scalar,
    between_scalars,
    hardtanh,
]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_gradients_at_limits(fn: Callable[..., Tensor]) -> None:
    ours, theirs = ([x.clone().requires_grad_() for x in (X, LOW, HIGH)] for _ in range(2))
    weights = torch.randn(X.shape, generator=torch.Generator().manual_seed(0))
    lt.script(fn)(*ours).backward(weights)
    fn(*theirs).backward(weights)
    for a, b in zip(ours, theirs, strict=True):
        found = torch.zeros_like(a) if a.grad is None else a.grad
        expected = torch.zeros_like(b) if b.grad is None else b.grad
        torch.testing.assert_close(found, expected, equal_nan=True)
