"""Ops that PyTorch has in terms of others take what these take, also where autograd is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from tests.memory.cases import CASES


def quantiles(x: Tensor) -> Tensor:
    return torch.quantile(x.cumsum(0), 0.5, dim=1)


def covariance(x: Tensor) -> Tensor:
    return torch.cov(x[:200].cumsum(1))


def embedded(x: Tensor) -> Tensor:
    return F.cosine_embedding_loss(x.cumsum(0), x, torch.ones(x.shape[0]))


@pytest.mark.parametrize("fn", [quantiles, covariance, embedded], ids=lambda fn: fn.__name__)
def test_inference_mode_takes_as_much(fn: Callable[..., Any]) -> None:
    x = torch.empty(1000, 1000)
    compiled: Any = lt.script(fn)
    with torch.no_grad():
        expected = compiled.memory(x).peak_bytes
    with torch.inference_mode():
        assert compiled.memory(x).peak_bytes == expected
    assert expected > x.nbytes // 4


@pytest.mark.parametrize("name", ["larger", "mlp with dropout", "transformer layer", "margins"])
def test_programs_take_as_much_in_inference_mode(name: str) -> None:
    """By PyTorch's own kernels, not by what else it has for some ops in Python."""
    chosen = next(c for c in CASES if c.name == name)
    args = chosen.inputs()
    compiled: Any = lt.script(chosen.make())
    with torch.no_grad():
        expected = compiled.memory(*args).peak_bytes
    with torch.inference_mode():
        assert compiled.memory(*args).peak_bytes == pytest.approx(expected, rel=0.001)


def test_tensors_that_are_compared() -> None:
    def close(x: Tensor, y: Tensor) -> Tensor:
        return x if torch.allclose(x, y) else y

    x = torch.empty(1000, 1000)
    compiled: Any = lt.script(close)
    assert compiled.memory(x, x.clone()).peak_bytes >= 3 * x.nbytes
