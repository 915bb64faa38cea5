"""Arranges a kernel: its grid, its items, the axes that it sweeps, in order.

In:  a `Group`, the names that must be stored, likely sizes, the machine.
Out: an `Arrangement`, which `plan` turns into nests.

    chamfer: i and j are common, both are reduced by one member: i becomes the grid, 256 rows a
    task; j is swept by 512, since its coordinates are staged; min over i is kept per thread
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Set

from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.build import symbols
from lowtide.texpr.expr import Def, Expr, Input, Reduce
from lowtide.texpr.index import Axis, Index
from lowtide.texpr.sizes import evaluate, likely
from lowtide.tile import online
from lowtide.tile.axes import (
    SMALL_POINTS,
    common_axes,
    consumed,
    is_batch,
    is_read_in_tiles,
    own_axes,
    pointwise_inlined,
    reduced_axes,
    shares_columns,
    sources,
    without_races,
)
from lowtide.tile.common_subtiles import ROW_POINTS, WORTH_HOLDING, Reader, common_subtiles
from lowtide.tile.group import Group
from lowtide.tile.ir import Tiled, reached
from lowtide.tile.items import (
    ADD_TILE,
    FULL_EXTENT,
    LANES_TILE,
    REDUCED_POINTS,
    STAGED_POINTS,
    SUM_TILE,
    Context,
    Item,
    choose_staged,
    choose_vector,
    contains_inner,
    cost,
    is_read,
    is_register_tile,
    lies_along,
    long_lanes,
    long_sum,
    long_terms,
    memory_strides,
    node_cost,
    reduce_item,
    same_points,
    shared_rows,
    short_row,
    short_terms,
    store_item,
    updated_in_memory,
)
from lowtide.tile.lanes import lanes_of
from lowtide.tile.lines import along_lines, tasks
from lowtide.tile.target import Target

ROWS_STEPS = (24, 8, 4, 1)  # whole blocks of 4, 6, 8, 12 rows, of 4, 8, …; along the lanes, vectors
IDLE = 16  # threads wait for the last tile at most this fraction of the time
LONG_TILE = 512  # of the sums that give the gradient of weights: as much of a line,
LONG_ROWS = 8  # of so many results,
LINES_TILE = 8  # and so many lines, stay in L2 while all results are summed up
ALIKE_TILE = 144  # of a sum that other kernels compute, too
LONGER = 4  # times today's extent: a tile needs no room for more, as kernels are planned anew then
SUM_POINTS = 1 << 20  # that a task sums up at once: 4 MiB of floats for each thread
LOCAL_POINTS = 1 << 18  # of a value that lives for one tile: 1 MiB of floats
KEPT_POINTS = 1 << 17  # of a contraction that is read again: stays in L2
HELD_POINTS = 1 << 16  # of a convolution's accumulator: the lines of a tile, for all its outputs


class Arrangement:
    """The decisions about one kernel: its grid, items, sweeps and their order.

    `warps`, `stages`: of a kernel of blocks, see `target.BlockSizes`."""

    warps = stages = 0
    holds_rows = True  # may a task hold all of a long axis for values that it reads again?

    def __init__(
        self,
        group: Group,
        stores: list[str],
        inputs: Mapping[str, Input],
        defs: Mapping[str, Def],
        hints: Mapping[str, int],
        target: Target,
        name: str,
        moving: Set[str],
        alike: Mapping[str, DType] | None = None,
    ) -> None:
        self.name = name
        self.alike = alike or {}  # sums of other kernels, too, and the dtype that adds up tiles
        self.moving = moving  # of a step of a loop, what is another at the next one
        self.in_loop = bool(moving)  # a step's values are no larger than what the loop carries
        self.hints = hints
        self.target = target
        self.stores = stores
        self.epilogue = group.epilogue
        self.defs = pointwise_inlined(group.defs)
        self.reductions = {n: d for n, d in self.defs.items() if isinstance(d.expr, Reduce)}
        self.consumed = consumed(self.defs)
        self.lanes = lanes_of(self.defs.values(), target)
        self.strides = memory_strides(inputs, {**defs, **self.defs})
        self.grid = self._grid()
        self.ctx = Context(
            strides=self.strides,
            inner=self.reductions,
            fixed=frozenset(t.axis for t in self.grid if t.tile == 1),
            shared=frozenset(t.axis for t in self.grid if t.tile != 1),
            hints=hints,
            lanes=self.lanes,
        )
        self.bounded: frozenset[Axis] = frozenset()  # kernels are planned anew where these grow
        self.most: dict[Axis, int] = {}  # likewise where an axis is longer than this
        self._settle()
        if self._may_hold_rows():
            few = (a for a in self.tiles if a.extent.const is None and self.extent(a) <= ROW_POINTS)
            self.bounded = frozenset(few)
            self._settle()
            if not self.held:
                self.bounded = frozenset()
                self._settle()

    def _may_hold_rows(self) -> bool:
        """Return whether a task may hold whole rows. Rows of tiles of pairs may be long."""
        if not (self.holds_rows and self.tiles) or self.held or self.in_loop or self.local:
            return False
        return not any(is_register_tile(i, self.ctx) for i in self.items)

    def _settle(self) -> None:
        """Arrange until it is known which reductions are computed again in a later sweep."""
        self.recomputed: set[str] = set()
        while True:
            self._arrange()
            late = self._read_late()
            if not late:
                break
            self.recomputed |= late

    def _arrange(self) -> None:
        self.grid = tuple(Tiled(t.axis, 1 if t.axis in self.ctx.fixed else None) for t in self.grid)
        self.items = self._items()
        self.grid = self._sized_grid()
        self.tiles = self._tiles()
        self.rank = self._rank()
        self._bound_accumulators()
        for item in self.all_items():
            item.chain = self._chain(item.loops)
        self.rescaled = online.rescaled(self.reductions, self._sweeps)
        self.levels = self._levels()
        # those that another sweep waits for may as well wait for the maximum
        alike = ((n, m) for n, m in self.rescaled.items() if self.levels[n] == self.levels[m])
        self.rescaled = dict(alike)
        self.held = self._stored_in_task()
        for item in self.all_items():
            inside = self.stored_in(item.body)
            item.staged = [*inside, *(e for e in item.staged if e not in self.held)]
        for item in self.items:
            beside = [i for i in self.items if i is not item and self._share_sweeps(i, item)]
            if found := self._staged_by_others(item, beside):
                inside = {x for e in found for x in ex.walk(e)}
                inside -= set(reached(item.body, {*found, *item.staged}))
                item.staged = [*found, *(e for e in item.staged if e not in inside)]

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Return by how much an axis is longer than the kernel suits; None where none is."""
        for a, most in (self.most | dict.fromkeys(self.bounded, ROW_POINTS)).items():
            if symbols(a.extent) <= sizes.keys() and evaluate(a.extent, sizes) > most:
                return a.extent - (most + 1)
        return None

    def recompute(self, name: str) -> None:
        """Recompute a reduction whose tile is gone when it is read, in the reader's sweep."""
        if name in self.recomputed:
            raise AssertionError(f"{name} is read before it can be computed")
        self.recomputed.add(name)
        self._arrange()

    def _read_late(self) -> set[str]:
        """Reductions held one tile at a time whose reader comes in a later sweep."""
        late: set[str] = set()
        for item in self.items:
            for name in self.persistent_reads(item.body):
                made = next(i for i in self.items if i.kind == "reduce" and i.name == name)
                tiled = set(self.prefix(made)) & set(made.unreduced)
                if tiled and self.levels[item.name] > self.levels[name]:
                    late.add(name)
        return late

    # -- the grid --

    def extent(self, a: Axis) -> int:
        return likely(a.extent, self.hints)

    def _grid(self) -> tuple[Tiled, ...]:
        common = without_races(common_axes(self.defs, self.consumed), self.defs)
        reduced = {a for d in self.defs.values() for a in reduced_axes(d)}
        pure = [a for a in common if a not in reduced]
        enough = 2 * self.target.threads
        pure = [a for a in pure if not self._is_column(a)] or pure
        if any(d.is_contraction for d in self.reductions.values()):
            pure.sort(key=lambda a: (a.extent.const or FULL_EXTENT + 1) > FULL_EXTENT)
            lines = bool(pure)  # a task has rows and columns, however they are stored
        else:
            ends = (own_axes(self.defs[n])[-1:] for n in self.stores)
            lines = bool(pure) and all(end == (pure[-1],) for end in ends)
        extra = [a for a in common if a not in pure]
        if extra and all(self._is_column(a) for a in pure):
            pure = []  # they share the work on a pair: they stay together
        lines = lines and len(pure) > 1 and not is_batch(pure[-1], self.defs, self.hints)
        chosen = pure[:-1] if lines else list(pure)
        if pure and chosen != pure and math.prod(map(self.extent, chosen)) < enough:
            chosen = list(pure)
        rows = {row(d) for d in self.defs.values() for row in (shared_rows, short_row)}
        for a in [a for a in chosen[:-1] if a in rows]:
            if math.prod(self.extent(c) for c in chosen if c is not a) >= enough:
                chosen.remove(a)
        along = along_lines(self.defs, self.strides, self.hints)
        if extra and tasks(pure, along, self.hints) < enough:
            chosen = [a for a in chosen if a not in along]
            chosen.append(max(extra, key=self.extent))
        self.short = 1
        if shares_columns(chosen, self.reductions) and self.extent(chosen[-2]) >= enough:
            self.short = self.extent(chosen.pop())
        last = 1 if chosen and is_batch(chosen[-1], self.defs, self.hints) else None
        return tuple(Tiled(a, last if k == len(chosen) - 1 else 1) for k, a in enumerate(chosen))

    def _is_column(self, a: Axis) -> bool:
        """Return whether the axis is short, and most of the work is the same for all its points."""
        if (a.extent.const or FULL_EXTENT + 1) > FULL_EXTENT:
            return False
        for d in self.reductions.values():
            costs = [(node_cost(n), a in n.free) for n in ex.walk(d.expr)]
            if 2 * sum(c for c, own in costs if own) > sum(c for c, _ in costs):
                return False
        return True

    def _sized_grid(self) -> tuple[Tiled, ...]:
        if not self.grid or self.grid[-1].tile is not None:
            return self.grid
        main = self.grid[-1].axis
        items = self.all_items()
        pairs = any((i.staged and not is_read(i)) or is_register_tile(i, self.ctx) for i in items)
        rest = max(
            math.prod(self.extent(a) for a in i.loops if a is not main and a not in self.ctx.fixed)
            for i in self.all_items()
        )
        if not pairs:
            tile = max(1, self.target.task_points // max(rest, 1))
            tile = max(tile, 16 * self.lanes if any(i.vector is main for i in items) else 1)
            if any(main in long_terms(i) for i in items):
                tile = min(tile, SUM_TILE)
            sums = (i for i in items if main in long_terms(i) and self._is_added_to(i))
            tile = min([tile, *(max(ADD_TILE // short_terms(i, main, i.vector), 8) for i in sums)])
            if any(short_row(i.d) and main not in i.reduced for i in self.all_items()):
                tile = max(tile, LONG_ROWS)
        else:
            tile = self.target.grid_tile * (1 if self.local else 2) // self.short
        tile = min(self._balanced(main, tile, rest), max(main.extent.const or tile, 1))
        for d in self.defs.values():
            if shared_rows(d) is not None:
                held = math.prod(self.extent(a) for a in own_axes(d) if a not in self.grid_axes())
                tile = max(min(tile, HELD_POINTS // held), 1)
        return (*self.grid[:-1], Tiled(main, tile))

    def _balanced(self, main: Axis, most: int, rest: int) -> int:
        """At most `most` rows a tile, and tiles that the threads can share out evenly.

        A first call of few points says little about the next: then tiles stay large."""
        rows = self.extent(main)
        others = math.prod(self.extent(t.axis) for t in self.grid[:-1])
        if others >= 2 * self.target.threads or rows * rest * others < SMALL_POINTS:
            return most
        rounds = -(-rows // (most * self.target.threads))
        tile = -(-rows // (rounds * self.target.threads))
        along = any(i.vector is main for i in self.all_items())
        largest = max(self.all_items(), key=lambda i: math.prod(map(self.extent, i.loops)))
        if largest.vector is main and tile < self.lanes:
            return min(most, self.lanes)  # a part of a vector takes as long as the whole
        for step in ROWS_STEPS if tile > ROWS_STEPS[0] else (1,):
            step *= 4 if along else 1
            found = min(most, -(-tile // step) * step)
            tiles = -(-rows // found)
            busy = -(-tiles // self.target.threads) * found
            if (busy - tile * rounds) * IDLE <= tile * rounds:
                return found
        return tile

    # -- items --

    def _items(self) -> list[Item]:
        """Return the items that outlive a tile: stores, reductions whose kept axes stay."""
        items: list[Item] = []
        self.local: dict[str, Item] = {}
        for d in self.defs.values():
            if isinstance(d.expr, Reduce):
                item = reduce_item(d)
                if self._is_local(d):
                    self.local[d.name] = item
                else:
                    items.append(item)
                if d.name not in self.stores or self.per_thread(d):
                    continue
            if d.name in self.stores:
                items.append(store_item(d))
        everything = [*items, *self.local.values()]
        for item in everything:
            alike = [i for i in everything if self._side_by_side(i, item)]
            others = {a for i in alike if i.name in self.alike for a in i.reduced}
            item.vector = choose_vector(alike, self.ctx, others)
        for item in everything:
            item.staged = choose_staged(item, self.ctx)
        return items

    def _side_by_side(self, a: Item, b: Item) -> bool:
        """Return whether both may share a nest. A value of a tile and its readers may not."""
        alike = a.kind == b.kind and (a.name in self.local) == (b.name in self.local)
        return alike and same_points(a, b)

    def _is_added_to(self, item: Item) -> bool:
        """Return whether a float sum may be updated in memory at each term, beside other sums."""
        return updated_in_memory(item, [i for i in self.all_items() if self._side_by_side(i, item)])

    def all_items(self) -> list[Item]:
        return [*self.items, *self.local.values()]

    def grid_axes(self) -> frozenset[Axis]:
        return frozenset(t.axis for t in self.grid)

    def _sweeps(self, d: Def) -> tuple[Axis, ...] | None:
        """Within which it is summed up tile by tile, to the end; None if it is not."""
        is_tiled = not self.tiles.keys().isdisjoint(reduced_axes(d))
        return self.prefix(reduce_item(d)) if is_tiled and not self._is_local(d) else None

    def per_thread(self, d: Def) -> bool:
        return bool(set(reduced_axes(d)) & self.grid_axes())

    def _is_local(self, d: Def) -> bool:
        return d.name in self.recomputed or is_read_in_tiles(d, self.defs, self.grid_axes())

    # -- sweeps --

    def _tiles(self) -> dict[Axis, int]:
        """Axes swept tile by tile: those that tile-local values have, where one tile is not all."""
        grid, tiles = self.grid_axes(), dict[Axis, int]()

        def cut(a: Axis, tile: int) -> None:
            if a not in grid:
                tiles[a] = min(tiles.get(a, tile), tile, max(a.extent.const or tile, 1))

        heavy = any(is_register_tile(i, self.ctx) for i in self.all_items())
        sweep = self.target.contraction_tile if heavy else self.target.sweep_tile
        for item in self.local.values():
            for a in own_axes(item.d):
                cut(a, sweep)
        for item in self.all_items():
            for a, tile in self._sum_tiles(item):
                cut(a, tile)
            if long_sum(item, self.ctx) is not None:
                for a in item.reduced:
                    cut(a, LONG_TILE if a is item.vector else LINES_TILE)
            for e in item.staged:
                for a in self.ctx.live(e):
                    if a in item.loops:
                        cut(a, sweep)
        for a in tiles:
            if heavy and all(a in i.reduced for i in self.all_items() if a in i.loops):
                cut(a, self.target.reduced_tile)
        for a in [a for i in self.all_items() if i.name in self.alike for a in i.reduced]:
            if a not in grid:  # whatever the other kernel's tiling is
                tiles[a] = min(ALIKE_TILE, a.extent.const or ALIKE_TILE)
        for item in self.all_items():
            if is_register_tile(item, self.ctx):
                self._few_lines([a for a in item.reduced if a in tiles], tiles)
        for item in self.local.values():
            self._bound(own_axes(item.d), tiles)
        for item in self.all_items():
            for e in item.staged:
                self._bound(tuple(a for a in item.loops if a in self.ctx.live(e)), tiles)
        self._keep_whole(tiles)
        kept = self._invariant_axes()
        return {a: tile for a, tile in tiles.items() if self._known(a) > tile and a not in kept}

    def _invariant_axes(self) -> frozenset[Axis]:
        """Return the axes of staged values that no step changes, if a task has room for all."""
        if not self.in_loop:
            return frozenset()
        staged = {e for i in self.all_items() for e in i.staged if self._stays(e)}
        points = sum(math.prod(map(self.extent, e.free)) for e in staged)
        return frozenset(a for e in staged for a in e.free if points <= STAGED_POINTS)

    def _stays(self, e: Expr) -> bool:
        changing = self.grid_axes().union(*(own_axes(i.d) for i in self.local.values()))
        return changing.isdisjoint(e.free) and self.moving.isdisjoint(x.source for x in ex.loads(e))

    def _keep_whole(self, tiles: dict[Axis, int]) -> None:
        """Keep a contraction that two sweeps read, if a task has room for all of it, instead of
        computing it twice. The second sweep waits for a sum of the first."""
        for item in self.local.values():
            d = item.d
            if not is_register_tile(item, self.ctx) or not self._needs_second_sweep(d):
                continue
            own = own_axes(d)
            rows = math.prod(t.tile or 1 for t in self.grid if t.axis in own)
            swept = [a for a in own if a in tiles]
            if not swept or rows * self._known(swept[-1]) > KEPT_POINTS:
                continue
            tiles[swept[-1]] = self.extent(swept[-1])
            rows *= tiles[swept[-1]]
            for a in reversed(swept[:-1]):
                tiles[a] = min(tiles[a], max(KEPT_POINTS // rows, 1))
                rows *= tiles[a]

    def _needs_second_sweep(self, d: Def) -> bool:
        """Return whether a reader waits for a sum of another reader over one of d's axes."""
        swept = set(own_axes(d)) - self.grid_axes()
        readers = [u for u in self.defs.values() if d.name in sources(u)]
        first = {u.name for u in readers if swept & set(reduced_axes(u))}
        return any(online.waits(u, first, self.defs, {}) for u in readers)

    def _known(self, a: Axis) -> float:
        """Return an extent that is the same at each step: that of an axis of a state, if known."""
        if self.in_loop or a in self.bounded:
            return self.extent(a)
        return math.inf if a.extent.const is None else a.extent.const

    def _few_lines(self, reduced: list[Axis], tiles: dict[Axis, int]) -> None:
        """Of several axes that are summed over, the first go few steps at a time."""
        points = {a: min(tiles[a], self.extent(a)) for a in reduced}
        for a in reduced[:-1]:
            rest = math.prod(n for b, n in points.items() if b is not a)
            tiles[a] = points[a] = max(min(points[a], REDUCED_POINTS // rest), 1)

    def _bound(self, axes: tuple[Axis, ...], tiles: dict[Axis, int]) -> None:
        """Cut the first axis of values of three axes, so that a task holds little."""
        steps = {t.axis: t.tile or 1 for t in self.grid} | tiles
        points = {a: steps.get(a, self.extent(a)) for a in axes}
        for a in axes[:-1]:
            rest = math.prod(n for b, n in points.items() if b is not a)
            if a in tiles and points[a] * rest > LOCAL_POINTS:
                pieces = -(-points[a] * rest // LOCAL_POINTS)
                part = -(-points[a] // pieces)
                tiles[a] = points[a] = (
                    part if part < self.lanes else -(-part // self.lanes) * self.lanes
                )

    def _bound_accumulators(self) -> None:
        """Bound the sums that a task holds: first by short tiles, then by few rows."""
        for item in self.all_items():
            if item.kind != "reduce" or self.per_thread(item.d):
                continue
            swept = self.prefix(item)
            steps = {t.axis: t.tile or 1 for t in self.grid} | {a: self.tiles[a] for a in swept}
            kept = [a for a in own_axes(item.d) if a not in self.ctx.fixed]
            points = {a: steps.get(a, self.extent(a)) for a in kept}
            for a in [a for a in kept if a in swept and math.prod(points.values()) > SUM_POINTS]:
                most = -(-LONGER * self.extent(a) // self.lanes) * self.lanes
                points[a] = self.tiles[a] = min(points[a], most)
            main = self.grid[-1].axis if self.grid else None
            if main in points and math.prod(points.values()) > SUM_POINTS:
                rest = math.prod(n for a, n in points.items() if a is not main)
                least = self.lanes if any(i.vector is main for i in self.all_items()) else 1
                rows = min(max(SUM_POINTS // rest, least), points[main])
                self.grid = (*self.grid[:-1], Tiled(main, rows))

    def _sum_tiles(self, item: Item) -> Iterator[tuple[Axis, int]]:
        """Yield the axes along which a float sum is cut into parts, with the terms of a part.

        Alone in its nest, the sum has a register for each loop. Next to sums over other axes it
        may be updated in memory; the limit then holds for all its axes, short ones, too."""
        terms, lanes = long_terms(item), item.vector
        yield from ((a, LANES_TILE) for a in long_lanes(item))
        swept = [a for a in terms if a not in self.grid_axes()]
        if not self._is_added_to(item):
            yield from ((a, SUM_TILE) for a in swept)
            return
        short = short_terms(item, lanes)
        most = max(ADD_TILE // short, 8)
        inside = [a for a in item.reduced if a is not lanes and a not in self.grid_axes()]
        if short > ADD_TILE and inside and not swept:
            a = max(inside, key=self.extent)
            yield a, max(ADD_TILE // short_terms(item, a, lanes), 8)
        held = math.prod(min(t.tile or 1, ADD_TILE) for t in self.grid if t.axis in terms)
        for a in swept:
            tile = int((most // held) ** (1 / len(swept)))
            yield a, max(tile // 8 * 8, 8)

    def _rank(self) -> dict[Axis, tuple[int, int, int]]:
        """Outermost first: axes of costly tile values, then kept before reduced."""
        order: dict[Axis, tuple[int, int, int]] = {}
        seen = list(dict.fromkeys(a for i in self.all_items() for a in i.loops))
        for position, a in enumerate(seen):
            weight = sum(1 for i in self.local.values() if a in own_axes(i.d))
            reduced = sum(1 for i in self.all_items() if a in i.reduced)
            order[a] = (-weight, reduced, position)
        return order

    def _chain(self, loops: tuple[Axis, ...]) -> tuple[Axis, ...]:
        swept = [a for a in loops if a in self.tiles]
        return tuple(sorted(swept, key=lambda a: self.rank[a]))

    def _levels(self) -> dict[str, int]:
        """In which run over the sweeps an item can be computed: after all that it reads."""
        levels: dict[str, int] = {}
        for item in self.items:
            level = 0
            for name in self.persistent_reads(item.body):
                closed = set(reduced_axes(self.defs[name])) & set(item.loops)
                is_later = bool(closed) and self.rescaled.get(item.name) != name
                level = max(level, levels[name] + (1 if is_later else 0))
            levels[item.name] = level
        return levels

    # -- values held by a task --

    def _stored_in_task(self) -> frozenset[Expr]:
        """Return expressions of several nests that a task stores, as far as it has room."""
        items = [i for i in self.all_items() if i.name not in self.rescaled]
        readers = [Reader(self._nest_of(i), i.body) for i in items]
        found = common_subtiles(readers, self._row_points, self._level_of)
        in_row = sum(self._row_points(e) or 0 for e in found)
        if found and self.grid and self.grid[-1].tile is not None:
            axis, tile = self.grid[-1].axis, self.grid[-1].tile
            self.grid = (*self.grid[:-1], Tiled(axis, max(min(tile, HELD_POINTS // in_row), 1)))
        return found

    def stored_in(self, e: Expr) -> list[Expr]:
        """Return the held values in an expression, each after those that it is made of."""
        return [x for x in ex.walk(e) if x in self.held]

    def _share_sweeps(self, a: Item, b: Item) -> bool:
        """Return whether a tile of both holds the same values, each complete to the same extent."""
        if not self.rescaled.keys().isdisjoint((a.name, b.name)):
            return False
        return a.chain == b.chain and self.levels[a.name] == self.levels[b.name]

    def _staged_by_others(self, item: Item, beside: list[Item]) -> list[Expr]:
        """Costly values of a tile that others stage, and their parts: the item reads them, too."""
        costly = [(e, o) for o in beside for e in o.staged if cost(e) >= WORTH_HOLDING]
        own = set(reached(item.body, set(item.staged))) if costly else set[Expr]()
        found: dict[Expr, None] = {}
        for e, other in costly:
            is_own = e in own and e not in item.staged
            if is_own and self._lies_along(e, item) is self._lies_along(e, other):
                parts = set(ex.walk(e))
                found.update((x, None) for x in other.staged if x in parts)
        return [e for e in found if e not in item.staged]

    def _lies_along(self, e: Expr, item: Item) -> Axis:
        axes = tuple(a for a in item.loops if a in self.ctx.live(e))
        return lies_along(e, axes, item, self.ctx)

    def _nest_of(self, item: Item) -> Hashable:
        return self.levels.get(item.name, item.name), frozenset(item.loops)

    def _level_of(self, e: Expr) -> Hashable:
        names = self.persistent_reads(e)
        return "held", max((self._level_after(n, e.free) for n in names), default=0), e.free

    def _level_after(self, name: str, axes: Set[Axis]) -> int:
        is_later = bool(set(reduced_axes(self.defs[name])) & axes)
        return self.levels[name] + (1 if is_later else 0)

    def _row_points(self, e: Expr) -> int | None:
        """Of a value in one row of the grid; None if that is not known, or more than a tile."""
        axes = self.ctx.live(e) - self.grid_axes()
        if not self.persistent_reads(e).isdisjoint(self.rescaled.values()):
            return None
        points = math.prod(math.inf if a in self.tiles else self._known(a) for a in axes)
        return None if points == math.inf else int(points)

    def persistent_reads(self, e: Expr) -> set[str]:
        found: set[str] = set()
        for name in contains_inner(e, self.ctx):
            if name in self.local:
                found |= self.persistent_reads(self.local[name].body)
            else:
                found.add(name)
        return found

    def prefix(self, item: Item) -> tuple[Axis, ...]:
        """Return the sweeps that stay open while the reduction runs to its end."""
        chain = self._chain(item.loops)
        for k, a in enumerate(chain):
            if a in item.reduced:
                return chain[:k]
        return chain
