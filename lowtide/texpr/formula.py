"""Expressions with Python's operators, for writing derivatives.

In: expressions of one dtype, Python numbers. Out: expressions; `x * 1` and `x + 0` are not built.

    F(g) * F(b)  ->  mul(g, b)          F(a).fn("exp")  ->  exp(a)
"""

from __future__ import annotations

from collections.abc import Sequence

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Const, Expr
from lowtide.texpr.index import Index

Number = float | int


class F:
    """An expression with operators. Python numbers become constants of its dtype."""

    __slots__ = ("e",)

    def __init__(self, e: Expr) -> None:
        self.e = e

    def like(self, value: F | Number) -> F:
        return value if isinstance(value, F) else F(ex.const(value, self.e.dtype))

    def fn(self, name: str, *others: F | Number) -> F:
        """Return the pointwise function `name` of this expression and others."""
        return F(ex.apply(name, [self.e, *(self.like(o).e for o in others)], self.e.dtype))

    def test(self, name: str, *others: F | Number) -> F:
        """Return a comparison, or a test such as isnan, as a bool."""
        args = [self.e, *(self.like(o).e for o in others)]
        return F(ex.apply(name, args, dtypes.boolean))

    def where(self, yes: F, no: F | Number) -> F:
        """Return `yes` where this bool holds, else `no`."""
        return F(ex.select(self.e, yes.e, yes.like(no).e))

    def or_zero(self, value: F) -> F:
        """Return the value where this bool holds, else 0."""
        return value if is_number(value.e, 0) else self.where(value, 0)

    def __add__(self, o: F | Number) -> F:
        other = self.like(o)
        if is_number(other.e, 0):
            return self
        return other if is_number(self.e, 0) else self.fn("add", other)

    def __sub__(self, o: F | Number) -> F:
        return self.fn("sub", o)

    def __mul__(self, o: F | Number) -> F:
        other = self.like(o)
        if is_number(other.e, 1):
            return self
        return other if is_number(self.e, 1) else self.fn("mul", other)

    def __truediv__(self, o: F | Number) -> F:
        return self.fn("div", o)

    def __neg__(self) -> F:
        return self.fn("neg")

    def __rsub__(self, o: Number) -> F:
        return self.like(o) - self

    def __rtruediv__(self, o: Number) -> F:
        return self.like(o) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def __lt__(self, o: F | Number) -> F:
        return self.test("lt", o)

    def __le__(self, o: F | Number) -> F:
        return self.test("le", o)

    def __gt__(self, o: F | Number) -> F:
        return self.test("gt", o)

    def __ge__(self, o: F | Number) -> F:
        return self.test("ge", o)

    def equals(self, o: F | Number) -> F:
        return self.test("eq", o)

    def __and__(self, o: F) -> F:
        return self.fn("and", o)

    def __or__(self, o: F) -> F:
        return self.fn("or", o)


def is_number(e: Expr, value: Number) -> bool:
    """Return whether the expression is this constant."""
    return isinstance(e, Const) and e.value == value and not isinstance(e.value, bool)


def place(index: Index) -> F:
    """Return an index as an i64 value."""
    return F(ex.at(index, dtypes.i64))


def all_of(conditions: Sequence[F]) -> F | None:
    """Return the conjunction; None without conditions."""
    total: F | None = None
    for c in conditions:
        total = c if total is None else total & c
    return total
