"""Defaults that are tensors, of what a program calls: the very tensor that stands there."""

from __future__ import annotations

import dataclasses
import io
import types
from typing import NamedTuple

import torch
from torch import Tensor, nn

import lowtide as lt

SCALE = torch.ones(2)
ZEROS, EMPTY, SIX = torch.zeros(2), torch.zeros(0, 2), torch.full((2,), 6.0)
WEIGHT = nn.Parameter(torch.ones(2))
X = torch.tensor([1.0, 2.0])


def scaled(x: Tensor, scale: Tensor = SCALE) -> Tensor:
    return x * scale


def summed(x: Tensor, total: Tensor = ZEROS) -> Tensor:
    total += x
    return total


def weighted(x: Tensor, *, weight: Tensor = WEIGHT) -> Tensor:
    return (x * weight).sum()


def test_a_default_is_changed_between_calls() -> None:
    fn = lt.script(scales)
    assert fn(X).tolist() == [1, 2]
    SCALE.mul_(5)
    try:
        assert fn(X).tolist() == [5, 10]
        assert fn.explain(X).compiled_again == ()
    finally:
        SCALE.div_(5)


def scales(x: Tensor) -> Tensor:
    return scaled(x)


def test_a_default_is_changed_by_the_program() -> None:
    fn = lt.script(sums)
    fn(X)
    assert fn(X) is summed.__defaults__[0]
    assert fn(X).tolist() == [3, 6]


def sums(x: Tensor) -> Tensor:
    return summed(x)


def test_a_default_takes_part_in_autograd() -> None:
    WEIGHT.grad = None
    lt.script(weighs)(X).backward()
    assert WEIGHT.grad is not None
    assert WEIGHT.grad.tolist() == X.tolist()


def weighs(x: Tensor) -> Tensor:
    return weighted(x)


class Cached(nn.Module):
    def forward(self, x: Tensor, cache: Tensor = EMPTY) -> Tensor:
        return torch.cat([cache, x]) if cache.size(0) > 0 else x


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Cached()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(x, x).sum()


def test_a_default_of_a_submodule_is_saved() -> None:
    x = torch.rand(3, 2)
    module = lt.script(Caching())
    torch.testing.assert_close(module(x), Caching()(x))
    file = io.BytesIO()
    lt.save(module, file)
    file.seek(0)
    torch.testing.assert_close(lt.load(file)(x), Caching()(x))


@dataclasses.dataclass
class Settings:
    count: int
    weight: Tensor = dataclasses.field(default=torch.full((2,), 3.0))


class Row(NamedTuple):
    count: int
    weight: Tensor = torch.full((2,), 4.0)


class Holder:
    def __init__(self, weight: Tensor = SIX) -> None:
        self.weight: Tensor = weight


def fields(x: Tensor) -> Tensor:
    return Settings(1).weight * x + Row(2).weight + Holder().weight


def test_defaults_of_classes() -> None:
    torch.testing.assert_close(lt.script(fields)(X), fields(X))


constants = types.ModuleType("constants")


def from_a_module(x: Tensor) -> Tensor:
    return x + constants.OFFSET


def test_a_tensor_of_another_module_is_read_at_every_call() -> None:
    fn = lt.script(from_a_module)
    for value in (1.0, 2.0):
        constants.OFFSET = torch.full((2,), value)  # pyright: ignore[reportAttributeAccessIssue]
        assert fn(X).tolist() == [1 + value, 2 + value]


def test_defaults_replaced_through_the_compiled_function() -> None:
    """`__defaults__` of a compiled function is that of the function."""

    def scaled(x: int, k: int = 2, *, s: float = 1.0) -> float:
        return x * k + s

    compiled = lt.script(scaled)
    assert compiled(3) == 7.0
    compiled.__defaults__ = (5,)
    assert compiled(3) == 16.0
    compiled.__kwdefaults__ = {"s": 3}
    assert (compiled(3), compiled.__defaults__, scaled(3)) == (18, (5,), 18)
