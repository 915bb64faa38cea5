"""Classifies the axes of definitions that may share a kernel: own, reduced, common, parallel.

In:  definitions over unified axes. Out: the axes that all of them have, and those along which they
     are independent of each other.

    r[i] = sum[j](t[i, j])                    common {i, j}: all have them, nothing used inside is
    c[j] = sum[i](t[i, j])                    reduced over them; parallel {}: each is reduced by one
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import AddAt, Apply, Def, Expr, Load, Reduce
from lowtide.texpr.index import Axis, as_index, the_axis
from lowtide.texpr.normalise import inline
from lowtide.texpr.sizes import likely

SMALL_POINTS: Final = 1 << 20  # of a nest: so few are not worth a task of their own
SHORT: Final = 48  # rows of a product: fewer than a task takes
LONG: Final = 128  # terms of a product that costs more than to store its result and read it twice


def sources(d: Def) -> frozenset[str]:
    return _sources(d.expr)


@functools.lru_cache(maxsize=4096)
def _sources(e: ex.Expr) -> frozenset[str]:
    return frozenset(load.source for load in ex.loads(e))


def own_axes(d: Def) -> tuple[Axis, ...]:
    """Return the axes of its result that are loops (extent 1 is none)."""
    return tuple(a for a in d.axes if a.extent.const != 1)


def reduced_axes(d: Def) -> tuple[Axis, ...]:
    return d.expr.axes if isinstance(d.expr, Reduce) else ()


def is_read_in_tiles(d: Def, defs: Mapping[str, Def], divided: Iterable[Axis]) -> bool:
    """Return whether a member reduces an axis that the value has: it is computed where that reads
    it, one tile at a time, and follows no running maximum. `divided`: axes that tasks divide."""
    swept = set(own_axes(d)) - set(divided)
    return any(swept & set(reduced_axes(u)) for u in defs.values() if d.name in sources(u))


def points(axes: Iterable[Axis], hints: Mapping[str, int]) -> int:
    """Return the points of a loop nest at the sizes of the first call."""
    return math.prod(likely(a.extent, hints) for a in axes)


def largest_nest(defs: Mapping[str, Def], hints: Mapping[str, int]) -> int:
    """Return the points of the largest loop nest."""
    return max(points((*own_axes(d), *reduced_axes(d)), hints) for d in defs.values())


def consumed(defs: Mapping[str, Def]) -> set[str]:
    """Return the names that other definitions load."""
    return {s for d in defs.values() for s in sources(d) if s in defs}


def common_axes(defs: Mapping[str, Def], read: Set[str]) -> list[Axis]:
    """Axes that every definition has and over which nothing that is read inside is reduced."""
    members = list(defs.values())
    shared = [*own_axes(members[0]), *reduced_axes(members[0])]
    for d in members[1:]:
        have = {*own_axes(d), *reduced_axes(d)}
        shared = [a for a in shared if a in have]
    closed = {a for d in members if d.name in read for a in reduced_axes(d)}
    return [a for a in shared if a not in closed]


def without_races(axes: list[Axis], defs: Mapping[str, Def]) -> list[Axis]:
    """Return the axes along which no two tasks add to the same element at places that are data."""
    owned: dict[str, set[tuple[Axis, int]]] = {}
    for d in defs.values():
        if isinstance(d.expr, AddAt):
            mine = set(owning_axes(d.expr.place).items())
            owned[d.adds_to] = owned.get(d.adds_to, mine) & mine
    return [a for a in axes if all(a in dict(found) for found in owned.values())]


def parallel_axes(defs: Mapping[str, Def], common: list[Axis]) -> list[Axis]:
    """Return the common axes that no member reduces: along these, tasks are independent."""
    reduced = {a for d in defs.values() for a in reduced_axes(d)}
    return [a for a in common if a not in reduced]


def owning_axes(place: Load) -> dict[Axis, int]:
    """Return the axes that are a dim of the place by themselves. Points that differ along one never
    have the same place."""
    return {a: k for k, i in enumerate(place.index) if (a := the_axis(i)) is not None}


def is_batch(a: Axis, defs: Mapping[str, Def], hints: Mapping[str, int]) -> bool:
    """Return whether two points of the axis have no factor of a product in common, or without
    products read nothing in common; and each has enough work. A part of a factor may be common,
    such as a bias, and what is read beside products, such as a mask."""
    factors = [e for d in defs.values() for e in _factors(d)]
    read = factors or [e for d in defs.values() for e in ex.loads(d.expr)]
    work = largest_nest(defs, hints)
    enough = work >= SMALL_POINTS * likely(a.extent, hints)
    return enough and all(a in e.free for e in read if e.free)


def _factors(d: Def) -> tuple[Expr, ...]:
    """Return the factors of a product of matrices, or of what is similar; () for others."""
    body = d.expr.body if isinstance(d.expr, Reduce) else d.expr
    if not d.is_contraction or not isinstance(body, Apply) or body.fn != "mul":
        return ()
    return body.args


def shares_columns(axes: Sequence[Axis], defs: Mapping[str, Def]) -> bool:
    """Return whether the last axis has few points, and all products share a factor over the axis
    before. Then a task takes the rows of several points."""
    products = [d for d in defs.values() if d.is_contraction]
    if len(axes) < 2 or (axes[-1].extent.const or SHORT + 1) > SHORT or not products:
        return False
    for d in products:
        factors = [x.free for x in ex.loads(d.expr) if x.free & {*reduced_axes(d)}]
        if not any(free.isdisjoint(axes[-2:]) for free in factors):
            return False
    return True


def pointwise_inlined(defs: Mapping[str, Def]) -> dict[str, Def]:
    """Return the definitions, with stored pointwise members recomputed in registers by their
    readers."""
    result: dict[str, Def] = {}
    pointwise: dict[str, Def] = {}
    for d in defs.values():
        new = Def(name=d.name, axes=d.axes, expr=inline(d.expr, pointwise), loc=d.loc, op=d.op)
        result[d.name] = new
        if not isinstance(d.expr, Reduce):
            pointwise[d.name] = new
    return result


def is_long(d: Def, hints: Mapping[str, int]) -> bool:
    """Return whether the definition is a contraction that is better stored than computed twice."""
    terms = points(reduced_axes(d), hints)
    return d.is_contraction and terms >= LONG


def with_axes(d: Def, renaming: Mapping[Axis, Axis]) -> Def:
    """Return the definition with axes replaced."""
    if not renaming:
        return d
    expr = at_indices(d.expr, {a: as_index(b) for a, b in renaming.items()})
    axes = tuple(renaming.get(a, a) for a in d.axes)
    return Def(name=d.name, axes=axes, expr=expr, loc=d.loc, op=d.op)
