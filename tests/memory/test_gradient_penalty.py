"""Gradients of gradients: within a script they are counted, of a captured graph a note says that
they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.memory.contract import assert_within_contract, requested_bytes


def penalty(x: Tensor, w: Tensor) -> Any:
    y = (torch.softmax(x * 2, 1) * w).exp().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return (g * g).sum()


def twice(x: Tensor, w: Tensor) -> Any:
    y = (x.sin() * x.cos() * w).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    return (h * g).sum()


def made() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(1000, 200, requires_grad=True), torch.randn(200, requires_grad=True)


@pytest.mark.parametrize("function", [penalty, twice], ids=lambda f: f.__name__)
def test_what_a_script_predicts_is_enough(function: Any) -> None:
    x, w = made()
    compiled = lt.script(function)
    predicted = compiled.memory(x, w)
    assert not any("not counted" in note for note in predicted.notes)

    def step() -> None:
        torch.autograd.grad(compiled(x, w), (x, w))

    step()
    asked = requested_bytes(step)
    assert_within_contract(asked, predicted.peak_bytes, library_ops=False)
    assert predicted.peak_bytes <= 1.1 * asked
