"""Cuts a Program that would compute a product of pairs more than once into strips of rows.

In:  a normalised Program and its groups. Out: parts to run one after another. One is `Strips`: a
     Program of a few rows, run for all rows in turn, which stores the product.

    k0  m[n], s[n]  of  t[n, v]                          rows n, some hundred at a time:
    k1  dx[n, c] = sum[v](g(t[n, v]) * w[v, c])     ->     t[n, v]; m[n], s[n]; dx[n, c];
    k2  dw[v, c] = sum[n](g(t[n, v]) * x[n, c])            dw[v, c] += sum[n](g * x[n, c])

Each product is computed once, and a few rows of t are stored. Sums over all rows are accumulated in
memory. A value that depends on such a sum is computed after all strips; if it needs the product
once more, there are no strips.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import COMBINE, at_indices, identity
from lowtide.texpr.expr import At, Def, Expr, Input, Load, Program, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, Index, Size, as_index, the_axis
from lowtide.texpr.index_ranges import rebuild
from lowtide.texpr.partition import Part
from lowtide.texpr.sizes import elements_stored, likely
from lowtide.tile.axes import is_long, own_axes
from lowtide.tile.group import RECOMPUTED, Group

FEWEST, MOST = 128, 512  # rows of a strip: with fewer, adding to sums in memory takes too long
ROOM: Final = 1 << 20  # elements of the product that a strip has, if that is not too few rows

START, ROWS = "start", "rows"


@dataclass(slots=True, kw_only=True)
class Strips:
    """`program` is one strip: `start` and `rows` are size symbols, its first row and how many it
    has; `count` rows are done at a time, of `extent` in all.

    `totals`: an input of the strip, and the output that takes its place in the same memory, which
    begins as `identities` say. All other outputs are rows of a result that has all of them."""

    program: Program
    extent: Index
    count: int
    totals: Mapping[str, str]
    identities: Mapping[str, float]

    def shape(self, name: str) -> tuple[Index, ...]:
        """Of an output, when all strips are done."""
        shape = self.program.defs[name].shape
        return shape if name in self.totals.values() else (self.extent, *shape[1:])


def in_strips(
    program: Program, groups: Sequence[Group], hints: Mapping[str, int]
) -> list[Part | Strips] | None:
    """Parts that do each product once; None where none is done twice, or no strips are possible."""
    for d in _repeated(program, groups, hints):
        for axis in own_axes(d):
            cutter = _Cutter(program, d, axis, hints)
            if cutter.is_possible():
                return cutter.parts()
    return None


def _repeated(program: Program, groups: Sequence[Group], hints: Mapping[str, int]) -> Iterator[Def]:
    """Long products of pairs that a second kernel needs: it would compute them again, or read them
    from memory."""
    copies = {n.removesuffix(RECOMPUTED) for g in groups for n in g.defs if n not in program.defs}
    read = {n for g in groups for n in g.all_sources()}
    limit = elements_stored(program, {*program.outputs, *program.checks}, hints)
    for n, d in program.defs.items():
        is_stored = n in read and math.prod(likely(size, hints) for size in d.shape) > limit
        if (n in copies or is_stored) and is_long(d, hints):
            yield d


class _Cutter:
    """One product, one of its axes as the rows."""

    def __init__(self, program: Program, made: Def, axis: Axis, hints: Mapping[str, int]) -> None:
        self.program = program = _in_order_of_results(program)
        self.hints = hints
        self.extent = axis.extent
        self.roots = {*program.outputs, *program.checks}
        self.added_to = program.added_to()
        self.pairs = self._pairs(made)
        self.below = self._below()
        self.inside = self._inside()
        self.rows: dict[str, Axis] = {made.name: axis}
        others = (likely(a.extent, hints) for a in own_axes(made) if a is not axis)
        count = max(FEWEST, min(MOST, ROOM // math.prod(others))) // FEWEST * FEWEST
        self.count = count

    # -- what is done in strips --

    def _pairs(self, made: Def) -> set[str]:
        """Return the values that are too large to be stored, and are read together with the product
        or computed from it. Others run before or after, perhaps in strips of their own."""
        limit = elements_stored(self.program, self.roots, self.hints)
        defs = self.program.defs
        large = {n for n, d in defs.items() if self._elements(d) > limit}
        together = [
            large & {n, *(load.source for load in ex.loads(d.expr))} for n, d in defs.items()
        ]
        found = {made.name}
        while grown := [s for s in together if s & found and not s <= found]:
            found.update(*grown)
        return found

    def _below(self) -> set[str]:
        """Return values of pairs, and what depends on them."""
        found = set(self.pairs)
        for n, d in self.program.defs.items():
            if any(load.source in found for load in ex.loads(d.expr)):
                found.add(n)
        return found

    def _inside(self) -> set[str]:
        """Return the values of pairs, their readers, and the other values that these need."""
        defs = self.program.defs
        reads = {
            n for n, d in defs.items() if any(x.source in self.pairs for x in ex.loads(d.expr))
        }
        return ex.needed(self.program, self.pairs | reads) & self.below

    def _elements(self, d: Def) -> int:
        return math.prod(likely(size, self.hints) for size in d.shape)

    def is_possible(self) -> bool:
        """Return whether strips are independent except for sums, and the axis of the rows is
        known."""
        if self.extent.const is not None or likely(self.extent, self.hints) < 2 * self.count:
            return False
        if any(self.program.defs[n].adds_to in self.inside for n in self.inside):
            return False
        if not self._finds_rows() or not all(map(self._is_summed_up, self.inside)):
            return False
        return all(map(self._is_row_major, self.inside & self._escaping()))

    def _finds_rows(self) -> bool:
        """Find the axis of the rows of each value. Return False if a value reads other rows of a
        value of the strip."""
        reads = [
            (d, load)
            for n, d in self.program.defs.items()
            if n in self.inside
            for load in ex.loads(d.expr)
            if load.source in self.inside
        ]
        known = 0
        while known < len(self.rows):
            known = len(self.rows)
            if not all(self._agrees(d, load) for d, load in reads):
                return False
        return self.rows.keys() == self.inside

    def _agrees(self, d: Def, load: Load) -> bool:
        """Note the rows of the source or the user of a load, if it knows the other's. Return False
        if they disagree."""
        made = self.program.defs[load.source]
        walked = {the_axis(i): a for i, a in zip(load.index, made.axes, strict=True)}
        mine, theirs = self.rows.get(d.name), self.rows.get(made.name)
        if mine is None and theirs is None:
            return True
        if mine is None:
            mine = next((b for b, a in walked.items() if a is theirs), None)
        if mine is None or mine not in walked or theirs not in (None, walked[mine]):
            return False
        self.rows[d.name], self.rows[made.name] = mine, walked[mine]
        return True

    def _is_summed_up(self, name: str) -> bool:
        """Return whether the value has a row for each row, or is a reduction that strips can
        combine."""
        d, axis = self.program.defs[name], self.rows[name]
        if axis in d.axes:
            return True
        if not isinstance(d.expr, Reduce) or axis not in d.expr.axes:
            return False
        return d.expr.fn in COMBINE and d.dtype not in (dtypes.f16, dtypes.bf16)

    def _is_total(self, name: str) -> bool:
        return self.rows[name] not in self.program.defs[name].axes

    def _escaping(self) -> set[str]:
        """Return the values that the caller or later parts read."""
        later = self.program.defs.keys() & self.below - self.inside
        return self.roots | {x.source for n in later for x in ex.loads(self.program.defs[n].expr)}

    def _is_row_major(self, name: str) -> bool:
        """Return whether the rows lie one after the other, so that a strip writes them in one
        piece."""
        d = self.program.defs[name]
        if self._is_total(name) or d.adds_to:
            return True
        first = next((a for a in d.axes if a.extent.const != 1), None)
        return first is self.rows[name] and d.axes[0] is first

    # -- parts --

    def parts(self) -> list[Part | Strips]:
        """Before, in strips, and after."""
        last = self._plain([n for n in self.program.defs if n in self.roots & self._late()])
        strips = self._strips()
        wanted = {*strips.program.inputs, *last.inputs, *self.roots} - self.below
        first = self._plain([n for n in self.program.defs if n in wanted])
        return [*([Part(program=first)] if first.defs else []), strips,
                *([Part(program=last)] if last.defs else [])]  # fmt: skip

    def _late(self) -> set[str]:
        return self.below - self.inside

    def _plain(self, roots: list[str]) -> Program:
        """Return the Program that computes these values without strips, with the pointwise values
        that it needs."""
        late = {n for n in roots if n in self.below}
        defs: dict[str, Def] = {}
        inputs: dict[str, Input] = {}
        todo = list(roots)
        while todo:
            name = todo.pop()
            d = self.program.defs.get(name)
            if name in defs or name in inputs:
                continue
            is_own = d is not None and name not in self.inside
            if d is None or not is_own or (late and not self._is_overwritten(name, d)):
                inputs[name] = self._input(name)
                continue
            defs[name] = d
            todo += [load.source for load in ex.loads(d.expr)]
        ordered = {n: defs[n] for n in self.program.defs if n in defs}
        checks = [n for n in self.program.checks if n in roots]
        outputs = [n for n in roots if n not in checks or n in self.program.outputs]
        outputs = [*outputs, *checks]
        return Program(
            inputs=inputs, defs=ordered, outputs=outputs, shared_sums=self.program.shared_sums
        )

    def _is_overwritten(self, name: str, d: Def) -> bool:
        if name not in self.below and name in self.added_to:
            return False
        return name in self.below or not isinstance(d.expr, Reduce)

    def _input(self, name: str) -> Input:
        if name in self.program.inputs:
            return self.program.inputs[name]
        d = self.program.defs[name]
        return ex.stored(name, d.shape, d.dtype)

    def _strips(self) -> Strips:
        start, rows = as_index(Size(START)), as_index(Size(ROWS, 1))
        inputs: dict[str, Input] = {}
        defs: dict[str, Def] = {}
        totals: dict[str, str] = {}
        identities: dict[str, float] = {}
        for name, d in self.program.defs.items():
            if name in self.inside:
                defs[name] = self._one_strip(d, start, rows)
        for name in [n for n in defs if self._is_total(n)]:
            before = f"{name}_before"
            d = self.program.defs[name]
            assert isinstance(d.expr, Reduce)
            totals[before], identities[before] = name, identity(d.expr.fn, d.dtype)
            inputs[before] = ex.stored(before, d.shape, d.dtype)
            defs[name] = _added(defs[name], before)
        for d in defs.values():
            for load in ex.loads(d.expr):
                if load.source not in defs and load.source not in inputs:
                    inputs[load.source] = self._input(load.source)
        kept = self._escaping()
        return Strips(
            program=Program(
                inputs=inputs,
                defs=defs,
                outputs=[n for n in defs if n in kept],
                shared_sums=self.program.shared_sums,
            ),
            extent=self.extent,
            count=self.count,
            totals=totals,
            identities=identities,
        )

    def _one_strip(self, d: Def, start: Index, rows: Index) -> Def:
        old = self.rows[d.name]
        axis = Axis(old.name, rows)
        renamed = Rewriter(atoms={old: as_index(axis)})(self._with_pointwise(d.expr, old))
        here = as_index(axis) + start

        def moved(atom: Atom) -> Index | None:
            return here if atom is axis else None

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, At):
                return ex.at(rebuild(node.index, moved), node.dtype)
            if isinstance(node, Load) and node.source not in self.inside:
                return ex.load(node.source, [rebuild(i, moved) for i in node.index], node.dtype)
            return None

        axes = tuple(axis if a is old else a for a in d.axes)
        return Def(name=d.name, axes=axes, expr=Rewriter(visit)(renamed), loc=d.loc, op=d.op)

    def _with_pointwise(self, expr: Expr, row: Axis) -> Expr:
        """Pointwise values of before the strips that differ from row to row, written out."""

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.source in self.inside or row not in node.free:
                return None
            d = self.program.defs.get(node.source)
            if d is None or isinstance(d.expr, Reduce) or d.name in self.added_to:
                return None
            moved = at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))
            return self._with_pointwise(moved, row)

        return Rewriter(visit)(expr)


def _added(d: Def, before: str) -> Def:
    """Return the definition, combined with the result of the strips before."""
    assert isinstance(d.expr, Reduce)
    found = ex.load(before, [as_index(a) for a in d.axes], d.dtype)
    expr = ex.apply(COMBINE[d.expr.fn], (found, d.expr), d.dtype)
    return dataclasses.replace(d, expr=expr)


def _in_order_of_results(program: Program) -> Program:
    """Return the Program in which sums are stored in the order of axes in which they are
    returned."""
    users = Counter(s for d in program.defs.values() for s in {x.source for x in ex.loads(d.expr)})
    defs = dict(program.defs)
    for n, d in program.defs.items():
        if not isinstance(d.expr, Load) or n in program.checks:
            continue
        made = defs.get(d.expr.source)
        if made is None or users[made.name] > 1 or made.name in program.outputs:
            continue
        at = dict(zip(made.axes, map(the_axis, d.expr.index), strict=True))
        if (
            isinstance(made.expr, Reduce)
            and set(at.values()) == set(d.axes)
            and len(at) == len(d.axes)
            and all(a.extent is b.extent for b, a in at.items() if a is not None)
        ):
            back = {new: old for old, new in at.items()}
            defs[n] = dataclasses.replace(made, name=n, axes=tuple(back[a] for a in d.axes))
            del defs[made.name]
    return dataclasses.replace(program, defs=defs)
