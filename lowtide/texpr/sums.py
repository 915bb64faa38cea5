"""Merges a sum over elements of another sum into one sum, if no element is read twice.

In, out: an expression, and definitions that only it reads.

    t[l, k] = sum[o](g[o, l] * w[o, k])                  x[y] = sum[k, o](select(y >= k,
    x[y]    = sum[k](select(y >= k, t[y - k, k], 0))  ->                  g[o, y - k] * w[o, k], 0))

The gradient of an image is then a convolution, and no columns are stored. A sum that is read at
plain axes stays: fusion puts both into one kernel. Only the order of addition changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, is_windowed, slides
from lowtide.texpr.expr import Const, Def, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import Axis, as_index, deep_atoms

MOST = 1.25  # windows go beyond the border
Points = Callable[[tuple[Axis, ...]], int]


def merged_sums(
    d: Def, expr: Expr, sums: Mapping[str, Def], points: Points, most: float = MOST
) -> Expr:
    """Return the expression of a definition, with these `sums` merged into sums over their
    elements, if that multiplies the work by no more than a limit."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or node.fn != "sum":
            return None
        load = _summed(node.body, sums)
        if load is None or ex.aligned(load):
            return None
        inner = sums[load.source]
        assert isinstance(inner.expr, Reduce)
        loops = (*d.axes, *node.axes)
        if points(loops) > most * points(inner.axes):
            return None
        fresh = {a: Axis(a.name, a.extent) for a in inner.expr.axes}
        moved = {a: as_index(b) for a, b in fresh.items()}
        moved |= dict(zip(inner.axes, load.index, strict=True))
        body = at_indices(inner.expr.body, moved)
        whole = Rewriter(lambda e: body if e is load else None)(node.body)
        return ex.reduce("sum", (*node.axes, *fresh.values()), whole, node.dtype)

    return Rewriter(visit)(expr) if sums else expr


def in_order(d: Def) -> Def:
    """Order the axes of a sum of windows as memory lies: channels, rows, places of a row."""
    e = d.expr
    if not isinstance(e, Reduce) or not slides(e):
        return d
    load = next(x for x in ex.loads(e.body) if is_windowed(x, e.axes))

    def dim(a: Axis) -> int:
        return next((k for k, i in enumerate(load.index) if a in deep_atoms(i)), -1)

    expr = ex.reduce(e.fn, sorted(e.axes, key=dim), e.body, e.dtype)
    return Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)


def _summed(e: Expr, sums: Mapping[str, Def]) -> Load | None:
    """Return the summed element, or 0 where a condition does not hold."""
    if isinstance(e, Select) and isinstance(e.no, Const) and e.no.value == 0:
        return None if _reads(e.cond, sums) else _summed(e.yes, sums)
    return e if isinstance(e, Load) and e.source in sums and not _gathers(e) else None


def _reads(e: Expr, sums: Mapping[str, Def]) -> bool:
    return any(load.source in sums for load in ex.loads(e))


def _gathers(load: Load) -> bool:
    return any(True for _ in ex.gathered(load.index))
