"""Attributes and items of objects from outside are what Python finds when it gets there."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Meter:
    """Some of its attributes are computed, each time."""

    def __init__(self) -> None:
        self.n = 1
        self.weight = torch.ones(2)

    @property
    def doubled(self) -> int:
        return self.n * 2

    @property
    def count(self) -> int:
        self.n += 1
        return self.n

    @property
    def copied(self) -> Meter:
        made = Meter()
        made.n = self.n
        return made

    @property
    def scaled(self) -> Tensor:
        return self.weight * 2

    @functools.cached_property
    def kept(self) -> int:
        return self.n

    def __getattr__(self, name: str) -> Any:
        if name == "made":
            return types.SimpleNamespace(n=self.n)
        raise AttributeError(name)


METER = Meter()


def doubled(x: Tensor) -> Tensor:
    return x + METER.doubled


def count(x: Tensor) -> Tensor:
    return x + METER.count * 10 + METER.count


def count_by_name(x: Tensor) -> Tensor:
    return x + getattr(METER, "count")  # noqa: B009


def copied(x: Tensor) -> Tensor:
    return x + METER.copied.n


def scaled(x: Tensor) -> Tensor:
    return x + METER.scaled


def kept(x: Tensor) -> Tensor:
    return x + METER.kept


def made_anew(x: Tensor) -> Tensor:
    return x + METER.made.n


@pytest.mark.parametrize("fn", [doubled, count, count_by_name, copied, scaled, kept, made_anew])
def test_a_property_is_computed_at_each_read(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(call: Any) -> list[Tensor]:
        meter = Meter()
        monkeypatch.setitem(globals(), "METER", meter)
        found = [call(torch.ones(2)), call(torch.ones(2))]
        meter.n, meter.weight = 5, torch.zeros(2)
        found += [call(torch.ones(2)), call(torch.ones(2))]
        meter.__dict__["kept"] = 50
        return [*found, call(torch.ones(2))]

    wanted, got = run(fn), run(lt.script(fn))
    assert [w.tolist() for w in wanted] == [g.tolist() for g in got]


class Bag:
    pass


BAG = Bag()
SPACE = types.SimpleNamespace()
MODULE = types.ModuleType("settings")


def has_it(x: Tensor) -> Tensor:
    return x + 1 if hasattr(BAG, "z") else x


def has_it_in_a_space(x: Tensor) -> Tensor:
    return x + 1 if hasattr(SPACE, "z") else x


def gets_it(x: Tensor) -> Tensor:
    return x + getattr(BAG, "z", 5)


def gets_it_from_a_module(x: Tensor) -> Tensor:
    return x + getattr(MODULE, "z", 5)


def gets_none(x: Tensor) -> Tensor:
    z = getattr(BAG, "z", None)
    return x if z is None else x + z


@pytest.mark.parametrize(
    ("fn", "holder"),
    [
        *((has_it, BAG), (has_it, Bag), (has_it_in_a_space, SPACE)),
        *((gets_it, BAG), (gets_none, BAG), (gets_it_from_a_module, MODULE)),
    ],
)
def test_attributes_that_come_and_go(fn: Callable[..., Tensor], holder: Any) -> None:
    made = lt.script(fn)
    x = torch.ones(2)
    for value in (None, 7, 8, None, 2, None):
        if value is not None:
            holder.z = value
        elif hasattr(holder, "z"):
            del holder.z
        assert torch.equal(made(x), fn(x))


ARRAY = np.array([1.0, 2.0])


class Holds:
    array = ARRAY


HOLDS = Holds()


def item(x: Tensor) -> Tensor:
    return x * ARRAY[0]


def as_float(x: Tensor) -> Tensor:
    return x * float(ARRAY[0])


def branch(x: Tensor) -> Tensor:
    return x + 1 if ARRAY[0] > 0.5 else x


def of_attribute(x: Tensor) -> Tensor:
    return x * HOLDS.array[0]


@pytest.mark.parametrize("fn", [item, as_float, branch, of_attribute])
def test_items_of_arrays_are_read(fn: Callable[..., Tensor]) -> None:
    made = lt.script(fn)
    x = torch.ones(2, dtype=torch.float64)
    for value in (1.0, 0.25, 3.0):
        ARRAY[0] = value
        assert torch.equal(made(x), fn(x))


class Kind:
    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kind) and self.name == other.name

    def __hash__(self) -> int:
        return 0


KIND, WANTED = Kind("a"), Kind("a")


def equal(x: Tensor) -> Tensor:
    return x + 1 if KIND == WANTED else x


def test_objects_are_compared_as_their_class_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = lt.script(equal), torch.ones(2)
    assert torch.equal(made(x), x + 1)
    monkeypatch.setattr(WANTED, "name", "b")
    assert torch.equal(made(x), x)


class Config:
    scale: float = 1.0
    shift = 1.0


def is_float(x: Tensor, c: Config) -> Tensor:
    return x + 1 if isinstance(c.scale, float) else x


def is_int(x: Tensor, c: Config) -> Tensor:
    return x + 1 if isinstance(c.shift, int) else x


def is_exactly(x: Tensor, c: Config) -> Tensor:
    return x + 1 if type(c.scale) is float else x


@pytest.mark.parametrize("fn", [is_float, is_int, is_exactly])
def test_an_int_may_stand_where_a_float_is_declared(fn: Callable[..., Tensor]) -> None:
    made = lt.script(fn)
    x, c = torch.ones(2), Config()
    for value in (1.0, 2, 3.0):
        c.scale = c.shift = value
        assert torch.equal(made(x, c), fn(x, c))
    c.scale = c.shift = "text"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="where the program reads float"):
        made(x, c)


def is_none(x: Tensor, c: Config) -> Tensor:
    return x + 1 if c.scale is None else x  # pyright: ignore[reportUnnecessaryComparison]


def test_none_where_a_float_is_declared_is_refused() -> None:
    made, x, c = lt.script(is_none), torch.ones(2), Config()
    assert torch.equal(made(x, c), x)
    c.scale = None  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="where the program reads float"):
        made(x, c)


class Point:
    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x + 1

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x + 1

    def __add__(self, x: Tensor) -> Tensor:
        return x + 1

    def __call__(self, x: Tensor) -> Tensor:
        return x + 1


def uses_point(x: Tensor, p: Point) -> Tensor:
    return p.static(x) + p.of_class(x) + (p + x) + p(x)


def far(x: Tensor) -> Tensor:
    return x + 9


def far_method(_: object, x: Tensor) -> Tensor:
    return x + 9


@pytest.mark.parametrize("name", ["static", "of_class", "__add__", "__call__"])
def test_members_of_classes_that_are_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, x, p = lt.script(uses_point), torch.ones(2), Point()
    assert torch.equal(made(x, p), uses_point(x, p))
    others: dict[str, Any] = {"static": staticmethod(far), "of_class": classmethod(far_method)}
    monkeypatch.setattr(Point, name, others.get(name, far_method))
    assert torch.equal(made(x, p), uses_point(x, p))


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.point = Point()

    def forward(self, x: Tensor) -> Tensor:
        return self.point.static(x)


def calls_point(x: Tensor, p: Point) -> Tensor:
    return p.static(x) + p.of_class(x)


def test_an_object_with_a_method_of_its_own() -> None:
    made, x, p = lt.script(calls_point), torch.ones(2), Point()
    assert torch.equal(made(x, p), calls_point(x, p))
    p.static = far  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(made(x, p), calls_point(x, p))
    assert "a 'static' of its own" in str(made.explain(x, p))
    assert torch.equal(made(x, Point()), calls_point(x, Point()))
    m = Holder()
    compiled = lt.script(m)
    assert torch.equal(compiled(x), m(x))
    m.point.static = far  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(compiled(x), m(x))
