"""Decides whether a grid has enough tasks that do not share cache lines.

In:  definitions over unified axes, the strides of what they read, likely sizes. Out: a bool.

    m[c] = sum[n](x[n, c])        x lies row by row, and c is short. Cut along c, each task would
    y[n, c] = x[n, c] - m[c]      read a part of every cache line, so few tasks are possible. Cut
                                  along n, each task has sums of its own, which are added up at the
                                  end. A second kernel then computes y.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def
from lowtide.texpr.index import Axis, Index, the_axis
from lowtide.tile.axes import common_axes, consumed, largest_nest, points

PART: Final = 256  # elements of a line: so many stay together
MANY: Final = 1 << 19  # points: of fewer, one task is done soon enough

Strides = Mapping[str, tuple[Index, ...]]


def along_lines(defs: Mapping[str, Def], strides: Strides, hints: Mapping[str, int]) -> set[Axis]:
    """Return the axes along which the largest loads are contiguous, if there are many points. Small
    values stay in a cache in any case."""
    if largest_nest(defs, hints) < MANY:
        return set()
    loads = [load for d in defs.values() for load in ex.loads(d.expr) if load.source not in defs]
    sizes = [points(load.free, hints) for load in loads]
    found: set[Axis] = set()
    for load, size in zip(loads, sizes, strict=True):
        if len(load.free) < 2 or 2 * size < max(sizes):
            continue
        # what is computed once more in a kernel has no place in memory
        for i, stride in zip(load.index, strides.get(load.source, ()), strict=False):
            axis = the_axis(i)
            if axis is not None and stride.const == 1:
                found.add(axis)
    return found


def tasks(axes: Iterable[Axis], along: Set[Axis], hints: Mapping[str, int]) -> int:
    """Into how many these axes may be cut: the elements of lines, all axes of them taken together,
    into large parts only."""
    axes = list(axes)
    side_by_side = points((a for a in axes if a in along), hints)
    others = points((a for a in axes if a not in along), hints)
    return others * -(-side_by_side // PART)


def leaves_few(
    before: Iterable[Mapping[str, Def]],
    common: Sequence[Axis],
    strides: Strides,
    hints: Mapping[str, int],
    least: int,
) -> bool:
    """Return whether one kernel of the groups `before` would have fewer than `least` tasks, while
    one of the groups has as many now. Its tasks are parts of `common`."""
    for defs in before:
        along = along_lines(defs, strides, hints)
        now = common_axes(defs, consumed(defs)) if along else []
        if tasks(common, along, hints) < least <= tasks(now, along, hints):
            return True
    return False
