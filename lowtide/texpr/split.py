"""Axes that are only used cut in two become two axes, so that no index divides.

In, out: definitions in normal form, with the names that must keep their elements' order in memory
(an axis cut in two lies there as before).

    t[o, l:H*W] = sum[k:9](w[o, k] * x[l // W + k // 3, l % W + k % 3])
    ->
    t[o, i:H, j:W] = sum[p:3, q:3](w[o, 3*p + q] * x[i + p, j + q])

Always: a load that was at plain axes stays so, or the axis stays whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.halves import divisors, halves, joined
from lowtide.texpr.index import Axis, Index, floordiv, mod, the_axis

WIDTH = 16  # what is only computed, not summed up, is cut into lines of at least so many elements
_SUMMED = ("sum", "prod", "min", "max", "any", "all")


def split_axes(defs: list[Def]) -> list[Def]:
    """The definitions with axes cut where that leaves no division of them."""
    whole: set[str] = set()  # definitions whose own axes are left alone
    while True:
        cut: dict[str, dict[int, Index]] = {}
        result = [_cut_def(d, cut, whole) for d in defs]
        wrong = {load.source for d in result for load in ex.loads(d.expr)
                 if load.source in cut and not _plain(load)}  # fmt: skip
        if not wrong:
            return result
        whole |= wrong


def _plain(load: Load) -> bool:
    axes = [the_axis(i) for i in load.index if i.const is None]
    return None not in axes and len(set(axes)) == len(axes)


def _cut_def(d: Def, cut: dict[str, dict[int, Index]], whole: set[str]) -> Def:
    expr = _reading(d.expr, cut)
    if isinstance(expr, Reduce) and expr.fn in _SUMMED:
        expr = _cut_reduced(expr)
    axes = list(d.axes)
    k = 0
    while k < len(axes) and d.name not in whole:
        pair = _cut_of(expr, axes[k], 2 if isinstance(expr, Reduce) else WIDTH)
        if pair is not None and d.name not in cut:
            expr = at_indices(expr, {axes[k]: joined(pair)})
            axes[k : k + 1] = pair
            cut[d.name] = {k: pair[1].extent}
            k += 1
        k += 1
    return Def(name=d.name, axes=tuple(axes), expr=expr, loc=d.loc, op=d.op)


def _reading(expr: Expr, cut: Mapping[str, Mapping[int, Index]]) -> Expr:
    """Loads of definitions that were cut, by both coordinates."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in cut:
            return None
        index: list[Index] = []
        for k, i in enumerate(node.index):
            by = cut[node.source].get(k)
            index.extend([i] if by is None else [floordiv(i, by), mod(i, by)])
        return ex.load(node.source, index, node.dtype)

    return Rewriter(visit)(expr) if cut else expr


def _cut_reduced(e: Reduce) -> Reduce:
    for a in e.axes:
        pair = _cut_of(e.body, a, 2)
        if pair is not None:
            body = at_indices(e.body, {a: joined(pair)})
            axes = [x for b in e.axes for x in (pair if b is a else (b,))]
            return _cut_reduced(ex.reduce(e.fn, axes, body, e.dtype))
    return e


def _cut_of(e: Expr, a: Axis, least: int) -> tuple[Axis, Axis] | None:
    """The two axes that it is cut into everywhere, if it is."""
    for by in _divisors(e, a):
        if by is a.extent or (by.const is not None and by.const < least):
            continue
        pair = halves(a, by)
        if pair is not None and not _divisors(at_indices(e, {a: joined(pair)}), pair[1]):
            return pair
    return None


def _divisors(e: Expr, a: Axis) -> list[Index]:
    return divisors((i for node in ex.walk(e) for i in ex.indices(node)), a)
