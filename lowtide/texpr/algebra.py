"""Local rewrites of expressions: constants folded, neutral elements dropped, short sums unrolled.

In, out: an expression with the same value, bit for bit. Only unrolled sums round differently: `fma`
does not round the product by itself. docs/decisions/rewrites.md lists what rewrites may change.

    sum[c:2](mul(a[i, c], b[j, c]))  ->  fma(a[i,1], b[j,1], mul(a[i,0], b[j,0]))
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lowtide.texpr import expr as ex
from lowtide.texpr.conditions import holds, with_free_remainders
from lowtide.texpr.expr import Apply, At, Cast, Const, Expr, Reduce, Rewriter, Select
from lowtide.texpr.index import Atom, Axis, Index, as_index, deep_atoms, numbered

UNROLL_EXTENT = 8  # reductions at most this long, over constants, are written out …
UNROLL_WORK = 64  # … if that takes at most this many operations

_FUNCTION = 8
_ARITHMETIC = frozenset({"add", "sub", "mul", "fma", "neg", "abs", "minimum", "maximum"})

_FOLD: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "abs": operator.abs,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_NEUTRAL_RIGHT = {("mul", 1), ("div", 1)}
_NEUTRAL_LEFT = {("mul", 1)}
COMBINE = {
    "sum": "add",
    "prod": "mul",
    "min": "minimum",
    "max": "maximum",
    "any": "or",
    "all": "and",
}


def identity(fn: str, dtype: ex.DType) -> float | int | bool:
    """Return the value with which a reduction starts."""
    if fn == "sum":
        return 0
    if fn == "prod":
        return 1
    if fn in ("any", "all"):
        return fn == "all"
    low = fn in ("max", "argmax")
    if dtype.is_float:
        return -math.inf if low else math.inf
    bits = dtype.itemsize * 8 - dtype.is_signed
    if dtype.name == "bool":
        return not low
    return (-(1 << bits) if dtype.is_signed else 0) if low else (1 << bits) - 1


def simplify(expr: Expr) -> Expr:
    """Return the expression after all local rules, applied bottom up."""
    return Rewriter(_rule)(expr)


def _rule(node: Expr) -> Expr | None:
    if isinstance(node, Apply):
        return _apply(node)
    if isinstance(node, Select):
        if isinstance(node.cond, Const):
            return node.yes if node.cond.value else node.no
        if node.yes is node.no:
            return node.yes
        found = holds(node.cond)
        return with_free_remainders(node) if found is None else node.yes if found else node.no
    if isinstance(node, Cast):
        return _cast(node)
    if isinstance(node, At) and (value := node.index.const) is not None:
        return ex.const(value, node.dtype)
    if isinstance(node, Reduce):
        return _reduce(node)
    return None


def _apply(node: Apply) -> Expr | None:
    """Constants folded as their dtype computes: ints wrap around, floats are rounded after each
    operation. `x * 1` and `x / 1` are x, NaN and -0 too; `x + 0` only of ints, for -0 + 0 is 0."""
    if all(isinstance(a, Const) for a in node.args) and node.fn in _FOLD:
        value = _FOLD[node.fn](*(a.value for a in node.args if isinstance(a, Const)))
        return ex.const(value, node.dtype)  # wraps, or rounds, as the dtype does
    if len(node.args) == 2:
        left, right = node.args
        if isinstance(right, Const) and (node.fn, right.value) in _NEUTRAL_RIGHT:
            return left
        if isinstance(left, Const) and (node.fn, left.value) in _NEUTRAL_LEFT:
            return right
        if not node.dtype.is_float and node.fn == "add":
            if isinstance(right, Const) and right.value == 0:
                return left
            if isinstance(left, Const) and left.value == 0:
                return right
    return None


def _cast(node: Cast) -> Expr | None:
    """Constants cast as the kernel would, and casts through a dtype that loses nothing left out."""
    arg = node.arg
    if isinstance(arg, Const):
        if node.dtype.is_float:
            exact = arg.dtype.is_float or abs(arg.value) <= 2**53  # else it would be rounded twice
            return ex.const(arg.value, node.dtype) if exact else None
        if not arg.dtype.is_float or node.dtype.name == "bool":
            return ex.const(arg.value, node.dtype)
    if isinstance(arg, Cast) and _widens(arg.arg.dtype, arg.dtype):
        return ex.cast(arg.arg, node.dtype)
    return None


def _widens(small: ex.DType, large: ex.DType) -> bool:
    """Return whether the larger dtype can hold every value of the smaller one."""
    if small.name == "bool":
        return True
    if small.is_float != large.is_float:
        return False
    return (small.name, large.name) in {
        ("bf16", "f32"), ("f16", "f32"), ("bf16", "f64"), ("f16", "f64"), ("f32", "f64"),
        ("i32", "i64"), ("u8", "i64"), ("u8", "i32"),
    }  # fmt: skip


# ---- reductions -----------------------------------------------------------------------------


def _reduce(node: Reduce) -> Expr | None:
    if node.fn in ("argmin", "argmax"):
        return None
    return _unroll(node)


def _unroll(node: Reduce) -> Expr | None:
    """Return the sum of unrolled terms. For floats, the kernel chooses the order of addition."""
    extents = [a.extent.const for a in node.axes]
    known = [e for e in extents if e is not None]
    if len(known) < len(extents):
        small = [a for a in node.axes if a.extent.const is not None and a.extent.const <= 4]
        # Only where terms get simpler by it: else the sum has its axes as memory has them.
        if not small or not _is_chosen_by(node.body, small) or slides(node):
            return None
        rest = tuple(a for a in node.axes if a not in small)
        inner = _unroll(ex.reduce(node.fn, small, node.body, node.dtype))
        return None if inner is None else ex.reduce(node.fn, rest, inner, node.dtype)
    count = math.prod(known)
    if count > UNROLL_EXTENT or (count > 1 and count * work(node.body) > UNROLL_WORK):
        return None
    if count == 0:
        return ex.const(identity(node.fn, node.dtype), node.dtype)
    terms = [
        simplify(at_indices(node.body, dict(zip(node.axes, map(as_index, point), strict=True))))
        for point in itertools.product(*(range(e) for e in known))
    ]
    return _combined(node.fn, terms)


def _is_chosen_by(body: Expr, axes: Sequence[Axis]) -> bool:
    """Return whether a condition depends on one of the axes, as where tensors were stacked along
    it."""
    conditions = (n.cond for n in ex.walk(body) if isinstance(n, Select))
    return any(not cond.free.isdisjoint(axes) for cond in conditions)


def slides(node: Reduce) -> bool:
    """Return whether the node is a sum of products of which a factor is read in windows. Such a sum
    stays whole, because its points share what they read."""
    body = node.body
    while isinstance(body, Select):
        body = body.yes
    if node.fn != "sum" or not isinstance(body, Apply) or body.fn != "mul":
        return False
    return any(is_windowed(e, node.axes) for e in ex.loads(body))


def is_windowed(e: Expr, reduced: Sequence[Axis]) -> bool:
    """Return whether an index of `e` depends both on an axis of `reduced` and on another axis."""
    for i in ex.indices(e):
        axes = {a for a in deep_atoms(i) if isinstance(a, Axis)}
        if axes.intersection(reduced) and axes.difference(reduced):
            return True
    return False


def work(body: Expr) -> int:
    """Operations, a choice or a function that is no arithmetic counted for more."""
    return sum(
        1 if isinstance(n, Apply) and n.fn in _ARITHMETIC else _FUNCTION
        for n in ex.walk(body)
        if isinstance(n, Apply | Select)
    )


def _combined(fn: str, terms: Sequence[Expr]) -> Expr:
    """Return the terms combined one after another. For float sums, `fma` adds a product without
    rounding it."""
    total = terms[0]
    for term in terms[1:]:
        if fn == "sum" and term.dtype.is_float and isinstance(term, Apply) and term.fn == "mul":
            total = ex.apply("fma", (*term.args, total), total.dtype)
        else:
            total = ex.apply(COMBINE[fn], (total, term), total.dtype)
    return total


def at_indices(expr: Expr, values: dict[Axis, Index]) -> Expr:
    """Return the expression with axes replaced by indices."""
    lookup: dict[Atom, Index] = dict(values.items())
    return Rewriter(atoms=lookup)(expr)


def over_numbers(e: Expr, axes: Sequence[Axis]) -> Expr:
    """Return the expression over axes that depend only on their order and extent."""
    return at_indices(e, {a: as_index(numbered(k, a.extent)) for k, a in enumerate(axes)})


def factors(e: Expr) -> Iterator[Expr]:
    """Yield the factors of a product of floats."""
    if isinstance(e, Apply) and e.fn == "mul" and e.dtype.is_float:
        for a in e.args:
            yield from factors(a)
    else:
        yield e
