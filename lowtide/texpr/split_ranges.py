"""Index set splitting: a value with another formula in each range of an axis becomes one per range.

In:  a Program. Out: the same values. A reader with a loop over such an axis also runs range by
     range, without the choice at each point.

    d[n:8] = select(n < 4, f(p[n]), g(q[n-4]))      d0[k:4] = f(p[k])     d1[k:4] = g(q[k])
    s      = sum[n:8](d[n] * w[n])              ->  s = sum[k:4](d0[k] * w[k] + d1[k] * w[k+4])

The backward pass of `chunk`, and `cat`, make such values. Other readers read the value as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import COMBINE, at_indices
from lowtide.texpr.conditions import holds, parts_of, sides
from lowtide.texpr.expr import Apply, Const, Def, Expr, Load, Program, Reduce, Rewriter, Select
from lowtide.texpr.index import Axis, Index, as_index, the_axis
from lowtide.texpr.index_ranges import clamp

MOST_RANGES = 8


@dataclass(frozen=True, slots=True)
class _Range:
    start: int
    length: int
    name: str


@dataclass(frozen=True, slots=True)
class _Split:
    """The ranges of a value along one of its dims."""

    dim: int
    ranges: tuple[_Range, ...]

    @property
    def is_even(self) -> bool:
        return len({r.length for r in self.ranges}) == 1

    @property
    def cuts(self) -> tuple[int, ...]:
        return tuple(r.start for r in self.ranges[1:])


def split_ranges(
    program: Program, looped: Mapping[str, int | None], apart: Set[str]
) -> tuple[Program, dict[str, int]]:
    """See the module's text; and along which dim values were split into equal ranges.

    `looped`: what loops compute, and how many of its dims are steps, None for all; after its loop
    read as a whole (see `blocks`), but for `apart`."""
    run = _Splitter(program, looped, looped.keys() - apart)
    for d in program.defs.values():
        run.add(d)
    even = {n: s.dim for n, s in run.splits.items() if s.is_even}
    return dataclasses.replace(program, defs=run.defs), even


class _Splitter:
    def __init__(self, program: Program, looped: Mapping[str, int | None], whole: Set[str]) -> None:
        self.program = program
        self.looped = looped
        self.whole = whole
        self.stored = {*program.outputs, *program.checks}
        self.stored |= {n for y in program.delays.values() for n in (y.source, y.init)}
        self.defs: dict[str, Def] = {}
        self.splits: dict[str, _Split] = {}

    def add(self, d: Def) -> None:
        """Add the definition, preceded by its ranges."""
        d = self._sums_in_ranges(d)
        steps = self.looped.get(d.name, 0)
        for dim, axis in enumerate(d.axes):
            if steps is None or dim < steps:
                continue  # each step is the same Program
            cuts = self._cuts(d, axis)
            if cuts and (isinstance(d.expr, Reduce) or d.name not in self.stored):
                made = self._ranges(d, dim, cuts)
                if made is not None:
                    d = made
                    break
        self.defs[d.name] = d

    # -- along an axis of the value itself --

    def _cuts(self, d: Def, axis: Axis) -> tuple[int, ...]:
        """Return the places at which the formula changes along an axis, () if it does not."""
        found = {s.cuts for load, s in self._read(d) if the_axis(load.index[s.dim]) is axis}
        if not found and not isinstance(d.expr, Reduce):
            size = axis.extent.const
            own = {c for c in _compared(d.expr, axis) if size is not None and 0 < c < size}
            found = {tuple(sorted(own))}
        return found.pop() if len(found) == 1 else ()

    def _ranges(self, d: Def, dim: int, cuts: Sequence[int]) -> Def | None:
        axis = d.axes[dim]
        size = axis.extent.const
        if size is None or len(cuts) >= MOST_RANGES:
            return None
        ranges: list[_Range] = []
        made: list[Def] = []
        prefix = self._free_prefix(d.name)
        for k, (start, stop) in enumerate(zip((0, *cuts), (*cuts, size), strict=True)):
            fresh = {a: Axis(a.name, a.extent) for a in d.axes}
            fresh[axis] = Axis(axis.name, as_index(stop - start))
            moved = {a: as_index(b) for a, b in fresh.items()}
            moved[axis] = as_index(fresh[axis]) + start
            expr = self._in_range(at_indices(d.expr, moved))
            if any(_compared(expr, fresh[axis])):
                return None
            name = f"{prefix}_{k}"
            axes = tuple(fresh[a] for a in d.axes)
            made.append(Def(name=name, axes=axes, expr=expr, loc=d.loc, op=d.op))
            ranges.append(_Range(start, stop - start, name))
        self.defs.update({m.name: m for m in made})
        self.splits[d.name] = _Split(dim, tuple(ranges))
        return dataclasses.replace(d, expr=_joined(d, dim, ranges))

    def _free_prefix(self, name: str) -> str:
        """So that no range is called as a part of the value, `t1_0`, is already."""
        taken = self.program.defs.keys() | self.program.inputs.keys() | self.defs.keys()
        while any(f"{name}_{k}" in taken for k in range(MOST_RANGES)):
            name += "r"
        return name

    # -- along an axis that is reduced --

    def _sums_in_ranges(self, d: Def) -> Def:
        def visit(node: Expr) -> Expr | None:
            return self._in_ranges(d, node) if isinstance(node, Reduce) else None

        return dataclasses.replace(d, expr=Rewriter(visit)(d.expr))

    def _in_ranges(self, d: Def, e: Reduce) -> Expr | None:
        """Return a reduction over the ranges of its operand; None if these have different
        lengths."""
        for axis in e.axes:
            found = {s.cuts for load, s in self._read(d) if the_axis(load.index[s.dim]) is axis}
            size = axis.extent.const
            if len(found) != 1 or size is None or e.fn not in COMBINE:
                continue
            (cuts,) = found
            bounds = list(zip((0, *cuts), (*cuts, size), strict=True))
            if len({stop - start for start, stop in bounds}) != 1:
                continue
            short = Axis(axis.name, as_index(bounds[0][1]))
            total: Expr | None = None
            for start, _ in bounds:
                body = self._in_range(at_indices(e.body, {axis: as_index(short) + start}))
                parts = (body,) if total is None else (total, body)
                total = body if total is None else ex.apply(COMBINE[e.fn], parts, body.dtype)
            assert total is not None
            axes = [short if a is axis else a for a in e.axes]
            return ex.reduce(e.fn, axes, total, e.dtype)
        return None

    # -- expressions --

    def _read(self, d: Def) -> Iterator[tuple[Load, _Split]]:
        for load in ex.loads(d.expr):
            split = self.splits.get(load.source)
            is_after = load.source in self.whole and d.name not in self.looped
            if split is not None and not (is_after and split.is_even):
                yield load, split

    def _in_range(self, e: Expr) -> Expr:
        """Choices that are decided are made; reads that lie in one range are reads of it."""

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load):
                return self._part(node)
            if isinstance(node, Select):
                found = holds(node.cond)
                return None if found is None else (node.yes if found else node.no)
            if isinstance(node, Apply) and node.fn == "add":
                return _without_zero(node)
            return None

        return Rewriter(visit)(e)

    def _part(self, node: Load) -> Expr | None:
        split = self.splits.get(node.source)
        if split is None:
            return None
        index = node.index[split.dim]
        axis = next(iter(index.atoms()), None)
        if not isinstance(axis, Axis):
            return None
        start = (index - as_index(axis)).const
        if start is None or len(index.atoms()) != 1:
            return None
        for r in split.ranges:
            size = axis.extent.const
            if size is not None and r.start <= start and start + size <= r.start + r.length:
                at = as_index(axis) + (start - r.start)
                before, after = node.index[: split.dim], node.index[split.dim + 1 :]
                return ex.load(r.name, (*before, at, *after), node.dtype)
        return None


def _without_zero(node: Apply) -> Expr | None:
    left, right = node.args
    if isinstance(right, Const) and right.value == 0:
        return left
    return right if isinstance(left, Const) and left.value == 0 else None


def _compared(e: Expr, axis: Axis) -> Iterator[int]:
    """Yield the places along an axis where a choice of the formula changes."""
    for node in ex.walk(e):
        if not isinstance(node, Select):
            continue
        for part in parts_of(node.cond):
            for fn in ("ge", "lt"):
                found = sides(part, fn)
                if found is None:
                    continue
                rest = found[0] - found[1] - as_index(axis)
                if rest.const is not None:
                    yield -rest.const


def _joined(d: Def, dim: int, ranges: Sequence[_Range]) -> Expr:
    """Return the whole value, for readers of other elements."""
    place = as_index(d.axes[dim])
    result: Expr | None = None
    for r in reversed(ranges):
        index: list[Index] = [as_index(a) for a in d.axes]
        index[dim] = clamp(place - r.start, as_index(r.length))
        part = ex.load(r.name, index, d.dtype)
        if result is None:
            result = part
            continue
        end = ex.at(r.start + r.length, dtypes.i64)
        below = ex.apply("lt", (ex.at(place, dtypes.i64), end), dtypes.boolean)
        result = ex.select(below, part, result)
    assert result is not None
    return result
