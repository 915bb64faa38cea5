"""Modules that compute their weights: a compiler that reads them leaves them as they are."""

from __future__ import annotations

import copy
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


@pytest.mark.parametrize("look", [
    lambda c, x: None,
    lambda c, x: c.memory(x),
    lambda c, x: c.explain(x),
    lambda c, x: c.stages(x),
])  # fmt: skip
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
