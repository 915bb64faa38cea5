"""Copies of compiled modules: what can be called, what is shared, what was asked of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

COPIES = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
X = torch.ones(2)


class Helped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls = 0

    def twice(self, x: Tensor) -> Tensor:
        return x * 2

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(self.twice(x))


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = Helped()

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


@COPIES
def test_methods_that_forward_calls_can_be_called(copied: Callable[[Any], Any]) -> None:
    assert torch.equal(copied(lt.script(Helped())).twice(X), X * 2)
    assert torch.equal(copied(lt.script(Around())).part.twice(X), X * 2)


def test_a_shallow_copy_shares_parameters_and_has_attributes_of_its_own() -> None:
    first = lt.script(Helped())
    first(X)
    second = copy.copy(first)
    second(X)
    assert (first.calls, second.calls) == (1, 2)
    assert second.linear.weight is first.linear.weight


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] - x[None]).exp()


@COPIES
def test_copies_keep_to_the_budget(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(lt.BudgetError):
        copied(lt.script(Pairs(), budget="1MB"))(torch.rand(2000))
