"""Places in memory: the element offset of a load, and its steps along axes.

x[i, 32*h + d] with strides (1024, 1)   ->   address 1024*i + 32*h + d
its steps along i, h, d                 ->   1024, 32, 1
h and d are one axis of 32 * |h| elements with step 1 (`merged`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from lowtide.texpr.expr import Load
from lowtide.texpr.index import Axis, Gather, Index, as_index, deep_atoms, exact_division
from lowtide.texpr.index_ranges import substitute


def address(load: Load, strides: Mapping[str, tuple[Index, ...]]) -> Index:
    """Return the element offset of a load from memory."""
    return place_in(load.index, strides[load.source])


@lru_cache(maxsize=8192)
def place_in(index: tuple[Index, ...], strides: tuple[Index, ...]) -> Index:
    """Return the element offset of an index into a tensor."""
    total = as_index(0)
    for i, stride in zip(index, strides, strict=True):
        total = total + i * stride
    return total


@lru_cache(maxsize=8192)
def stride_along(offset: Index, axis: Axis) -> Index | None:
    """Return by how much the offset grows with the axis; None where that is not a fixed step."""
    if any(axis in deep_atoms(as_index(a)) for a in offset.atoms() if a is not axis):
        return None
    zero = substitute(offset, {axis: as_index(0)})
    step = exact_division(offset - zero, as_index(axis)) if offset is not zero else zero - zero
    if step is not None and any(isinstance(a, Axis | Gather) for a in deep_atoms(step)):
        return None  # `i * i`, `i * j`: other steps at other points
    return step


def merged(axes: Sequence[Axis], steps: Mapping[Axis, Index]) -> tuple[Index, Index] | None:
    """Return the size and stride of several axes that walk through memory as one."""
    size, step = axes[-1].extent, steps[axes[-1]]
    for a in reversed(axes[:-1]):
        if steps[a] is not size * step:
            return None
        size = size * a.extent
    return size, step
