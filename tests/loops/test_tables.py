"""Tables filled from their own earlier rows, in place: gradients are eager's, and explained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.grad.eager_gradients import randn, same


def forward_scores(x: Tensor, a: Tensor) -> Tensor:
    alpha = torch.zeros_like(x)
    alpha[0] = x[0]
    for t in range(1, x.shape[0]):
        alpha[t] = torch.logsumexp(alpha[t - 1].unsqueeze(1) + a, 0) + x[t]
    return torch.logsumexp(alpha[-1], 0)


PROGRAMS: list[Callable[..., Any]] = [forward_scores]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_gradients_like_eager(fn: Callable[..., Any]) -> None:
    x, a = randn(34, 5), randn(5, 5, seed=1) * 0.3
    compiled = same(fn, x, a)
    text = str(compiled.explain(x, a))
    assert "the loop is not lifted: an iteration reads other elements of what the loop writes" in (
        text
    )
    first = fn.__code__.co_firstlineno
    assert any(f"test_tables.py:{first + k}: the loop" in text for k in range(1, 5))
