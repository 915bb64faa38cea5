"""A number that does not fit into the tensor's dtype raises PyTorch's error, also as an argument
whose value is known only at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


def clamped(x: Tensor, v: int) -> Tensor:
    return x.clamp(max=v)


def assigned(x: Tensor, v: int) -> Tensor:
    y = x.clone()
    y[0] = v
    return y


def filled(x: Tensor, v: int) -> Tensor:
    return torch.full_like(x, v)


def chosen(x: Tensor, v: int) -> Tensor:
    return torch.where(x > 0, x, v)


def padded(x: Tensor, v: int) -> Tensor:
    return nn.functional.pad(x, (1, 1), value=v)


def outcome(fn: Callable[..., Tensor], x: Tensor, v: int) -> str:
    try:
        found = fn(x, v)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return str(found)


@pytest.mark.parametrize("front", [lt.script, lt.compile])
@pytest.mark.parametrize("fn", [clamped, assigned, filled, chosen, padded])
def test_an_int_that_does_not_fit(fn: Callable[..., Tensor], front: Callable[..., Any]) -> None:
    x = torch.tensor([1, 2, 200], dtype=torch.uint8)
    compiled = front(fn)
    for v in (10, 20, 256, -1, 30):
        assert outcome(compiled, x, v) == outcome(fn, x, v)


def test_a_literal_that_does_not_fit() -> None:
    x = torch.tensor([1.0, -2.0])
    for fn in (large_else, lt.script(large_else)):
        with pytest.raises(RuntimeError, match="without overflow"):
            fn(x)


def large_else(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1e39)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = x * self.layers[i].weight.sum()  # pyright: ignore
        return x  # pyright: ignore


def test_a_method_of_a_parameter_of_a_chosen_module() -> None:
    torch.manual_seed(0)
    module, x = Scaled(), torch.rand(4, 5)
    torch.testing.assert_close(lt.script(module)(x), module(x))
