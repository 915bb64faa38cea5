"""Kernels of blocks: what a GPU runs. A value is a block of a few axes, held by one program.

In:  a `Group`, what of it must be stored, likely sizes.
Out: a `BlockArrangement`, which `plan` turns into nests as it does for the CPU.

    out[i, j] = sum[k](a[i, k] * b[k, j])   grid i by 64, j by 64; k swept by 32, a block product
    r[i]      = min[j]((x[i] - y[j])**2)    grid i by 64; j swept by 64
    y[n, c]   = x[n, c] * w[c]              grid n by 8, c by 256

Always holds: tiles are powers of two; every axis is in the grid, swept, or held in full because an
accumulator keeps it; no program reads what another one makes. An axis of tile 1 is a plain number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import factors
from lowtide.texpr.expr import Cast, Expr, Reduce
from lowtide.texpr.index import Axis
from lowtide.tile.arrange import Arrangement
from lowtide.tile.axes import apart_axes, common_axes
from lowtide.tile.ir import Tiled
from lowtide.tile.items import Item, choose_vector

ROWS_OF_SUMS = 64  # of an axis that a sum keeps
PROGRAMS = 256  # smaller blocks of what sums keep, until there are so many programs
MUCH_WORK = 1 << 20  # of a sum; less is done by few programs as fast
MOST_POINTS = 1 << 13  # of a sum that a program holds
LANES = 32  # threads that read side by side
LONGEST_LINE = 1024
HALVES = ("bf16", "f16")
LEAST_PRODUCT = 16  # what the units for products take at least


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProduct:
    """`sum[k](left[rows, k] * right[k, columns])`: factors without the other side's axis."""

    rows: Axis
    columns: Axis
    over: Axis
    left: tuple[Expr, ...]
    right: tuple[Expr, ...]


def as_product(
    fn: str, body: Expr, kept: tuple[Axis, ...], over: tuple[Axis, ...]
) -> BlockProduct | None:
    """A sum of products over one axis that leaves two, each on one side; None for any other.

    `kept`, `over`: of the reduction's axes, those that are blocks. The first of `kept` is that of
    the rows."""
    if fn != "sum" or len(over) != 1 or len(kept) != 2 or not body.dtype.is_float:
        return None
    parts = list(factors(body))
    for rows, columns in (kept, kept[::-1]):
        left = tuple(f for f in parts if rows in f.free)
        right = tuple(f for f in parts if rows not in f.free)
        if not left or not any(columns in f.free for f in right):
            continue
        if any(columns in f.free for f in left):
            continue
        if any(over[0] in f.free for f in left) and any(over[0] in f.free for f in right):
            first, second = (left, right) if rows is kept[0] else (right, left)
            return BlockProduct(
                rows=kept[0], columns=kept[1], over=over[0], left=first, right=second
            )
    return None


def half_of(product: BlockProduct) -> DType | None:
    """The half type that both sides are numbers of, if each is one value, only widened for the sum.

    The units for products multiply such numbers exactly, and add up in float32."""
    found = {_half(side) for side in (product.left, product.right)}
    return found.pop() if len(found) == 1 else None


def _half(side: tuple[Expr, ...]) -> DType | None:
    (only, *rest) = side
    if rest or not isinstance(only, Cast) or only.dtype.name != "f32":
        return None
    return only.arg.dtype if only.arg.dtype.name in HALVES else None


class BlockArrangement(Arrangement):
    """The decisions about one kernel of blocks."""

    # -- what the base class asks for --

    def _grid(self) -> tuple[Tiled, ...]:
        self.blocks: dict[Axis, int] = {}  # how many points of each axis a program has
        self.apart = apart_axes(self.defs, common_axes(self.defs, self.consumed))
        return tuple(Tiled(a, None) for a in self.apart)

    def _sized_grid(self) -> tuple[Tiled, ...]:
        self.blocks = self._sized_blocks()
        grid = tuple(Tiled(a, self.blocks.get(a, 1)) for a in self.apart)
        self.ctx = replace(
            self.ctx,
            fixed=frozenset(t.axis for t in grid if t.tile == 1),
            shared=frozenset(t.axis for t in grid if t.tile != 1),
        )
        return grid

    def _items(self) -> list[Item]:
        items = super()._items()
        for item in (*items, *self.local.values()):
            item.vector, item.staged = None, []
        return items

    def _tiles(self) -> dict[Axis, int]:
        """Every axis that is not in the grid is swept, but for what accumulators keep in full."""
        kept = self._kept_in_full()
        loops = dict.fromkeys(a for i in self.all_items() for a in i.loops)
        outside = self.grid_axes() | kept
        return {a: self.blocks.get(a, 1) for a in loops if a not in outside}

    def _held(self) -> frozenset[Expr]:
        return frozenset()

    # -- sizes of blocks --

    def _kept_in_full(self) -> frozenset[Axis]:
        grid = self.grid_axes()
        reductions = (i for i in self.items if i.kind == "reduce")
        return frozenset(a for i in reductions for a in i.kept if a not in grid)

    def _sized_blocks(self) -> dict[Axis, int]:
        """The largest items choose first; who comes later keeps to it."""
        found: dict[Axis, int] = {}
        whole = {a: self._power(a) for a in self._kept_in_full()}
        for item in sorted(self.all_items(), key=self._work, reverse=True):
            wanted = self._wanted(item, {**whole, **found})
            for a in item.loops:
                if a not in whole:
                    found.setdefault(a, wanted.get(a, 1))
        return found

    def _work(self, item: Item) -> int:
        return math.prod(self.extent(a) for a in item.loops)

    def _power(self, a: Axis) -> int:
        """The least power of two that holds the axis, as far as one can tell."""
        return 1 << max(self.extent(a) - 1, 0).bit_length()

    def _wanted(self, item: Item, given: Mapping[Axis, int]) -> dict[Axis, int]:
        """Blocks for the axes of an item; some may be `given`."""
        if (product := self._product_tiles(item, given)) is not None:
            return product
        is_pair, sizes = self._is_pair(item), self.target.blocks
        room, longest = sizes.block_points, LONGEST_LINE
        if is_pair:
            room, longest = sizes.pair_points, sizes.pair_tile
        wanted = {a: given[a] for a in item.loops if a in given}
        room //= math.prod(wanted.values())
        spare = _power_within(math.prod(map(self.extent, item.kept)) // PROGRAMS)
        spare = spare if self._work(item) >= MUCH_WORK else ROWS_OF_SUMS
        lanes = choose_vector([item], replace(self.ctx, lanes=LANES, fixed=frozenset()))
        for a in self._by_need(item, lanes, is_pair):
            if a in wanted:
                continue
            is_row = item.kind == "reduce" and a in item.kept
            least = LEAST_PRODUCT if is_pair else LANES if a is lanes else 1
            most = min(ROWS_OF_SUMS, max(spare, least)) if is_row else longest
            wanted[a] = max(min(self._power(a), most, room), 1)
            room //= wanted[a]
            spare = max(spare // wanted[a], 1) if is_row else spare
        return wanted

    def _by_need(self, item: Item, lanes: Axis | None, is_pair: bool) -> list[Axis]:
        """Which axes get a block first: that along which memory lies, then kept ones from behind.

        Of a value of pairs one more axis is read many times; it comes next. What is summed over
        beside such a value goes point by point."""
        order = [a for a in item.loops if a is lanes]
        order += [a for a in reversed(item.kept) if a is not lanes]
        if not is_pair or all(a in item.kept for a in order):
            others = [a for a in reversed(item.over) if a not in order]
            order += others if not is_pair else others[:1]
        return order if not is_pair else sorted(order, key=lambda a: a in item.over)

    def _is_pair(self, item: Item) -> bool:
        """Does it read two values that each lack one of its long axes, and none that has all?"""
        large = {a for a in item.loops if self.extent(a) >= LEAST_PRODUCT}
        if any(large <= load.free for load in ex.loads(item.body)):
            return False
        lacking = {
            frozenset(large - load.free) for load in ex.loads(item.body) if large & load.free
        }
        return len(lacking - {frozenset[Axis]()}) >= 2

    def _product_tiles(self, item: Item, given: Mapping[Axis, int]) -> dict[Axis, int] | None:
        """Blocks of a product: a side of rows, one of columns, and a part of what is summed over.

        Of several axes on one side, or summed over, the longest is the block; the others go point
        by point."""
        if item.kind != "reduce" or not isinstance(item.d.expr, Reduce):
            return None
        best: tuple[int, dict[Axis, int]] | None = None
        for k in item.over:
            if self.extent(k) < LEAST_PRODUCT:
                continue
            for i in item.kept:
                for j in item.kept:
                    tiles = self._tiles_of_product(item, i, j, k, given)
                    work = self.extent(i) * self.extent(j) * self.extent(k)
                    if tiles is not None and (best is None or work > best[0]):
                        best = work, tiles
        return best[1] if best else None

    def _tiles_of_product(
        self, item: Item, i: Axis, j: Axis, k: Axis, given: Mapping[Axis, int]
    ) -> dict[Axis, int] | None:
        if i is j or min(self.extent(i), self.extent(j)) < LEAST_PRODUCT:
            return None
        assert isinstance(item.d.expr, Reduce)
        if any(given.get(a, 1) != 1 for a in item.loops if a not in (i, j, k)):
            return None
        if as_product(item.d.expr.fn, item.body, (i, j), (k,)) is None:
            return None
        tiles: dict[Axis, int] = {}
        sizes = self.target.blocks
        largest = sizes.product_tile
        side = self._side_of_product(i, j) if self._work(item) >= MUCH_WORK else largest
        sides = ((a, side if a in self.apart else largest) for a in (i, j))
        for a, most in (*sides, (k, sizes.product_steps)):
            tiles[a] = given.get(a, max(min(self._power(a), most), LEAST_PRODUCT))
            if tiles[a] < LEAST_PRODUCT:
                return None
        return dict.fromkeys(item.loops, 1) | tiles

    def _side_of_product(self, i: Axis, j: Axis) -> int:
        """Rows or columns of a block in the grid."""
        largest = self.target.blocks.product_tile
        whole = self._kept_in_full()
        held = max(
            (math.prod(self._power(a) for a in x.kept if a in whole) for x in self.items), default=1
        )
        if 1 < held < LEAST_PRODUCT:
            held *= largest  # no product of blocks: it stays wide
        side = largest
        while side > LEAST_PRODUCT:
            sides = {i: side, j: side}
            programs = math.prod(-(-self.extent(a) // sides.get(a, 1)) for a in self.apart)
            if programs >= PROGRAMS and side * held <= MOST_POINTS:
                break
            side //= 2
        return side


def _power_within(n: int) -> int:
    """The largest power of two that is not more; 1 at least."""
    return 1 << max(n.bit_length() - 1, 0)
