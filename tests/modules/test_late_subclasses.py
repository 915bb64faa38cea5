"""A class that is derived from one whose methods a program has inlined: seen by the next call."""

from __future__ import annotations

import torch
from torch import nn

import lowtide as lt


class Shape:
    def area(self) -> int:
        return 1


class Round:
    def area(self) -> int:
        return 1


class Holder:
    shape: Shape

    def __init__(self, shape: Shape) -> None:
        self.shape = shape


class RoundHolder:
    shape: Round

    def __init__(self, shape: Round) -> None:
        self.shape = shape


@lt.script
def area_of(holder: Holder) -> int:
    return holder.shape.area()


class Net(nn.Module):
    def forward(self, x: torch.Tensor, holder: RoundHolder) -> torch.Tensor:
        return x * holder.shape.area()


def test_function_after_a_subclass_is_defined() -> None:
    assert area_of(Holder(Shape())) == 1

    class Late(Shape):
        def area(self) -> int:
            return 2

    assert area_of(Holder(Late())) == 2
    assert area_of(Holder(Shape())) == 1


def test_module_after_a_subclass_is_defined() -> None:
    net, x = lt.script(Net()), torch.ones(2)
    assert torch.equal(net(x, RoundHolder(Round())), x)

    class Late(Round):
        def area(self) -> int:
            return 2

    assert torch.equal(net(x, RoundHolder(Late())), x * 2)
