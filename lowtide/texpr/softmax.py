"""Moves the division of a softmax behind the sum of products with its weights.

In:  sums, and the definitions that they read.
Out: the factors that are weights exp(s - max s) over the axes of a sum; the sum, divided afterwards
     by the total of the weights.

    m[i] = max[j](s[i, j]), e[i, j] = exp(s[i, j] - m[i]), l[i] = sum[j](e[i, j])

    sum[j](e[i, j] / l[i] * v[j, c])  ->  sum[j](e[i, j] * v[j, c]) / l[i]

Attention then reads its scores once. No other factor leaves a sum of floats: `(x / 1000).sum()` is
finite where `x.sum() / 1000` is not. Each e is in [0, 1] and the largest is 1, so l is in [1, n],
or both are NaN. So no NaN or infinity appears or disappears, and nothing underflows. The sum
overflows only if a |v| exceeds the largest float over n, as in PyTorch's fused attention.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Apply, Const, Def, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import Axis, Index, as_index

UNDIVIDED = frozenset(
    {"softmax", "F.softmax", "softmin", "scaled_dot_product_attention", "multi_head_attention"}
)
MOST_STEPS = 8  # views and values between a weight and what it is made of
Defs = Mapping[str, Def]


def with_late_division(expr: Expr, defs: Defs) -> Expr:
    """See the module's text."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node.fn != "sum" or not node.dtype.is_float:
            return None
        numerators, denominators = _factors(node.body, node.axes)
        for k, total in enumerate(denominators):
            rest = [*denominators[:k], *denominators[k + 1 :]]  # it may divide twice
            if any(_adds_up(total, e, node.axes, defs) for e in numerators):
                product = functools.reduce(_product, numerators)
                for e in rest:
                    product = ex.apply("div", (product, e), node.dtype)
                whole = ex.reduce("sum", node.axes, product, node.dtype)
                return ex.apply("div", (whole, total), node.dtype)
        return None

    return Rewriter(visit)(expr)


def with_weights_outside(d: Def, defs: Defs) -> Def:
    """Return a gradient's definition with its weights behind the sums, as eager mode multiplies:

        sum[c](g[i, c] * v[j, c] * e[i, j])  ->  sum[c](g[i, c] * v[j, c]) * e[i, j]

    e is in [0, 1], so nothing vanishes; the sum overflows where eager mode's `g @ v.mT` does. The
    total of the weights is behind the sum, too, for an op whose backward pass in PyTorch has no
    division:

        sum[j](-g[i, j] * (p[i, j] / l[i]))  ->  sum[j](-g[i, j] * p[i, j]) / l[i]
    """

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node.fn != "sum" or not node.dtype.is_float:
            return None
        numerators, denominators = _factors(node.body, node.axes)
        outside = [e for e in numerators if e.free.isdisjoint(node.axes) and _is_weight(e, defs)]
        inside = [e for e in numerators if e not in outside]
        totals = [
            e
            for e in denominators
            if d.op in UNDIVIDED and node.free <= e.free and _is_total(e, defs)
        ]
        if not (outside or totals) or not inside:
            return None
        body = functools.reduce(_product, inside)
        for e in denominators:
            if e not in totals:
                body = ex.apply("div", (body, e), node.dtype)
        whole: Expr = ex.reduce("sum", node.axes, body, node.dtype)
        for e in totals:
            whole = ex.apply("div", (whole, e), node.dtype)
        return functools.reduce(_product, outside, whole)

    return Def(name=d.name, axes=d.axes, expr=Rewriter(visit)(d.expr), loc=d.loc, op=d.op)


def _is_total(e: Expr, defs: Defs) -> bool:
    """Return whether this is the sum of the weights of a softmax, or 1 where that is 0: in [1, n],
    or NaN."""
    made = _made(e, defs, "sum")
    return (
        made is not None
        and len(made.axes) == 1
        and _weight(made.body, made.axes, defs) is made.axes[0]
    )


def _is_weight(e: Expr, defs: Defs) -> bool:
    axes = list(e.free)
    return bool(axes) and _weight(e, axes, defs) is not None


def has_weights(numerators: Sequence[Expr], axes: Collection[Axis], defs: Defs) -> bool:
    """Return whether one of these factors is a weight along one of the axes."""
    return any(_weight(e, axes, defs) is not None for e in numerators)


def _product(a: Expr, b: Expr) -> Expr:
    return ex.apply("mul", (a, b), a.dtype)


def _factors(body: Expr, axes: Collection[Axis]) -> tuple[list[Expr], list[Expr]]:
    """Return the factors of a product, and the divisor, if that is constant along all the axes."""
    if isinstance(body, Apply) and body.fn == "mul":
        parts = [_factors(a, axes) for a in body.args]
        return [e for numerators, _ in parts for e in numerators], [
            e for _, denominators in parts for e in denominators
        ]
    if isinstance(body, Apply) and body.fn == "div" and body.args[1].free.isdisjoint(axes):
        numerators, denominators = _factors(body.args[0], axes)
        return numerators, [*denominators, body.args[1]]
    return [body], []


def _adds_up(total: Expr, e: Expr, axes: Collection[Axis], defs: Defs) -> bool:
    """Return whether `total` is the sum of the weights `e` over one of the axes."""
    axis = _weight(e, axes, defs)
    made = _made(total, defs, "sum")
    if axis is None or made is None or len(made.axes) != 1:
        return False
    return _written_out(_along(made, axis), defs) is _written_out(e, defs)


def _weight(e: Expr, axes: Collection[Axis], defs: Defs) -> Axis | None:
    """Return the axis along which this is exp(s - m), with m the maximum of s along it."""
    e = _written_out(e, defs)
    if not isinstance(e, Apply) or e.fn != "exp":
        return None
    inner = e.args[0]
    if not isinstance(inner, Apply) or inner.fn != "sub":
        return None
    s, m = inner.args
    made = _made(m, defs, "max")
    if made is None or len(made.axes) != 1:
        return None
    s = _written_out(s, defs)
    candidates = (a for a in axes if a in s.free and a.extent is made.axes[0].extent)
    return next((a for a in candidates if _written_out(_along(made, a), defs) is s), None)


def _made(e: Expr, defs: Defs, fn: str) -> Reduce | None:
    """Return the reduction that a load reads, in the axes of the load; a maximum may be 0 where
    infinite, a sum 1 where it is 0."""
    while isinstance(e, Load | Select):
        if isinstance(e, Select):
            if not (_is_zero_if_infinite(e) if fn == "max" else _is_one_if_zero(e)):
                return None
            e = e.no
        elif (d := defs.get(e.source)) is None:
            return None
        else:
            e = at_indices(d.expr, dict(zip(d.axes, e.index, strict=True)))
    return e if isinstance(e, Reduce) and e.fn == fn else None


def _is_zero_if_infinite(e: Select) -> bool:
    test = e.cond
    if not isinstance(test, Apply) or test.fn != "eq" or not isinstance(test.args[1], Const):
        return False
    tested, zero = test.args[0], isinstance(e.yes, Const) and e.yes.value == 0
    of = tested.args[0] if isinstance(tested, Apply) and tested.fn == "abs" else tested
    return zero and of is e.no and math.isinf(test.args[1].value)


def _is_one_if_zero(e: Select) -> bool:
    test, one = e.cond, isinstance(e.yes, Const) and e.yes.value == 1
    if not one or not isinstance(test, Apply) or test.fn != "eq" or test.args[0] is not e.no:
        return False
    return isinstance(test.args[1], Const) and test.args[1].value == 0


def _along(made: Reduce, axis: Axis) -> Expr:
    """Return the body of a reduction, at another axis."""
    places: dict[Axis, Index] = {made.axes[0]: as_index(axis)}
    return at_indices(made.body, places)


def _written_out(e: Expr, defs: Defs) -> Expr:
    """Inline all pointwise values that are read, down to loads from memory and reductions. Two
    forms of one value become the same."""

    def visit(node: Expr) -> Expr | None:
        d = defs.get(node.source) if isinstance(node, Load) else None
        if d is None or not isinstance(node, Load) or isinstance(d.expr, Reduce):
            return None
        if any(isinstance(n, Reduce) for n in ex.walk(d.expr)):
            return None
        return at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))

    for _ in range(MOST_STEPS):
        inner = Rewriter(visit)(e)
        if inner is e:
            return e
        e = inner
    return e
