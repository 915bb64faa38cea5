"""How ints change from step to step of a loop."""

from __future__ import annotations

import pytest

from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.passes.evolution import Evolution, evolution
from lowtide.passes.ir_queries import Makers


class Numbers:
    """Ops on ints, by what makes them."""

    def __init__(self) -> None:
        self.makers: Makers = {}
        self.i, self.n = Value("i", t.INT), Value("n", t.INT)

    def made(self, name: str, *operands: Value | int, **attrs: object) -> Value:
        inputs = [self.made("const", value=v) if isinstance(v, int) else v for v in operands]
        op = Op(name=name, operands=inputs, attrs=dict(attrs), results=[Value("", t.INT)])
        self.makers[op.result] = op
        return op.result

    def of(self, value: Value) -> Evolution:
        return evolution(value, self.i, self.makers)


@pytest.fixture
def x() -> Numbers:
    return Numbers()


def test_sums_and_multiples_of_the_index(x: Numbers) -> None:
    twice = x.made("py.mul", x.i, 2)
    assert x.of(x.made("py.sub", twice, 3)) == Evolution(None, 2, -3)
    assert x.of(x.made("py.sub", 3, twice)) == Evolution(None, -2, 3)
    assert x.of(x.made("py.mul", 2, x.made("py.add", x.i, 5))) == Evolution(None, 2, 10)
    assert x.of(x.made("py.neg", x.made("py.add", 1, x.i))) == Evolution(None, -1, -1)
    assert x.of(x.made("py.sub", twice, x.i)).ahead == 0


def test_one_other_number_may_be_added(x: Numbers) -> None:
    more = x.made("py.add", x.n, x.i)
    assert x.of(x.made("py.sub", more, 1)) == Evolution(x.n, 1, -1)
    assert x.of(x.made("py.sub", x.n, 1)) == Evolution(x.n, 0, -1)
    assert x.of(more).ahead is None


@pytest.mark.parametrize("name", ["py.mul", "py.mod", "py.floordiv"])
def test_what_is_not_known_is_a_base(x: Numbers, name: str) -> None:
    found = x.made(name, x.i, x.i)
    assert x.of(found) == Evolution(found, 0, 0)
    assert x.of(x.made("py.add", found, 1)) == Evolution(found, 0, 1)


def test_differences_of_unknown_numbers_are_not_known(x: Numbers) -> None:
    for found in (x.made("py.sub", 0, x.n), x.made("py.add", x.n, x.n), x.made("py.mul", x.n, 2)):
        assert x.of(found) == Evolution(found, 0, 0)
    true = x.made("const", value=True)
    assert x.of(true).base is true


def test_long_sums_take_no_time(x: Numbers) -> None:
    total = x.i
    for _ in range(100):
        total = x.made("py.add", total, total)
    assert x.of(total) == Evolution(None, 2**100, 0)
