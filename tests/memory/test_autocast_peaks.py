"""Under autocast a call asks for what is predicted, and keeps to a budget.

Forward within the block, backward outside of it; some also within the least budget that they can
keep. Programs that this CPU has no bfloat16 for are left out, as eager mode refuses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from tests.memory.contract import assert_budget_kept, assert_within_contract, requested_bytes


class Last(nn.Module):
    def __init__(self, layers: nn.LSTM) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)[0]


def convolutions() -> nn.Module:
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(32), nn.ReLU(), second)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(96, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "recurrent": (lambda: Last(nn.LSTM(64, 96, batch_first=True)), (50, 100, 64)),
    "both ways": (lambda: Last(nn.LSTM(64, 96, bidirectional=True)), (120, 50, 64)),
    "layers": (lambda: Last(nn.LSTM(64, 64, 3, dropout=0.3)), (200, 64, 64)),
    "of one": (lambda: Last(nn.LSTM(32, 64)), (1500, 1, 32)),
    "convolutions": (convolutions, (6, 3, 96, 96)),
    "perceptron": (perceptron, (8000, 96)),
}
BUDGETED = {"recurrent", "convolutions", "perceptron"}
LONG = {"both ways", "layers"}


def cases() -> list[Any]:
    return [
        pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in PROGRAMS
    ]


class Step:
    """A model under autocast, on one input."""

    def __init__(self, name: str, grad: bool) -> None:
        torch.manual_seed(0)
        make, shape = PROGRAMS[name]
        self.model, self.grad = make(), grad
        self.x = torch.randn(shape, requires_grad=grad)
        with self.context():
            try:
                self.model(self.x)
            except RuntimeError as refused:
                pytest.skip(f"eager mode: {refused}")

    def context(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16)

    def run(self, compiled: Any) -> None:
        for leaf in (self.x, *self.model.parameters()):
            leaf.grad = None
        with self.context():
            result = compiled(self.x)
        if self.grad:
            result.backward(torch.ones_like(result))

    def peaks(self, compiled: Any) -> tuple[int, int]:
        """Asked for, and predicted."""
        with self.context():
            predicted = compiled.memory(self.x).peak_bytes
        self.run(compiled)
        for leaf in (self.x, *self.model.parameters()):
            leaf.grad = None
        return requested_bytes(lambda: self.run(compiled)), predicted


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", cases())
def test_the_peak_is_as_predicted(name: str, grad: bool) -> None:
    step = Step(name, grad)
    with torch.set_grad_enabled(grad):
        asked, predicted = step.peaks(lt.script(step.model))
    assert_within_contract(asked, predicted, library_ops=True)


@pytest.mark.parametrize("name", sorted(BUDGETED))
def test_the_least_budget_is_kept(name: str) -> None:
    step = Step(name, grad=True)
    with pytest.raises(lt.BudgetError) as refused, step.context():
        lt.script(step.model, budget=1)(step.x)
    least = refused.value.least_bytes
    asked, predicted = step.peaks(lt.script(step.model, budget=least))
    assert predicted <= least
    assert_budget_kept(asked, least, library_ops=True)
