"""A loaded program is given values of the caller's own classes."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import pytest
import torch
from roundtrip import through_file
from torch import Tensor, nn

import lowtide as lt

X = torch.ones(2)


class Pair(NamedTuple):
    a: Tensor
    b: int = 3


class Pairs(NamedTuple):
    first: Pair
    rest: list[Pair]


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Right(enum.Flag):
    READ = 1
    WRITE = 2


def swapped(p: Pair) -> Pair:
    return Pair(p.a + p.b, p.b * 2)


def nested(q: Pairs) -> Pairs:
    total = q.first.a
    for p in q.rest:
        total = total + p.a
    return Pairs(Pair(total, 1), [q.first])


def optional(p: Optional[Pair] = None) -> Tensor:  # noqa: UP045
    return torch.zeros(2) if p is None else p.a


def asked(p: Any) -> tuple[bool, bool]:
    return isinstance(p, Pair), isinstance(p, Mode)


def one_of(p: Union[Pair, Tensor]) -> Tensor:  # noqa: UP007
    return p.a + p.b if isinstance(p, Pair) else p


def compared(p: Pair, m: Any) -> tuple[bool, bool, bool]:
    return p.b == 2, m == Mode.FAST, m is Mode.EXACT


def in_a_tuple(p: tuple[Mode, Pair]) -> Tensor:
    return p[1].a if p[0] == Mode.FAST else p[1].a * p[1].b


def flags(r: Right) -> bool:
    return Right.READ in r


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(torch.ones(2), 4)

    def forward(self, p: Pair, mode: Mode = Mode.FAST) -> tuple[Tensor, Pair]:
        x = p.a + self.pair.a * self.pair.b
        return x if mode == Mode.FAST else x * 2, self.pair


CALLS: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (swapped, (Pair(X, 2),)),
    (swapped, (Pair(X),)),
    (nested, (Pairs(Pair(X), [Pair(X, 1)]),)),
    (optional, (Pair(X),)),
    (asked, (Pair(X),)),
    (asked, (Mode.FAST,)),
    (asked, (X,)),
    (one_of, (Pair(X),)),
    (one_of, (X,)),
    (compared, (Pair(X, 2), Mode.FAST)),
    (compared, (Pair(X, 1), Mode.EXACT)),
    (in_a_tuple, ((Mode.EXACT, Pair(X)),)),
    (flags, (Right.READ | Right.WRITE,)),
    (Holds(), (Pair(X, 2),)),
    (Holds(), (Pair(X, 2), Mode.EXACT)),
]


@pytest.mark.parametrize(("f", "args"), CALLS)
def test_the_same_as_in_python(f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    loaded = through_file(lt.script(f))
    assert str(loaded(*args)) == str(f(*args))  # the classes are of one name, not the same


def test_results_are_arguments_again() -> None:
    loaded = through_file(lt.script(swapped))
    first = loaded(Pair(X, 2))
    assert str(loaded(first)) == str(swapped(swapped(Pair(X, 2))))
    assert type(loaded(first)) is type(first)
    assert first._asdict().keys() == {"a", "b"}


def test_an_attribute_of_the_users_class() -> None:
    plain, loaded = Holds(), through_file(lt.script(Holds()))
    for pair in (Pair(X * 7, 1), Pair(X * 5, 2)):
        loaded.pair = plain.pair = pair
        assert str(loaded(Pair(X))) == str(plain(Pair(X)))


def test_another_class_of_that_name() -> None:
    class Other(NamedTuple):
        b: int
        a: Tensor

    Other.__name__ = "Pair"
    with pytest.raises(TypeError, match="was saved for"):
        through_file(lt.script(swapped))(Other(2, X))


class Way(enum.Enum):
    AHEAD = 1
    BACK = 2


class Extent(NamedTuple):
    low: float
    high: float


@dataclasses.dataclass
class Setting:
    scale: float = 1.0


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.way, self.extent, self.setting = Way.AHEAD, Extent(0.0, 1.0), Setting()

    def forward(self, x: Tensor) -> Tensor:
        x = x.clamp(self.extent.low, self.extent.high) * self.setting.scale
        return x if self.way is Way.AHEAD else -x


def test_attributes_of_a_loaded_module_take_the_callers_enums_and_named_tuples() -> None:
    loaded: Any = through_file(lt.script(Stateful()))
    x = torch.tensor([-1.0, 3.0])
    assert loaded(x).tolist() == [0.0, 1.0]
    loaded.way, loaded.extent = Way.BACK, Extent(-2.0, 2.0)
    assert loaded(x).tolist() == [1.0, -2.0]
    with pytest.raises(TypeError, match="which is not this Setting"):
        loaded.setting = Setting(2.0)
    loaded.setting.scale = 2.0
    assert loaded(x).tolist() == [2.0, -4.0]
    assert through_file(loaded)(x).tolist() == [2.0, -4.0]


def test_an_object_that_was_given_an_attribute_after_loading_keeps_it_in_the_next_file() -> None:
    loaded: Any = through_file(lt.script(Stateful()))
    loaded.setting.note, loaded.setting.weights = "new", [torch.ones(1)]
    again: Any = through_file(loaded)
    assert again(torch.ones(1)) == 1
    assert again.setting.note == "new"
    assert torch.equal(again.setting.weights[0], torch.ones(1))
