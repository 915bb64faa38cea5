"""Values whose sizes differ from iteration to iteration, in the size of the largest.

In: a definition of a loop's body, in whose extents the loop's axis L is free. Out: the same over
extents without L; what lies beyond the iteration's own is no part of what is summed up, and of no
effect elsewhere, for whoever reads the value ends where the value did.

    t1[a:L+1] = x[a]                     t1[a:n] = x[a]
    t2 = sum[a:L+1](t1[a] * w[L - a])    t2 = sum[a:n](t1[a] * w[max(L - a, 0)] if a <= L else 0)

Where gradients are recorded, what is read is 0 beyond: the mask's own gradient then drops the
cotangents there, which may be 0 times an infinite derivative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.ir import dtypes
from lowtide.pipeline.lifting.match import NotLifted
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import identity
from lowtide.texpr.build import Builder
from lowtide.texpr.conditions import joined
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, Index, as_index, clamp, deep_atoms, substitute, way

Shapes = Mapping[str, Sequence[Index]]


def squared(b: Builder, d: Def, axis: Axis, shapes: Shapes) -> Def:
    """The definition over extents without the loop's axis. `shapes`: of the body's other values;
    raises NotLifted."""
    longest = _Longest(d, axis)
    if not longest.axes:
        return d
    sizes = {n: i.shape for n, i in b.program.inputs.items()}
    sizes |= {n: v.shape for n, v in b.program.defs.items()} | dict(shapes)

    def held(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or not longest.new & {*node.atoms}:
            return None
        if node.source not in sizes:
            raise longest.refused
        pairs = zip(node.index, sizes[node.source], strict=True)
        return ex.load(node.source, [clamp(i, size) for i, size in pairs], node.dtype)

    def visit(node: Expr) -> Expr | None:
        cond = longest.inside(node.axes) if isinstance(node, Reduce) else None
        if cond is None or not isinstance(node, Reduce):
            return held(node)
        body = _masked(node.body, cond) if b.records else node.body
        rest = ex.const(identity(node.fn, body.dtype), body.dtype)
        return ex.reduce(node.fn, node.axes, ex.select(cond, body, rest), node.dtype)

    expr = Rewriter(visit, longest.atoms)(d.expr)
    axes = tuple(longest.axes.get(a, a) for a in d.axes)
    cond = longest.inside(axes)
    if cond is not None and b.records:
        expr = _masked(expr, cond)
    return Def(name=d.name, axes=axes, expr=expr, loc=d.loc, op=d.op)


class _Longest:
    """The axes of a definition whose extents the loop's axis is in, and their new ones."""

    def __init__(self, d: Def, axis: Axis) -> None:
        self.refused = NotLifted(f"sizes change from iteration to iteration ({d.op} at {d.loc})")
        self.axes: dict[Axis, Axis] = {}
        reduced = (a for n in ex.walk(d.expr) if isinstance(n, Reduce) for a in n.axes)
        for a in (*d.axes, *reduced):
            if axis in deep_atoms(a.extent):
                self.axes[a] = Axis(a.name, self._most(a.extent, axis))
        self.new = frozenset[Atom](self.axes.values())
        self.atoms: dict[Atom, Index] = {a: as_index(b) for a, b in self.axes.items()}
        self._extents = {b: a.extent for a, b in self.axes.items()}

    def _most(self, extent: Index, axis: Axis) -> Index:
        direction = way(extent, axis)
        if not direction:
            raise self.refused
        return substitute(extent, {axis: axis.extent - 1 if direction > 0 else as_index(0)})

    def inside(self, axes: Sequence[Axis]) -> Expr | None:
        """Where the iteration has such elements; None if it has all."""
        room = [self._extents[a] - as_index(a) - 1 for a in axes if a in self._extents]
        zero = ex.at(as_index(0), dtypes.i64)
        parts = [ex.apply("ge", (ex.at(i, dtypes.i64), zero), dtypes.boolean) for i in room]
        return joined(parts)


def _masked(expr: Expr, cond: Expr) -> Expr:
    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        return ex.select(cond, node, ex.const(0, node.dtype))

    return Rewriter(visit)(expr)
