"""What `memory()` counts: weights that a module computes, results in objects, sizes as symbols."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import lowtide as lt
from tests.memory.contract import requested_bytes


@pytest.mark.parametrize("grad", [False, True])
def test_a_weight_that_is_computed_at_each_call_is_counted(grad: bool) -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(1024, 4096)), nn.ReLU())
    x = torch.rand(64, 1024)
    compiled = lt.script(model)
    with torch.set_grad_enabled(grad):
        plan = compiled.memory(x)
        compiled(x)
        assert requested_bytes(lambda: compiled(x)) <= plan.peak_bytes
    assert plan.peak_bytes >= 1024 * 4096 * 4


def given_back(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x.sin()


def test_a_result_that_is_an_input_has_a_cotangent() -> None:
    x = torch.rand(500, 500, requires_grad=True)
    assert lt.script(given_back).memory(x).peak_bytes >= 4 * x.nbytes
    assert x.grad is None


@dataclasses.dataclass
class Result:
    y: Tensor


def in_an_object(x: Tensor) -> Result:
    return Result(torch.softmax(torch.cumsum(x * 2, 1), 1))


def summed(x: Tensor) -> Tensor:
    return torch.softmax(torch.cumsum(x * 2, 1), 1)


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_gradients_of_what_is_in_an_object_count(entry: Any) -> None:
    x = torch.rand(700, 800, requires_grad=True)
    compiled = entry(in_an_object)
    assert compiled.memory(x).peak_bytes == entry(summed).memory(x).peak_bytes


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_anomalies_are_not_looked_for(entry: Any) -> None:
    x = torch.rand(300, 400, requires_grad=True)
    compiled = entry(summed)
    with torch.autograd.set_detect_anomaly(True):
        plan = compiled.memory(x)
        assert torch.is_anomaly_enabled()
    assert plan == compiled.memory(x)


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_sizes_that_are_symbols_have_their_values(entry: Any) -> None:
    symbols = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.empty(300, 400), static_shapes=False, symbolic_context=symbols)
    assert type(x.shape[0]) is torch.SymInt
    compiled = entry(summed)
    assert compiled.memory(x).peak_bytes == compiled.memory(torch.empty(300, 400)).peak_bytes
