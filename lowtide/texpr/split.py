"""Splits axes that occur only divided (l // W, l % W), so that no index divides.

In, out: definitions in normal form. The order of elements in memory stays.

    t[o, l:H*W] = sum[k:9](w[o, k] * x[l // W + k // 3, l % W + k % 3])
    ->
    t[o, i:H, j:W] = sum[p:3, q:3](w[o, 3*p + q] * x[i + p, j + q])

Invariant: loads of a split definition are indexed by plain, distinct axes; otherwise the axis is
split into fewer parts, or not. A load at 9*c + 3*p + q becomes one at [c, p, q].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.conditions import in_lowest_terms
from lowtide.texpr.expr import Apply, Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Axis, Index, the_axis
from lowtide.texpr.index_ranges import floordiv, mod
from lowtide.texpr.split_axis import divisors, joined, split_axis

WIDTH = 16  # least constant extent of the inner axis in a pointwise definition
MOST = 4  # axes that one axis is split into
SUMMED = ("sum", "prod", "min", "max", "any", "all")


Cuts = dict[int, list[Axis]]  # the axes that replace an axis of a definition, by its position


def split_axes(defs: list[Def]) -> list[Def]:
    """Return the definitions with axes split that occur only divided."""
    most: dict[str, int] = {}  # by definition: into how many axes one of its axes may be split
    while True:
        cut: dict[str, Cuts] = {}
        result = [_cut_def(d, cut, most.get(d.name, MOST)) for d in defs]
        wrong = {load.source for d in result for load in ex.loads(d.expr)
                 if load.source in cut and not _plain(load)}  # fmt: skip
        if not wrong:
            return result
        most |= {name: max(map(len, cut[name].values())) - 1 for name in wrong}


def _plain(load: Load) -> bool:
    axes = [the_axis(i) for i in load.index if i.const is None]
    return None not in axes and len(set(axes)) == len(axes)


def _cut_def(d: Def, cut: dict[str, Cuts], most: int) -> Def:
    expr = _reading(d.expr, cut)
    if isinstance(expr, Reduce) and expr.fn in SUMMED:
        expr = _cut_reduced(expr)
    least = 2 if isinstance(expr, Reduce) else WIDTH
    axes: list[Axis] = []
    for k, a in enumerate(d.axes):
        parts = [a]
        while len(parts) < most and (d.name not in cut or len(parts) > 1):
            pair = _cut_of(expr, parts[0], least)
            if pair is None:
                break
            expr = _over_pair(expr, parts[0], pair)
            parts[:1] = pair
            cut[d.name] = {k: parts}
        axes += parts
    return Def(name=d.name, axes=tuple(axes), expr=expr, loc=d.loc, op=d.op)


def _reading(expr: Expr, cut: Mapping[str, Cuts]) -> Expr:
    """Return the expression with loads of split definitions indexed by the new axes."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in cut:
            return None
        index: list[Index] = []
        for k, i in enumerate(node.index):
            index.extend(_coordinates(i, cut[node.source].get(k, [])))
        return ex.load(node.source, index, node.dtype)

    return Rewriter(visit)(expr) if cut else expr


def _coordinates(i: Index, parts: Sequence[Axis]) -> list[Index]:
    found: list[Index] = []
    for a in parts[:0:-1]:
        found.append(mod(i, a.extent))
        i = floordiv(i, a.extent)
    return [i, *reversed(found)]


def _cut_reduced(e: Reduce) -> Reduce:
    for a in e.axes:
        pair = _cut_of(e.body, a, 2)
        if pair is not None:
            body = _over_pair(e.body, a, pair)
            axes = [x for b in e.axes for x in (pair if b is a else (b,))]
            return _cut_reduced(ex.reduce(e.fn, axes, body, e.dtype))
    return e


def _over_pair(e: Expr, a: Axis, pair: tuple[Axis, Axis]) -> Expr:
    """Return the expression over the two axes. A condition that the outer one decides reads only
    that."""

    def visit(node: Expr) -> Expr | None:
        return in_lowest_terms(node) if isinstance(node, Apply) else None

    return Rewriter(visit)(at_indices(e, {a: joined(pair)}))


def _cut_of(e: Expr, a: Axis, least: int) -> tuple[Axis, Axis] | None:
    """Return two axes to replace an axis, the inner of which no index divides; None if it stays."""
    for by in _divisors(e, a):
        if by is a.extent or (by.const is not None and by.const < least):
            continue
        pair = split_axis(a, by)
        if pair is not None and not _divisors(at_indices(e, {a: joined(pair)}), pair[1]):
            return pair
    return None


def _divisors(e: Expr, a: Axis) -> list[Index]:
    return divisors((i for node in ex.walk(e) for i in ex.indices(node)), a)
