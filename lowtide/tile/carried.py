"""Decides which float32 sums a kernel carries from tile to tile in float64.

In:  an arrangement and one of its items. Out: the dtype of the item's accumulator.

    for i by 2048                      t: f64
      nest (j vector, i)         ->    a tile's terms are added up in float32, in registers or in a
        t = sum[i](x[i, j])            part; then t = t + f64(part)

A float32 total to which a thousand parts are added one by one has an error of ten units in the last
place; PyTorch's total has an error of one. The loops over terms stay as they are.
"""

from __future__ import annotations

import math

from lowtide.ir.dtypes import BY_NAME, DType, f32, f64
from lowtide.tile.arrange import Arrangement
from lowtide.tile.axes import own_axes
from lowtide.tile.block_arrangement import BlockArrangement
from lowtide.tile.items import Item, rounds, updated_in_memory

MOST_RESULTS = 1 << 14  # that a thread carries: 64 KiB more than in float32
FEW_TILES = 8  # that are added up in float32 where only one was likely
LEAST_TERMS = 512  # of a tile, where each addition is one of vectors in memory


def accumulator_dtype(a: Arrangement, item: Item) -> DType:
    """Return the dtype in which the sum goes on from tile to tile."""
    dtype = BY_NAME[item.d.dtype.compute]
    return f64 if dtype is f32 and rounds(item) and _is_long(a, item) else dtype


def _is_long(a: Arrangement, item: Item) -> bool:
    """Return whether the sum is worth float64. If other kernels compute it, too, its formula
    decides: likely sizes may differ there."""
    tiles = {t.axis: t.tile for t in a.grid} | a.tiles
    if isinstance(a, BlockArrangement) or tiles.keys().isdisjoint(item.reduced):
        return False
    if item.name in a.rescaled:
        return False
    if item.name in a.alike:
        return a.alike[item.name] is f64
    if _is_in_one_tile(a, item):
        return False
    whole = tiles if not a.per_thread(item.d) else {}
    kept = [whole.get(x) or a.extent(x) for x in own_axes(item.d) if x not in item.reduced]
    terms = [tiles.get(x) or x.extent.const or LEAST_TERMS for x in item.reduced]
    is_cheap = item.vector in item.reduced or updated_in_memory(item, a.all_items())
    is_cheap |= math.prod(terms) >= LEAST_TERMS
    return is_cheap and math.prod(kept) <= MOST_RESULTS


def _is_in_one_tile(a: Arrangement, item: Item) -> bool:
    """Return whether all terms of a sum along the lanes are likely to be in one tile. The kernels
    are planned anew where that axis becomes much longer, so that the hints decide about speed
    only."""
    swept = [x for x in item.reduced if x in a.tiles]
    if item.vector not in item.reduced or a.per_thread(item.d) or len(swept) != 1:
        return False
    (axis,) = swept
    if a.extent(axis) > a.tiles[axis]:
        return False
    a.most[axis] = FEW_TILES * a.tiles[axis]
    return True
