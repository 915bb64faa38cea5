"""`self.__x` in a class is `self._Class__x`, as in Python."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.__hid = nn.Linear(2, 2)
        self.__n = 3
        self.__kept__ = 2

    def __f(self, x: Tensor, __k: int = 2) -> Tensor:
        return self.__hid(x) * self.__n * __k * self.__kept__

    @staticmethod
    def __s(x: Tensor) -> Tensor:
        return x + 1

    @property
    def __p(self) -> int:
        return 5

    def forward(self, x: Tensor) -> Tensor:
        def __local(y: Tensor) -> Tensor:
            return y * self.__n

        __v = [a + 1 for a in range(3)]
        self.__n += 1
        return self.__s(self.__f(x, 4)) + self.__p + __local(x) + len(__v)


class _Derived(Hidden):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self._Hidden__n  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("cls", [Hidden, _Derived])
def test_modules(cls: Any) -> None:
    eager, x = cls(), torch.randn(3, 2)
    compiled = cls()
    compiled.load_state_dict(eager.state_dict())
    compiled = lt.script(compiled)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), eager(x))


class ClassStyle(lt.ScriptModule):
    def __init__(self) -> None:
        super().__init__()
        self.__w = nn.Parameter(torch.full((2,), 3.0))
        self.__c = 0

    @lt.script_method
    def forward(self, x: Tensor) -> Tensor:
        self.__c = self.__c + 1
        return self.__g(x) + self.__c

    @lt.script_method
    def __g(self, x: Tensor) -> Tensor:
        return x * self.__w


def test_the_class_style() -> None:
    module = ClassStyle()
    assert [module(torch.ones(2))[0].item() for _ in range(2)] == [4.0, 5.0]


class __Plain:
    __times = 4
    scaled = lambda self, x: x * self.__times  # noqa: E731

    def __init__(self, x: Tensor) -> None:
        self.__x = x

    def __doubled(self) -> Tensor:
        return self.__x * 2

    def get(self) -> Tensor:
        return self.__doubled() + self.scaled(self.__x)

    @staticmethod
    def __less(x: Tensor) -> Tensor:
        return x - 1

    @classmethod
    def make(cls, x: Tensor) -> Any:
        return cls(cls.__less(x))


Plain = __Plain


@lt.script
@dataclasses.dataclass
class Row:
    __a: int

    def get(self) -> int:
        return self.__a


def use(x: Tensor) -> Tensor:
    return Plain(x).get() + Plain.make(x).get() + Row(3).get()


def test_plain_and_scripted_classes() -> None:
    x = torch.randn(2)
    torch.testing.assert_close(lt.script(use)(x), use(x))


class ___(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.__n = 3

    def forward(self, x: Tensor) -> Tensor:
        return x * self.__n


def test_a_class_of_underscores_mangles_nothing() -> None:
    assert lt.script(___())(torch.ones(1)).item() == 3
