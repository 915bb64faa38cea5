"""Pads values whose sizes differ between iterations to the largest size.

In: a definition of a loop's body, in whose extents the loop's axis L is free. Out: the definition
over extents without L. Sums mask the elements beyond the iteration's own extent. Elsewhere those
elements have no effect, since each reader ends where the value did.

    t1[a:L+1] = x[a]                     t1[a:n] = x[a]
    t2 = sum[a:L+1](t1[a] * w[L - a])    t2 = sum[a:n](t1[a] * w[max(L - a, 0)] if a <= L else 0)

If a read begins at max(0, z), indices are counted from z, so that a window slides evenly:

    t1[a:L+1-max(0,L-3)] = x[max(0, L-3) + a]     t1[a:4] = x[max(0, L-3 + a)]
    t2 = sum[a:...](t1[a])                        t2 = sum[a:4](t1[a] if L-3 + a >= 0 else 0)

If gradients are recorded, loads beyond the extent read 0: the gradient of that mask then drops the
cotangents there, which may be 0 times an infinite derivative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.ir import dtypes
from lowtide.specialise.lifting.match import NotLifted
from lowtide.texpr import bounds
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import identity
from lowtide.texpr.bounds import is_positive_part
from lowtide.texpr.build import Builder
from lowtide.texpr.conditions import joined
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, Clamp, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import clamp, nonnegative

Shapes = Mapping[str, Sequence[Index]]
ZERO = as_index(0)


class Squares:
    """The definitions of one body. `shapes`: of the carried values, in an iteration."""

    def __init__(self, b: Builder, axis: Axis, shapes: Shapes) -> None:
        self.b = b
        self.axis = axis
        program = b.program
        self._sizes: dict[str, Sequence[Index]] = {n: i.shape for n, i in program.inputs.items()}
        self._sizes |= {n: d.shape for n, d in program.defs.items()} | dict(shapes)
        self._shifts: dict[Index, Index] = {}  # by extent: where the first place of an iteration is
        self._shifted: dict[str, Sequence[Index]] = {}  # the same, by value and dim

    def squared(self, d: Def) -> Def:
        """Return the definition over extents without the loop's axis; raises NotLifted."""
        longest = _Longest(self, d)
        if not longest.axes and not self._shifted:
            return d
        b = self.b

        def held(node: Expr) -> Expr | None:
            if not isinstance(node, Load):
                return None
            shifts = self._shifted.get(node.source)
            index = node.index
            if shifts is not None:
                index = tuple(i + s for i, s in zip(index, shifts, strict=True))
            if longest.new & {*node.atoms} or any(map(self._is_clamped, node.index)):
                if node.source not in self._sizes:
                    raise longest.refused
                pairs = zip(index, self._sizes[node.source], strict=True)
                index = tuple(clamp(i, size) for i, size in pairs)
            return ex.load(node.source, index, node.dtype)

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Reduce):
                return held(node)
            axes, body = [longest.axes.get(a, a) for a in node.axes], node.body
            cond = longest.inside(axes)
            if cond is not None:
                rest = ex.const(identity(node.fn, body.dtype), body.dtype)
                body = ex.select(cond, _masked(body, cond) if b.records else body, rest)
            return longest.counted(ex.reduce(node.fn, axes, body, node.dtype))

        expr = Rewriter(visit, longest.atoms)(d.expr)
        axes = tuple(longest.axes.get(a, a) for a in d.axes)
        cond = longest.inside(axes)
        if cond is not None and b.records:
            expr = _masked(expr, cond)
        found = Def(name=d.name, axes=axes, expr=expr, loc=d.loc, op=d.op)
        shifts = [longest.shifts.get(a, ZERO) for a in axes]
        if any(s is not ZERO for s in shifts):
            self._shifted[d.name] = shifts
        self._sizes[d.name] = found.shape
        return found

    def _is_clamped(self, index: Index) -> bool:
        """Return whether the index is clamped to elements that this iteration has, of which there
        may be none."""
        held = [a for a in deep_atoms(index) if isinstance(a, Clamp)]
        return any(self.axis in deep_atoms(a.extent) for a in held)

    def most(self, extent: Index) -> Index | None:
        """Return the largest extent of all iterations."""
        return bounds.least_bound(extent, (self.axis,), self.b.ask)

    def shift(self, extent: Index, d: Def, a: Axis) -> Index:
        """Return the distance between the first place of all iterations and that of this one. It
        depends on the extent alone, so values of one extent are read place by place."""
        if extent not in self._shifts:
            self._shifts[extent] = self._shift(extent, d, a)
        return self._shifts[extent]

    def _shift(self, extent: Index, d: Def, a: Axis) -> Index:
        most = self.most(extent)
        for load in ex.loads(d.expr):
            for begin in (i - as_index(a) for i in load.index if a in i.atoms()):
                for c in begin.atoms():
                    if not isinstance(c, Clamp) or c not in deep_atoms(extent):
                        continue
                    shift = as_index(c) - c.num
                    found = self.most(extent + shift) if is_positive_part(c) else None
                    if found is None or c in deep_atoms(begin - as_index(c)):
                        continue
                    if most is None or self.b.ask(most - found):
                        return shift
        return ZERO


class _Longest:
    """The axes of a definition whose extents the loop's axis is in, and their new ones."""

    def __init__(self, squares: Squares, d: Def) -> None:
        self.refused = NotLifted(f"sizes change from iteration to iteration ({d.op} at {d.loc})")
        self.axes: dict[Axis, Axis] = {}
        self.shifts: dict[Axis, Index] = {}  # of the new axes
        self.atoms: dict[Atom, Index] = {}
        self._extents: dict[Axis, Index] = {}
        reduced = (a for n in ex.walk(d.expr) if isinstance(n, Reduce) for a in n.axes)
        for a in (*d.axes, *reduced):
            if squares.axis in deep_atoms(a.extent) and a not in self.axes:
                shift = squares.shift(a.extent, d, a)
                most = squares.most(a.extent + shift)
                if most is None:
                    raise self.refused
                new = self.axes[a] = Axis(a.name, most)
                self.shifts[new], self._extents[new] = shift, a.extent
                self.atoms[a] = as_index(new) - shift
        self.new = frozenset[Atom](self.axes.values())

    def counted(self, node: Expr) -> Expr:
        """Return the index of an extreme, counted from the first element of the iteration."""
        shift = ZERO
        if isinstance(node, Reduce) and node.fn in ("argmin", "argmax"):
            shift = self.shifts.get(node.axes[0], ZERO)
        if shift is ZERO:
            return node
        return ex.apply("sub", (node, ex.at(shift, node.dtype)), node.dtype)

    def inside(self, axes: Sequence[Axis]) -> Expr | None:
        """Return the condition that the iteration has these elements; None if it has all."""
        checked: list[Index] = []
        for a in axes:
            if a in self._extents:
                place = as_index(a) - self.shifts[a]
                checked += [*bounds.parts(place), *bounds.parts(self._extents[a] - place - 1)]
        zero = ex.at(ZERO, dtypes.i64)
        left = [ex.at(i, dtypes.i64) for i in checked if not nonnegative(i)]
        return joined([ex.apply("ge", (i, zero), dtypes.boolean) for i in left])


def _masked(expr: Expr, cond: Expr) -> Expr:
    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load):
            return None
        return ex.select(cond, node, ex.const(0, node.dtype))

    return Rewriter(visit)(expr)
