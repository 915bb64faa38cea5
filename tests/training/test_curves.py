"""Training a model compiled and in eager mode gives the same losses for 200 steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.diagnostics import faults, stats
from tests.training import models

STEPS = 200
Optimizer = Callable[[Any], torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors are small: other threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# Class, shape of the input, dim of the batch, optimizer, largest norm of the gradient.
CASES: dict[str, tuple[type[nn.Module], tuple[int, ...], int, Optimizer, float]] = {
    "conv": (models.Conv, (48, 1, 8, 8), 0, adam, 1.0),
    "lstm": (models.LSTM, (12, 48, 36), 1, adam, 1.0),
    "gru": (models.GRU, (12, 48, 36), 1, sgd, 0.5),
    "transformer": (models.Transformer, (48, 35, 36), 0, sgd, 1.0),
    "mlp": (models.MLP, (48, 36), 0, sgd, 1.0),
}


def data(shape: tuple[int, ...], batch: int) -> tuple[Tensor, Tensor]:
    """Inputs, and classes that can be learnt from them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    return x, x.movedim(batch, 0).flatten(1)[:, :3].argmax(1)


def curve(
    model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], case: str
) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of all steps, and the parameters after the last; batches are of two sizes."""
    _, shape, batch, optimizer_of, largest = CASES[case]
    x, target = data(shape, batch)
    optimizer = optimizer_of(model.parameters())
    losses: list[float] = []
    for step in range(STEPS):
        rows = 48 - 4 * (step % 2)
        optimizer.zero_grad()
        loss = loss_of(model(x.narrow(batch, 0, rows).contiguous()), target[:rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), largest)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, {n: p.detach().clone() for n, p in model.named_parameters()}


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -torch.log_softmax(logits, 1)[torch.arange(target.shape[0]), target].mean()


LONG = pytest.param("transformer", marks=pytest.mark.slow)  # to compile
GRU = pytest.param("gru", marks=pytest.mark.long)


@pytest.mark.parametrize("case", ["conv", "lstm", GRU, "mlp", LONG])
def test_the_curve_of_eager(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    made = CASES[case][0]()
    begin = copy.deepcopy(made.state_dict())
    compiled = made if isinstance(made, lt.ScriptModule) else lt.script(made)
    with faults.strict():
        before = stats.cache_stats()
        got, ended = curve(compiled, lt.script(cross_entropy), case)
        done = stats.cache_stats() - before
    assert done.calls_eager == done.regions_eager == 0
    assert done.compiles <= 4  # of the model and the loss, forward and backward
    made.load_state_dict(begin)
    monkeypatch.setenv("LOWTIDE_DISABLE", "1")
    want, expected = curve(made, F.cross_entropy, case)
    assert want[-1] < 0.7 * want[0]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-3, atol=1e-4)
    for name, value in expected.items():
        torch.testing.assert_close(ended[name], value, rtol=1e-2, atol=1e-3)
