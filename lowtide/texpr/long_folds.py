"""Splits long reductions with few results into two steps, for machines that need many tasks.

In:  a normalised `Program`. Out: the same, where each such reduction first reduces parts.
Invariant: an argmin or argmax is the first of equals; parts in half precision are stored in
single; of sums only the order of addition changes.

    r = sum[i, j](f(d[i, j]))      p[i] = sum[j](f(d[i, j]))            an axis after the other, or
                              ->   r    = sum[i](p[i])
    r = sum[i](x[i])               p[s] = sum[k:4096](x[4096 * s + k])  a part after the other
                                   r    = sum[s](p[s])

Values that only this reduction reads are not stored for it, so the parts follow an axis of such a
value: its loads must stay at plain axes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, factors, identity
from lowtide.texpr.expr import Def, Expr, Program, Reduce
from lowtide.texpr.index import Axis, Index, as_index, gather
from lowtide.texpr.index_ranges import clamp, floordiv
from lowtide.texpr.sizes import likely

FEW_POINTS = 1 << 14  # results: more of them are tasks enough
LEAST_TERMS = 1 << 13  # a shorter reduction is done by one task as fast
TASKS = 512  # parts are made until there are about so many tasks …
POINTS_OF_TASK = 256  # … of so many results each
LEAST_PART = 1 << 11  # terms of a part
MOST_PARTS_BYTES = 8 << 20  # what the parts may take
_EXTREME = {"argmin": "min", "argmax": "max"}


def in_two_steps(program: Program, hints: Mapping[str, int]) -> Program:
    """See the module's text; `hints` are likely sizes."""
    run = _Steps(program, hints)
    for d in program.defs.values():
        run.add(d)
    return dataclasses.replace(program, defs=run.defs)


class _Steps:
    def __init__(self, program: Program, hints: Mapping[str, int]) -> None:
        self.program = program
        self.hints = hints
        self.defs: dict[str, Def] = {}
        self.input_elements = sum(self._points(i.shape) for i in program.inputs.values())

    def add(self, d: Def) -> None:
        """Add the definition, preceded by its parts."""
        e = d.expr
        if not isinstance(e, Reduce) or not self._is_long(d, e):
            self.defs[d.name] = d
        elif len(e.axes) > 1 and e.fn not in _EXTREME:
            self._axis_by_axis(d, e)
        elif not self._reads_large(e):
            self._part_by_part(d, e)
        else:
            self.defs[d.name] = d

    def _points(self, shape: Sequence[Index]) -> int:
        return math.prod(likely(size, self.hints) for size in shape)

    def _is_long(self, d: Def, e: Reduce) -> bool:
        terms = self._points([a.extent for a in e.axes])
        return self._points(d.shape) <= FEW_POINTS and terms >= LEAST_TERMS

    def _reads_large(self, e: Reduce) -> bool:
        """Return whether the sum reads a reduction that is too large to be stored."""
        made = (self.defs.get(load.source) for load in ex.loads(e.body))
        return any(
            isinstance(m.expr, Reduce) and self._points(m.shape) > self.input_elements
            for m in made
            if m
        )

    # -- an axis after the other --

    def _axis_by_axis(self, d: Def, e: Reduce) -> None:
        """Reduce all axes but the longest first; the second step reduces that."""
        last = max(e.axes, key=lambda a: likely(a.extent, self.hints))
        rest = [a for a in e.axes if a is not last]
        part, wide = self._part_name(d), _wide(e)
        body = ex.reduce(e.fn, rest, ex.cast(e.body, wide), wide)
        self.add(dataclasses.replace(d, name=part, axes=(*d.axes, last), expr=body))
        copied = Axis(last.name, last.extent)
        load = ex.load(part, [*_places(d.axes), as_index(copied)], wide)
        self._finish(d, ex.reduce(e.fn, [copied], load, wide))

    # -- a part after the other --

    def _part_by_part(self, d: Def, e: Reduce) -> None:
        long = max(e.axes, key=lambda a: likely(a.extent, self.hints))
        if (terms := self._terms(d, long)) is None:
            self.defs[d.name] = d
            return
        parts = Axis(f"{long.name}p", floordiv(long.extent + terms - 1, terms))
        inner = Axis(long.name, as_index(terms))
        place = as_index(parts) * terms + as_index(inner)
        fresh = {a: Axis(a.name, a.extent) for a in e.axes if a is not long}
        moved = {a: as_index(b) for a, b in fresh.items()}
        moved[long] = clamp(place, long.extent)
        fn, wide = _EXTREME.get(e.fn, e.fn), e.body.dtype if e.fn in _EXTREME else _wide(e)
        inside = ex.apply(
            "lt", (ex.at(place, dtypes.i64), ex.at(long.extent, dtypes.i64)), dtypes.boolean
        )
        body = _where(inside, at_indices(e.body, moved), inner, fn, wide)
        axes = (*fresh.values(), inner)
        part = self._part_name(d)
        value = dataclasses.replace(
            d, name=part, axes=(*d.axes, parts), expr=ex.reduce(fn, axes, body, wide)
        )
        self.defs[part] = value
        copied = Axis(parts.name, parts.extent)
        load = ex.load(part, [*_places(d.axes), as_index(copied)], wide)
        if e.fn not in _EXTREME:
            self._finish(d, ex.reduce(e.fn, [copied], load, wide))
            return
        where = self._part_name(d)
        first = ex.reduce(e.fn, [inner], body, e.dtype)
        self.defs[where] = dataclasses.replace(value, name=where, expr=first)
        best = self._part_name(d)
        chosen = ex.reduce(e.fn, [copied], load, e.dtype)
        self.defs[best] = dataclasses.replace(d, name=best, expr=chosen)
        here = ex.load(best, _places(d.axes), e.dtype)
        at = ex.load(where, [*_places(d.axes), clamp(gather(here), parts.extent)], e.dtype)
        start = ex.apply("mul", (here, ex.const(terms, e.dtype)), e.dtype)
        self.defs[d.name] = dataclasses.replace(d, expr=ex.apply("add", (start, at), e.dtype))

    def _terms(self, d: Def, long: Axis) -> int | None:
        """Return the number of terms of a part, a power of two; None where a split does not pay."""
        points, extent = self._points(d.shape), likely(long.extent, self.hints)
        tasks = max(-(-points // POINTS_OF_TASK), 1)
        parts = min(TASKS // tasks, MOST_PARTS_BYTES // (4 * points))
        terms = max(extent // max(parts, 1), LEAST_PART)
        terms = 1 << (terms - 1).bit_length()
        return terms if 2 * terms <= extent else None

    def _finish(self, d: Def, whole: Expr) -> None:
        """Add the definition itself, in its own precision."""
        if whole.dtype is not d.dtype:
            name = self._part_name(d)
            self.defs[name] = dataclasses.replace(d, name=name, expr=whole)
            whole = ex.cast(ex.load(name, _places(d.axes), whole.dtype), d.dtype)
        self.defs[d.name] = dataclasses.replace(d, expr=whole)

    def _part_name(self, d: Def) -> str:
        taken = {*self.program.inputs, *self.program.defs, *self.defs}
        k = 0
        while f"{d.name}_part{k}" in taken:
            k += 1
        return f"{d.name}_part{k}"


def _where(inside: Expr, body: Expr, axis: Axis, fn: str, dtype: DType) -> Expr:
    """Return the body inside, else the neutral element. A product stays a product, with factors of
    0."""
    parts = list(factors(body)) if fn == "sum" else []
    if len(parts) > 1 and all(axis in f.free for f in parts):
        made = (ex.select(inside, f, ex.const(0, f.dtype)) for f in parts)
        return functools.reduce(lambda a, b: ex.apply("mul", (a, b), a.dtype), made)
    return ex.select(inside, ex.cast(body, dtype), ex.const(identity(fn, dtype), dtype))


def _wide(e: Reduce) -> DType:
    """Return the dtype in which parts are kept."""
    return dtypes.BY_NAME[e.dtype.compute]


def _places(axes: Sequence[Axis]) -> list[Index]:
    return [as_index(a if a.extent.const != 1 else 0) for a in axes]
