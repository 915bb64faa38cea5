"""Modules that compute their weights: a compiler that reads them leaves them as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import lowtide as lt


def normed() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(17, 15))
    return nn.Sequential(layer, nn.Tanh()).double(), torch.randn(9, 17, dtype=torch.float64)


def same(a: nn.Module, b: nn.Module) -> None:
    torch.testing.assert_close(dict(a.named_buffers()), dict(b.named_buffers()), rtol=0, atol=1e-12)


LOOKS: list[Callable[[Any, Any], Any]] = [
    lambda c, x: None,
    lambda c, x: c.memory(x),
    lambda c, x: c.explain(x),
    lambda c, x: c.stages(x),
]


@pytest.mark.parametrize("look", LOOKS)
def test_what_is_only_read_stays(look: Any) -> None:
    model, x = normed()
    before = copy.deepcopy(model)
    compiled = lt.script(model)
    look(compiled, x)
    same(model, before)
    for _ in range(3):  # one step of the power iteration in each call, as eager has it
        torch.testing.assert_close(compiled(x), before(x))
        same(model, before)
    look(compiled, x)
    same(model, before)


def test_training_goes_as_in_eager() -> None:
    model, x = normed()
    other = copy.deepcopy(model)
    compiled = lt.script(model)
    losses: list[list[torch.Tensor]] = []
    for module, call in ((model, compiled), (other, other)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = call(x).square().sum()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.detach())
    torch.testing.assert_close(*losses)
    same(model, other)


def test_weights_of_equal_layers_are_not_taken_for_one() -> None:
    for seed in range(8):  # each weight is computed anew and dies; the next may lie where it lay
        torch.manual_seed(seed)
        layers = [nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)) for _ in range(8)]
        model, x = nn.Sequential(*layers).double(), torch.randn(5, 6, dtype=torch.float64)
        torch.testing.assert_close(lt.script(copy.deepcopy(model))(x), model(x))


class Counted(nn.Module):
    """A parametrization that counts how often its weight is read, and draws from then on."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("reads", torch.zeros(()))
        self.reads: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.reads += 1
        return nn.functional.dropout(x, self.p) * self.reads.item()


class Reads(nn.Module):
    """Reads of one weight: `way` is where they stand."""

    def __init__(self, way: str, layer: nn.Module) -> None:
        super().__init__()
        self.way, self.layer, self.same = way, layer, layer

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        if self.way == "twice":
            return self.layer(torch.tanh(self.layer(x)))
        if self.way == "under two names":
            return self.layer(torch.tanh(self.same(x)))
        if self.way == "after a draw":
            return self.layer(nn.functional.dropout(x, 0.5))
        if self.way == "in a loop":
            for _ in range(n):
                x = torch.tanh(self.layer(x))
        elif n > 2:
            x = self.layer(x)
        return x * 2


@pytest.mark.parametrize("kind", ["spectral norm", "counted", "drawn"])
@pytest.mark.parametrize(
    "way", ["twice", "under two names", "after a draw", "in a loop", "in a branch"]
)
def test_a_weight_with_a_state_is_computed_whenever_it_is_read(way: str, kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6).double()
    if kind == "spectral norm":
        layer = nn.utils.parametrizations.spectral_norm(layer)
        with torch.no_grad():  # so that each step of the power iteration changes much
            layer.parametrizations.weight.original.normal_()  # pyright: ignore
    else:
        made = Counted(0.5 if kind == "drawn" else 0.0)
        nn.utils.parametrize.register_parametrization(layer, "weight", made)
    model = Reads(way, layer)
    other = copy.deepcopy(model)
    compiled = lt.script(model)
    for n in (3, 0, 1):
        x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
        found: list[object] = []
        for module, call in ((model, compiled), (other, other)):
            torch.manual_seed(n)
            y = call(x, n)
            grads: Any = torch.autograd.grad(y.sum(), [x, *module.parameters()], allow_unused=True)
            found.append([y, [g for g in grads if g is not None], torch.get_rng_state()])
        torch.testing.assert_close(*found)
        same(model, other)
