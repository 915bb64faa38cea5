"""Decides whether a merge of two groups pays. `group` decides whether it is legal.

In:  definitions over unified axes, their common axes, likely sizes. Out: bools.

    m[i] = max[j](x[i, j])     e[i, j] = exp(x[i, j] - m[i])       yes: x is read once per row
    n[j] = sum[k](b[k, j])     c[i, j] = sum[k](a[i, k] * b[k, j]) no: tasks would own columns of c
                                                                   only, to read b once
    h[i, k] = sum[c](x[i, c] * w[c, k])     l[i, k] = layer norm of row h[i]     no: h would be
                                            computed once for the statistics and once for l
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Reduce
from lowtide.texpr.index import Axis
from lowtide.texpr.sizes import elements, likely
from lowtide.tile.axes import (
    common_axes,
    consumed,
    is_read_in_tiles,
    largest_nest,
    own_axes,
    parallel_axes,
    points,
    reduced_axes,
    sources,
)
from lowtide.tile.lines import Strides, leaves_few
from lowtide.tile.online import rescaled, waits
from lowtide.tile.program_sharing import may_share

LEAST_PARALLEL: Final = 8  # a merge that leaves fewer independent points than this is not worth it
FEW: Final = 64  # an axis longer than this counts as large
SHARE: Final = 8  # a merge that costs freedom must share this fraction of its work
COLUMNS: Final = 8  # a product that must be held whole by each task has at most so many columns …
HELD: Final = 1 << 18  # … or so many elements
ROWS: Final = 256  # of the axis that tasks share, in one task
LONG_PRODUCT: Final = 16  # terms: shorter ones are done again sooner than read
WIDE: Final = 512  # a contraction fed by a contraction is fused up to this many kept columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a program and its machine.

    `tasks`: the number of a kernel's tasks that keeps all threads busy. `stored`: the elements of
    all inputs and outputs; a value of that size may as well be stored. `long`: products larger than
    that, which are better not computed twice. `independent`: on a GPU, where a program keeps
    nothing for the next one. `strides`: of the tensors in memory.
    """

    tasks: int
    stored: int
    long: frozenset[str]
    independent: bool
    strides: Strides


def pays(
    before: Sequence[Mapping[str, Def]],
    common: list[Axis],
    limits: Limits,
    hints: Mapping[str, int],
) -> bool:
    """Return whether one kernel of the two groups, over unified axes, is better than two."""
    full = {**before[0], **before[1]}
    if limits.independent:
        if not may_share(full, common, hints, limits.stored):
            return False
    elif leaves_few(before, common, limits.strides, hints, limits.tasks):
        return False
    return _worth_it(full, common, hints, limits) and not any(
        _is_computed_twice(d, full, common, hints) and _stays_apart(d, before, hints, limits.stored)
        for d in full.values()
    )


def leaves_tasks(
    defs: Mapping[str, Def], read: set[str], common: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether the common axes have enough points to keep the threads busy."""
    if len(defs) > 1 and not parallel_axes(defs, common):
        # the grid will be an axis that some member reduces, into a buffer of each thread
        for d in defs.values():
            if set(reduced_axes(d)) & set(common) and len(large_axes(own_axes(d), hints)) > 1:
                return False
    return points(common, hints) >= LEAST_PARALLEL or not any(reduced_axes(defs[n]) for n in read)


def keeps_freedom(
    before: Sequence[Mapping[str, Def]],
    pairs: Sequence[Def],
    common: list[Axis],
    hints: Mapping[str, int],
) -> bool:
    """Return whether the merge may take common axes from the larger group: only if both share
    enough.

    A row softmax of x shares all of x, and is merged. Column norms of b, merged into a @ b.T, would
    tie the product to its columns, only to read b once. `pairs`: pointwise values that both groups
    compute.
    """
    work = [largest_nest(g, hints) for g in before]
    large = before[0] if work[0] >= work[1] else before[1]
    lost = set(common_axes(large, consumed(large))) - set(common)
    if not lost:
        return True
    passed = [*_passed_on(before), *pairs]
    if any(len(large_axes(own_axes(d), hints)) >= 2 for d in passed):
        return True
    return _shared_points(before, hints) * SHARE >= max(work)


def _passed_on(before: Sequence[Mapping[str, Def]]) -> list[Def]:
    """Return the values that one group makes and the other reads."""
    first, second = before
    return [
        made[s]
        for made, used in ((first, second), (second, first))
        for d in used.values()
        for s in sources(d)
        if s in made
    ]


def _shared_points(before: Sequence[Mapping[str, Def]], hints: Mapping[str, int]) -> int:
    """Return the most elements of one value that both read, or one makes and the other reads."""
    most = 1
    loads = [
        {(x.source, frozenset(x.free)) for d in g.values() for x in ex.loads(d.expr)}
        for g in before
    ]
    for _, axes in loads[0] & loads[1]:
        most = max(most, points(axes, hints))
    for d in _passed_on(before):
        most = max(most, points(own_axes(d), hints))
    return most


def large_axes(axes: Iterable[Axis], hints: Mapping[str, int]) -> list[Axis]:
    """Return the axes longer than FEW points."""
    return [a for a in axes if likely(a.extent, hints) > FEW]


def _worth_it(
    defs: Mapping[str, Def], common: list[Axis], hints: Mapping[str, int], limits: Limits
) -> bool:
    parallel = parallel_axes(defs, common)
    held_limit = 0 if limits.independent else HELD
    rows = dict.fromkeys(parallel, 1)
    if held_limit and points(parallel, hints) < limits.tasks:
        if any(not limits.long.isdisjoint(sources(d)) for d in defs.values()):
            held_limit = 0  # better in strips
        # the grid is the longest of the other axes, too: what reduces it is held by each thread
        others = sorted(set(common) - set(parallel), key=lambda a: likely(a.extent, hints))
        rows |= {a: min(likely(a.extent, hints), ROWS) for a in others[-1:]}
    if len(defs) > 1 and any(_spreads(d, defs, rows, hints, held_limit) for d in defs.values()):
        return False
    for d in defs.values():
        fed = any(defs[s].is_contraction for s in sources(d) if s in defs)
        if fed and d.is_contraction:
            inner = {a for s in sources(d) if s in defs for a in own_axes(defs[s])}
            if points((a for a in own_axes(d) if a not in inner), hints) > WIDE:
                return False
    return True


def _spreads(
    d: Def,
    defs: Mapping[str, Def],
    rows: Mapping[Axis, int],
    hints: Mapping[str, int],
    held_limit: int,
) -> bool:
    """Return whether each task would have to hold a whole product of more than `held_limit`
    elements.

    `rows`: the points of a task along each axis that tasks divide. With dk[j, c] and dq[i, c] in
    one kernel, tasks of rows i hold all of dk. Two kernels, which both compute the tile of pairs
    (i, j), are better, unless a cache can hold dk.
    """
    if not d.is_contraction:
        return False
    outside = [a for a in own_axes(d) if a not in rows]
    readers = (u for u in defs.values() if d.name in sources(u))
    if any(set(outside) & set(reduced_axes(u)) for u in readers):
        return False  # it is read one tile at a time
    held = points(outside, hints)
    if held * math.prod(rows.get(a, 1) for a in own_axes(d)) <= held_limit:
        return False
    return any(held > COLUMNS * likely(a.extent, hints) for a in large_axes(outside, hints))


def _is_computed_twice(
    d: Def, defs: Mapping[str, Def], common: list[Axis], hints: Mapping[str, int]
) -> bool:
    """Return whether a sweep that waits for sums over a long product would compute that product
    twice.

    In layer_norm(x @ w), the product is better stored. A tile with a whole row of it needs no
    second sweep.
    """
    swept = set(own_axes(d)) - set(common)
    if not d.is_contraction or not swept:
        return False
    if points(reduced_axes(d), hints) < LONG_PRODUCT:
        return False
    known = [a.extent.const for a in swept]
    if math.prod(n or WIDE + 1 for n in known) <= WIDE:
        return False
    readers = list(_readers(d, defs))
    first = {u.name for u in readers if swept & set(reduced_axes(u))}
    if not first:
        return False
    sums = {n: u for n, u in defs.items() if n in first}
    rescaled_maxima = rescaled(sums, lambda u: None if is_read_in_tiles(u, defs, common) else True)
    return any(waits(u, first, defs, rescaled_maxima) for u in readers)


def _stays_apart(
    d: Def, before: Sequence[Mapping[str, Def]], hints: Mapping[str, int], stored: int
) -> bool:
    """Return whether two kernels are better than one that computes the product twice: if it may be
    stored, or one of them computes it once and the other does not read it, as the layer behind an
    attention does not read its scores."""
    if elements(d.shape, hints) <= stored:
        return True
    own, other = before if d.name in before[0] else (before[1], before[0])
    if any(d.name in sources(u) for u in other.values()):
        return False
    return not _is_computed_twice(d, own, common_axes(own, consumed(own)), hints)


def _readers(d: Def, defs: Mapping[str, Def]) -> Iterator[Def]:
    """Yield the readers of a value, and the readers of its pointwise readers, which compute it
    anew."""
    for u in defs.values():
        if d.name in sources(u):
            yield u
            if not isinstance(u.expr, Reduce):
                yield from _readers(u, defs)
