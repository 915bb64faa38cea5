"""Arranges kernels of blocks, for GPUs: a value is a block of a few axes in one program.

In:  a `Group`, the names that must be stored, likely sizes.
Out: a `BlockArrangement`, which `plan` turns into nests as it does for the CPU.

    out[i, j] = sum[k](a[i, k] * b[k, j])   grid i by 64, j by 64; k swept by 32, a block product
    r[i]      = min[j]((x[i] - y[j])**2)    grid i by 64; j swept by 64
    y[n, c]   = x[n, c] * w[c]              grid n by 8, c by 256

Invariant: tiles are powers of two; every axis is in the grid, swept, or held in full because an
accumulator keeps it; no program reads what another one makes. An axis of tile 1 is a plain number.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lowtide.texpr import expr as ex
from lowtide.texpr.build import symbols
from lowtide.texpr.expr import Expr, Reduce
from lowtide.texpr.index import Axis, Index, as_index
from lowtide.texpr.sizes import evaluate
from lowtide.tile.arrange import Arrangement
from lowtide.tile.axes import common_axes, parallel_axes
from lowtide.tile.ir import Tiled
from lowtide.tile.items import Item, choose_vector
from lowtide.tile.predict import Prediction, Shape, predict
from lowtide.tile.products import LEAST_PRODUCT, as_product
from lowtide.tile.shapes import Tiles, shape_of
from lowtide.tile.target import BLOCK_CHOICES, BlockSizes

LANES = 32  # threads that read side by side
LAUNCH_NS = 10_000  # per step, if the kernel cannot loop over steps
PLAIN, PAIR, PRODUCT = "plain", "pair", "product"
VARIED = {  # which sizes have a say in the blocks of an item, what is most work first
    PRODUCT: ("product_rows", "product_columns", "product_steps", "stages"),
    PAIR: ("pair_points", "pair_tile", "rows"),
    PLAIN: ("points", "line", "rows"),
}
TILES = tuple(n for n in BLOCK_CHOICES if n not in ("warps", "stages"))

Blocks = dict[Axis, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Facts about an item that are known without sizes: the axis along which memory lies, whether
    it is a value of pairs, and the products that it may be."""

    lanes: Axis | None
    is_pair: bool
    order: tuple[Axis, ...]
    products: tuple[tuple[Axis, Axis, Axis], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Sizes, their blocks, and the prediction for these."""

    sizes: BlockSizes
    blocks: Blocks
    shape: Shape
    found: Prediction


class BlockArrangement(Arrangement):
    """The decisions about one kernel of blocks."""

    holds_rows = False

    # -- what the base class asks for --

    def _grid(self) -> tuple[Tiled, ...]:
        self.blocks: Blocks = {}  # how many points of each axis a program has
        self.parallel = parallel_axes(self.defs, common_axes(self.defs, self.consumed))
        return tuple(Tiled(a, None) for a in self.parallel)

    def _sized_grid(self) -> tuple[Tiled, ...]:
        choice = self._chosen()
        self.blocks = choice.blocks
        self.warps, self.stages = choice.sizes.warps, choice.sizes.stages
        grid = tuple(Tiled(a, self.blocks.get(a, 1)) for a in self.parallel)
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

    def _bound_accumulators(self) -> None:
        """They are sized by what registers and shared memory hold, in powers of 2."""

    def _tiles(self) -> dict[Axis, int]:
        """Sweep every axis outside of the grid, except those that accumulators keep in full."""
        kept = self._full_axes()
        loops = dict.fromkeys(a for i in self.all_items() for a in i.loops)
        outside = self.grid_axes() | kept
        return {a: self.blocks.get(a, 1) for a in loops if a not in outside}

    def _stored_in_task(self) -> frozenset[Expr]:
        return frozenset()

    # -- sizes of blocks --

    def _full_axes(self) -> frozenset[Axis]:
        grid = self.grid_axes()
        reductions = (i for i in self.items if i.kind == "reduce")
        return frozenset(a for i in reductions for a in i.unreduced if a not in grid)

    def _chosen(self) -> Choice:
        """Return the choice of least predicted time that the GPU can run; if it can run none, that
        of least needs."""
        found = list(self._choices())
        legal = [c for c in found if c.found.resident]
        if not legal:
            return min(found, key=lambda c: (c.found.shared_bytes, c.found.registers))
        return min(legal, key=self._time_ns)

    def _time_ns(self, choice: Choice) -> float:
        launches = self.in_loop and choice.shape.programs > 1 and not self._is_own()
        return choice.found.time_ns + (LAUNCH_NS if launches else 0)

    def _is_own(self) -> bool:
        """Return whether each program of a step reads only what it has written itself. False if
        unsure."""
        grid = [as_index(a) for a in self.parallel]
        loads = (x for i in self.all_items() for x in ex.loads(i.body))
        return all(a in x.index for x in loads for a in grid if x.source not in self.ctx.inner)

    def _choices(self) -> Iterator[Choice]:
        """Yield each choice of warps and stages, if its blocks differ."""
        given = self.target.blocks.choices
        self.known = {i: self._known_of(i) for i in self.all_items()}
        varied = self._varied()
        whole = {a: self.power(a) for a in self._full_axes()}
        seen: set[tuple[tuple[Axis, int], ...]] = set()
        for values in itertools.product(
            *(given[n] if n in varied else given[n][:1] for n in TILES)
        ):
            fields: dict[str, int] = dict(zip(TILES, values, strict=True))
            self.sizes = BlockSizes(**fields, warps=0, stages=0)
            blocks = self._sized_blocks()
            key = tuple(blocks.items())
            if key in seen:
                continue
            seen.add(key)
            shape = self.shape(blocks, whole)
            stages = given["stages"] if "stages" in varied else given["stages"][:1]
            for warps, ahead in itertools.product(given["warps"], stages):
                sizes = replace(self.sizes, warps=warps, stages=ahead)
                found = predict(shape, self.target.blocks.gpu, warps, ahead)
                yield Choice(sizes=sizes, blocks=blocks, shape=shape, found=found)

    def _varied(self) -> tuple[str, ...]:
        """Return the names of the sizes to vary: those of products, or of pairs, if there are such
        items."""
        kinds = {self._kind(i) for i in self.all_items()}
        return next((names for kind, names in VARIED.items() if kind in kinds), ())

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Return, for an axis that is held in full, how much longer it is than the GPU can hold;
        None if it can hold all."""
        planned = {a: self.power(a) for a in self._full_axes()}
        known = (a for a in planned if symbols(a.extent) <= sizes.keys())
        wider = {a: power_of(max(evaluate(a.extent, sizes), 1)) for a in known}
        wider = {a: n for a, n in wider.items() if n > planned[a]}
        if not wider or self._holds(planned | wider):
            return None
        widest = max(wider, key=lambda a: wider[a] / planned[a])
        most = planned[widest]
        while 2 * most < wider[widest] and self._holds(planned | {widest: 2 * most}):
            most *= 2
        return widest.extent - (most + 1)

    def time_ns(self, sizes: Mapping[str, int]) -> float:
        """Return the predicted time of these blocks at other sizes."""
        other = copy.copy(self)
        other.hints = {**self.hints, **sizes}
        other.ctx = replace(self.ctx, hints=other.hints)
        shape = other.shape(self.blocks, {a: other.power(a) for a in self._full_axes()})
        return predict(shape, self.target.blocks.gpu, self.warps, self.stages).time_ns

    def _holds(self, whole: Blocks) -> bool:
        """Return whether the GPU can run the kernel if so many points of these axes are held."""
        shape = self.shape(self.blocks, whole)
        return predict(shape, self.target.blocks.gpu, self.warps, self.stages).resident > 0

    def shape(self, blocks: Blocks, whole: Blocks) -> Shape:
        """Return the work of a program with these blocks."""
        points = {a: blocks.get(a, 1) for a in self.parallel} | {**blocks, **whole}
        outside = {*self.parallel, *whole}
        swept = {a: -(-self.extent(a) // n) for a, n in blocks.items() if a not in outside}
        programs = math.prod(-(-self.extent(a) // points[a]) for a in self.parallel)
        tiles = Tiles(points=points, programs=programs, swept=swept)
        return shape_of(self.all_items(), tiles, self.ctx)

    def _known_of(self, item: Item) -> Known:
        lanes = choose_vector([item], replace(self.ctx, lanes=LANES, fixed=frozenset()))
        is_pair = self._is_pair(item)
        return Known(
            lanes=lanes,
            is_pair=is_pair,
            order=tuple(self._by_need(item, lanes, is_pair)),
            products=tuple(self._products(item)),
        )

    def _kind(self, item: Item) -> str:
        if self.known[item].products:
            return PRODUCT
        return PAIR if self.known[item].is_pair else PLAIN

    def _sized_blocks(self) -> Blocks:
        """Choose blocks, the largest items first. Sums that other kernels also compute run term by
        term, so that all add in one order."""
        whole = {a: self.power(a) for a in self._full_axes()}
        alike = (i for i in self.all_items() if i.name in self.alike and not self.known[i].products)
        found: Blocks = {a: 1 for i in alike for a in i.reduced if a not in whole}
        for item in sorted(self.all_items(), key=self._work, reverse=True):
            wanted = self._wanted(item, {**whole, **found})
            for a in item.loops:
                if a not in whole:
                    found.setdefault(a, wanted.get(a, 1))
        return found

    def _work(self, item: Item) -> int:
        return math.prod(self.extent(a) for a in item.loops)

    def power(self, a: Axis) -> int:
        """Return the least power of two that holds the axis, as far as one can tell."""
        return power_of(self.extent(a))

    def _wanted(self, item: Item, given: Mapping[Axis, int]) -> dict[Axis, int]:
        """Blocks for the axes of an item; some may be `given`."""
        if (product := self._product_tiles(item, given)) is not None:
            return product
        known, sizes = self.known[item], self.sizes
        points_left, longest = sizes.points, sizes.line
        if known.is_pair:
            points_left, longest = sizes.pair_points, sizes.pair_tile
        wanted = {a: given[a] for a in item.loops if a in given}
        points_left //= math.prod(wanted.values())
        rows = sizes.rows
        for a in known.order:
            if a in wanted:
                continue
            is_row = item.kind == "reduce" and a in item.unreduced
            least = LEAST_PRODUCT if known.is_pair else LANES if a is known.lanes else 1
            most = max(rows, least) if is_row else longest
            wanted[a] = max(min(self.power(a), most, points_left), 1)
            points_left //= wanted[a]
            rows = max(rows // wanted[a], 1) if is_row else rows
        return wanted

    def _by_need(self, item: Item, lanes: Axis | None, is_pair: bool) -> list[Axis]:
        """Return the axes in the order in which they get blocks.

        The axis along memory comes first, then kept axes from the last on. A value of pairs is read
        many times along one more axis, which comes next. Other summed axes of such a value go point
        by point.
        """
        order = [a for a in item.loops if a is lanes]
        order += [a for a in reversed(item.unreduced) if a is not lanes]
        if not is_pair or all(a in item.unreduced for a in order):
            others = [a for a in reversed(item.reduced) if a not in order]
            order += others if not is_pair else others[:1]
        return order if not is_pair else sorted(order, key=lambda a: a in item.reduced)

    def _is_pair(self, item: Item) -> bool:
        """Return whether the item reads two values that each lack one of its long axes, and none
        that has all."""
        large = {a for a in item.loops if self.extent(a) >= LEAST_PRODUCT}
        if any(large <= load.free for load in ex.loads(item.body)):
            return False
        lacking = {
            frozenset(large - load.free) for load in ex.loads(item.body) if large & load.free
        }
        return len(lacking - {frozenset[Axis]()}) >= 2

    def _product_tiles(self, item: Item, given: Mapping[Axis, int]) -> Blocks | None:
        """Return the blocks of a product: a side of rows, one of columns, and a part of the summed
        axis. Of several axes on one side, or summed over, the longest is the block; the others go
        point by point."""
        best: tuple[int, Blocks] | None = None
        for i, j, k in self.known[item].products:
            tiles = self._tiles_of_product(item, (i, j, k), given)
            work = self.extent(i) * self.extent(j) * self.extent(k)
            if tiles is not None and (best is None or work > best[0]):
                best = work, tiles
        return best[1] if best else None

    def _products(self, item: Item) -> Iterator[tuple[Axis, Axis, Axis]]:
        """Yield rows, columns and summed axes of the products that an item may be."""
        if item.kind != "reduce" or not isinstance(item.d.expr, Reduce):
            return
        long = {a for a in item.loops if self.extent(a) >= LEAST_PRODUCT}
        for k in (a for a in item.reduced if a in long):
            for i, j in itertools.permutations([a for a in item.unreduced if a in long], 2):
                if as_product(item.d.expr.fn, item.body, (i, j), (k,)) is not None:
                    yield i, j, k

    def _tiles_of_product(
        self, item: Item, axes: tuple[Axis, Axis, Axis], given: Mapping[Axis, int]
    ) -> Blocks | None:
        if any(given.get(a, 1) != 1 for a in item.loops if a not in axes):
            return None
        sizes = (self.sizes.product_rows, self.sizes.product_columns, self.sizes.product_steps)
        tiles: Blocks = {}
        for a, most in zip(axes, sizes, strict=True):
            tiles[a] = given.get(a, max(min(self.power(a), most), LEAST_PRODUCT))
            if tiles[a] < LEAST_PRODUCT:
                return None
        return dict.fromkeys(item.loops, 1) | tiles


def power_of(n: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(n - 1, 0).bit_length()
