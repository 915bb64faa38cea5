"""Numbers and bools that differ between the iterations of a lifted loop, as expressions.

In: abstract values in which the axis of such a loop is free. Out: expressions that kernels compute.

    i < j           ge(at(j - i - 1), 0)                        a bool
    abs(i - j)      select(ge(at(i - j), 0), at(i - j), at(j - i))      an int that is no polynomial
    i / 2 + 0.5     add(div(at(i), 2), 0.5)                     a float, in double precision
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lowtide.ir import dtypes
from lowtide.ir import types as t
from lowtide.ir.core import Op
from lowtide.specialise.abstract import Abs
from lowtide.texpr import bounds
from lowtide.texpr import expr as ex
from lowtide.texpr.build import COMPARISONS, Unsupported, varies
from lowtide.texpr.conditions import joined, sides
from lowtide.texpr.expr import Apply, Expr
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import nonnegative

_TRUE: Final = ex.const(True, dtypes.boolean)


def has_axis(x: Abs) -> bool:
    """Return whether the number differs between iterations."""
    if isinstance(x.value, Index):
        return varies(x.value)
    return isinstance(x.value, Expr) and bool(x.value.free)


# ---- truths -----------------------------------------------------------------------------------


def truth(x: Abs) -> Expr | None:
    """Return the value as a bool that kernels compute, or None."""
    if isinstance(x.value, bool):
        return ex.const(x.value, dtypes.boolean)
    is_truth = isinstance(x.value, Expr) and x.value.dtype is dtypes.boolean
    return x.value if is_truth and isinstance(x.value, Expr) else None


def _integer(x: Abs) -> Expr | None:
    if isinstance(x.value, int | Index) and not isinstance(x.value, bool):
        return _at(as_index(x.value))
    is_int = isinstance(x.value, Expr) and x.value.dtype is dtypes.i64
    return x.value if is_int and isinstance(x.value, Expr) else None


def of_integers(fn: str, *operands: Abs) -> Abs | None:
    """Return a function of ints, one of which is no polynomial; None if all are."""
    args = [_integer(x) for x in operands]
    known = [x for x in args if x is not None]
    if len(known) < len(args) or not any(isinstance(x.value, Expr) for x in operands):
        return None
    dtype = dtypes.boolean if fn in COMPARISONS else dtypes.i64
    return Abs(ex.apply(fn, known, dtype))


def absolute(index: Index) -> Abs | None:
    """abs(index); None where that is no matter of iterations."""
    cond = not_negative(index)
    return None if cond is None else chosen(_truth_of(cond), Abs(index), Abs(-index))


def extremum(a: Index, b: Index, sign: int, ask: bounds.Ask) -> Abs | None:
    """Return the larger of two ints, the smaller where `sign` is -1; None as for the others."""
    if varies(a - b):
        found = (bounds.larger if sign > 0 else bounds.smaller)(a, b, ask)
        if found is not None:
            return Abs(found if found.const is None else found.const)
    cond = not_negative((a - b) * sign)
    return None if cond is None else chosen(_truth_of(cond), Abs(a), Abs(b))


def _truth_of(x: Abs) -> Expr:
    assert isinstance(x.value, Expr)
    return x.value


def not_negative(index: Index) -> Abs | None:
    """Return index >= 0 as a value per iteration; None if it does not depend on the iteration."""
    return Abs(_at_least_0(index)) if varies(index) else None


def within(index: Index, count: Index) -> Expr:
    """0 <= index < count."""
    return _at_least_0(index, count - index - 1)


def equal(a: Index, b: Index) -> Abs | None:
    """Return a == b as a value per iteration; None if it does not depend on the iteration."""
    if not varies(a - b):
        return None
    return Abs(ex.apply("eq", (_at(a), _at(b)), dtypes.boolean))


def negated(cond: Expr) -> Expr:
    """Return the negated bool."""
    found = sides(cond, "ge")
    if found is not None:
        return _at_least_0(found[1] - found[0] - 1)
    if isinstance(cond, Apply) and cond.fn == "not":
        return cond.args[0]
    return ex.apply("not", (cond,), dtypes.boolean)


def _at_least_0(*indices: Index) -> Expr:
    zero = _at(as_index(0))
    checked = [i for index in indices for i in bounds.parts(index) if not nonnegative(i)]
    return joined([ex.apply("ge", (_at(i), zero), dtypes.boolean) for i in checked]) or _TRUE


def _at(index: Index) -> Expr:
    return ex.at(index, dtypes.i64)


def chosen(cond: Expr, yes: Abs, no: Abs) -> Abs | None:
    """Return one of two numbers or bools, chosen per iteration; None if kernels cannot choose."""
    a, b = truth(yes), truth(no)
    if a is not None and b is not None:
        return Abs(_both_or_either(cond, a, b))
    for kind in (_integer, _float):
        a, b = kind(yes), kind(no)
        if a is not None and b is not None:
            return Abs(ex.select(cond, a, b))
    return None


def _both_or_either(cond: Expr, yes: Expr, no: Expr) -> Expr:
    """Return `a and b`, `a or b`, as conditions are otherwise written."""
    true, false = (ex.const(v, dtypes.boolean) for v in (True, False))
    yes, no = true if yes is cond else yes, false if no is cond else no
    if no is false:
        return cond if yes is true else ex.apply("and", (cond, yes), dtypes.boolean)
    if yes is true:
        return ex.apply("or", (cond, no), dtypes.boolean)
    if yes is false:
        other = negated(cond)
        return other if no is true else ex.apply("and", (other, no), dtypes.boolean)
    return ex.select(cond, yes, no)


# ---- floats -----------------------------------------------------------------------------------

_FLOATS: Final = {
    "py.add": "add", "py.sub": "sub", "py.mul": "mul", "py.truediv": "div", "py.neg": "neg",
    "torchscript.truediv": "div",
}  # fmt: skip


def by_kernels(
    op: Op, operands: Sequence[Abs], decide: Callable[[Index], bool | None]
) -> Abs | None:
    """Return a float that depends on the index of a loop; None if there is no kernel for it. Python
    and the kernels compute it in double precision. `decide`: returns whether an index is >= 0."""
    fn = _FLOATS.get(op.name)
    if fn is None or op.result.type != t.FLOAT:
        return None
    if fn == "div" and not _is_not_zero(operands[1], decide):
        raise Unsupported("may divide by zero in some iteration")
    args = [_as_double(x) for x in operands]
    known = [x for x in args if x is not None]
    return Abs(ex.apply(fn, known, dtypes.f64)) if len(known) == len(args) else None


def _is_not_zero(x: Abs, decide: Callable[[Index], bool | None]) -> bool:
    if isinstance(x.value, Index):
        return bool(decide(x.value - 1) or decide(-x.value - 1))
    return isinstance(x.value, int | float) and x.value != 0


def _float(x: Abs) -> Expr | None:
    is_float = isinstance(x.value, float) or (isinstance(x.value, Expr) and x.value.dtype.is_float)
    return _as_double(x) if is_float else None


def _as_double(x: Abs) -> Expr | None:
    if isinstance(x.value, Expr):
        return ex.cast(x.value, dtypes.f64)
    if isinstance(x.value, float):
        return ex.const(x.value, dtypes.f64)
    if isinstance(x.value, int | Index):
        return ex.cast(_at(as_index(x.value)), dtypes.f64)
    return None
