"""One group → one kernel: the grid, the sweeps, the staged values, and the order of the nests.

In:  an `Arrangement` of a group. Out: a `Kernel` whose nests have no schedule yet (`schedule` adds
     it).
Invariant: a reduction is complete before it is read, unless the reader is rescaled online.

    m[i] = max[j](s[i,j])            grid i by 64
    l[i] = sum[j](exp(s - m))   ->     for j by 256:  s tile · m, rescale l and o · l · o += p v
    o[i,c] = sum[j](exp(s - m) v)      store o / l
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from lowtide.ir.dtypes import BY_NAME, DType
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import identity
from lowtide.texpr.expr import AddAt, Def, Expr, Load, Reduce
from lowtide.texpr.index import Axis, Size, as_index, deep_atoms, product
from lowtide.tile import online
from lowtide.tile.arrange import Arrangement
from lowtide.tile.axes import own_axes
from lowtide.tile.carried import accumulator_dtype
from lowtide.tile.ir import (
    Accumulate,
    Buffer,
    Combine,
    Fill,
    Kernel,
    Nest,
    Stage,
    Stmt,
    Store,
    Sweep,
    reached,
)
from lowtide.tile.items import (
    ARG,
    COSTLY,
    Context,
    Item,
    contains_inner,
    fully_unrolled,
    lies_along,
    node_cost,
)
from lowtide.tile.verify import verify

TWICE = 4  # operations of a node that two buffers would compute twice


def plan(arrangement: Arrangement, moving: Set[str] = frozenset()) -> Kernel:
    """Return the kernel of an arrangement. `moving`: tensors and sizes that differ at each step of
    the loop which launches the kernel."""
    while True:
        try:
            made = _Planner(arrangement, moving).kernel()
            break
        except _Stale as late:
            arrangement.recompute(late.name)
    verify(made)
    return made


class _Stale(Exception):
    """Raised if an operand is stale: a reader comes after its tile was overwritten. The operand
    must then be recomputed."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(slots=True)
class _Scope:
    """Buffers whose content is valid here: expressions and definitions."""

    staged: dict[Expr, Buffer] = field(default_factory=dict[Expr, Buffer])
    ready: set[str] = field(default_factory=set[str])

    def inner(self) -> _Scope:
        return _Scope(dict(self.staged), set(self.ready))


class _Planner:
    """Puts the nests of an arrangement in order and gives them their buffers."""

    def __init__(self, arrangement: Arrangement, moving: Set[str]) -> None:
        self.a = arrangement
        self.moving = moving
        self.prologue: list[Nest] = []
        self.once: dict[tuple[Expr, tuple[Axis, ...]], Buffer] = {}
        self.buffers: list[Buffer] = []
        self.values: dict[str, Buffer] = {}

    def kernel(self) -> Kernel:
        self._accumulators()
        by_level: dict[int, list[Item]] = {}
        for item in self.a.items:
            by_level.setdefault(self.a.levels[item.name], []).append(item)
        body: list[Stmt] = []
        scope = _Scope()
        for level in sorted(by_level):
            self._emit(by_level[level], (), body, scope)
        combines = [
            Combine(buffer=self.values[n], target=n, axes=d.axes)
            for n, d in self.a.reductions.items()
            if self.a.per_thread(d) and n in self.a.stores
        ]
        adds = {n: d.adds_to for n in self.a.stores if (d := self.a.defs[n]).adds_to}
        return Kernel(
            name=self.a.name,
            grid=self.a.grid,
            buffers=self.buffers,
            values=self.values,
            prologue=self.prologue,
            body=body,
            combines=combines,
            epilogue=[_single_store(d) for d in self.a.epilogue.values()],
            outputs=[n for n in (*self.a.stores, *self.a.epilogue) if n not in adds],
            adds=adds,
            checks_nan=any(_loses_nan(d) for d in self.a.reductions.values()),
            lanes=self.a.lanes,
            warps=self.a.warps,
            stages=self.a.stages,
        )

    def _accumulators(self) -> None:
        for item in self.a.all_items():
            if item.kind != "reduce":
                continue
            d = item.d
            per_thread = self.a.per_thread(d)
            kept = tuple(a for a in own_axes(d) if per_thread or a not in self.a.ctx.fixed)
            whole = frozenset(
                a
                for a in kept
                if per_thread or a not in (*self.a.prefix(item), *self.a.grid_axes())
            )
            last = _last(kept, item, self.a.ctx)
            assert isinstance(d.expr, Reduce)
            twin = None
            if d.expr.fn in ARG:
                twin = self._buffer(f"{d.name}_best", item.body.dtype, kept, whole, last,
                                    d.expr.fn, per_thread)  # fmt: skip
            dtype = accumulator_dtype(self.a, item)
            buffer = self._buffer(d.name, dtype, kept, whole, last, d.expr.fn, per_thread)
            buffer.twin = twin
            self.values[d.name] = buffer

    def _buffer(
        self,
        name: str,
        dtype: DType,
        axes: tuple[Axis, ...],
        whole: frozenset[Axis] = frozenset(),
        last: Axis | None = None,
        fn: str = "",
        per_thread: bool = False,
    ) -> Buffer:
        b = Buffer(
            name=name,
            dtype=BY_NAME[dtype.compute],
            axes=axes,
            whole=whole,
            last=last,
            fn=fn,
            per_thread=per_thread,
        )
        self.buffers.append(b)
        return b

    # -- order of the nests --

    def _emit(
        self, items: list[Item], path: tuple[Axis, ...], body: list[Stmt], scope: _Scope
    ) -> None:
        """Items in order; those that go on with the same sweep share it."""
        left = list(items)
        while left:
            first = left.pop(0)
            rest = [a for a in first.chain if a not in path]
            if not rest:
                self._before(first, path, body, scope, left)
                self._nest(first, path, body, scope)
                continue
            axis = rest[0]
            together, skipped = self._sharing(first, left, axis, path)
            ahead = self._needed_first(together, skipped, axis, path)
            if ahead:
                self._emit(ahead, path, body, scope)
                left = [first, *(i for i in left if i not in ahead)]
                continue
            left = skipped
            for item in together:
                self._before(item, path, body, scope, left)
            sweep = Sweep(axis=axis, tile=self.a.tiles[axis], body=[])
            self._emit(together, (*path, axis), sweep.body, scope.inner())
            body.append(sweep)
            for item in together:
                if item.kind == "reduce" and self._outlives(item, axis):
                    scope.ready.add(item.name)
                if axis in item.reduced and set(item.reduced).isdisjoint(path):
                    self._nan_where_all_is_low(item, body, scope)

    def _outlives(self, item: Item, axis: Axis) -> bool:
        """Return whether the buffer still holds everything when the sweep over the axis has
        ended."""
        return axis not in item.unreduced or axis in self.values[item.name].whole

    def _sharing(
        self, first: Item, left: list[Item], axis: Axis, path: tuple[Axis, ...]
    ) -> tuple[list[Item], list[Item]]:
        """Items that go on with the same sweep, and those that do not or must wait."""
        together, skipped = [first], list[Item]()
        for item in left:
            more = [a for a in item.chain if a not in path]
            waits = {s.name for s in skipped} & self.a.persistent_reads(item.body)
            if more and more[0] is axis and not waits:
                together.append(item)
            else:
                skipped.append(item)
        return together, skipped

    def _needed_first(
        self, together: list[Item], skipped: list[Item], axis: Axis, path: tuple[Axis, ...]
    ) -> list[Item]:
        """Return skipped items that could run before the sweep, with the skipped items that they
        read. More items can then join the sweep."""
        wanted: set[str] = set()
        for item in skipped:
            more = [a for a in item.chain if a not in path]
            if more and more[0] is axis:
                wanted |= self.a.persistent_reads(item.body)
        reads = {i.name: self.a.persistent_reads(i.body) for i in skipped if i.kind == "reduce"}
        waiting = {i.d.name for i in together}
        for i in skipped:  # in the order in which they read one another
            if reads.get(i.name, set()) & waiting:
                waiting.add(i.name)
        for i in reversed(skipped):
            if i.name in wanted - waiting:
                wanted |= reads.get(i.name, set())
        return [i for i in skipped if i.name in reads and i.name in wanted - waiting]

    def _before(
        self,
        item: Item,
        path: tuple[Axis, ...],
        body: list[Stmt],
        scope: _Scope,
        later: list[Item],
    ) -> None:
        """Append the statements that an item needs at this depth: its accumulator is filled, and
        values of its tile are computed, with what `later` items need of the same points."""
        if item.kind == "reduce" and set(self.a.prefix(item)) <= set(path):
            buffer = self.values[item.name]
            if not buffer.per_thread and not (set(item.reduced) & set(path)):
                for b in filter(None, (buffer, buffer.twin)):
                    body.append(Fill(buffer=b, value=self._start(b, item)))
        depth_axes = set(path)
        for name in contains_inner(item.body, self.a.ctx):
            local = self.a.local.get(name)
            if local is None or name in scope.ready:
                continue
            if {a for a in own_axes(local.d) if a in self.a.tiles} <= depth_axes:
                self._emit([local], path, body, scope)
                scope.ready.add(name)
        for e in item.staged:
            if self._can_stage(e, path, scope):
                self._stage(e, item, path, body, scope)
                points = self.a.ctx.live(e) & set(item.loops)
                for other in later:
                    for x in other.staged:
                        same = self.a.ctx.live(x) & set(other.loops) == points
                        if (
                            same
                            and _share_work([e], [x], TWICE)
                            and self._can_stage(x, path, scope)
                        ):
                            self._stage(x, other, path, body, scope)

    def _can_stage(self, e: Expr, path: tuple[Axis, ...], scope: _Scope) -> bool:
        """Return whether everything that the expression reads is there. A running maximum is, once
        it includes this tile."""
        if e in scope.staged or not {a for a in self.a.ctx.live(e) if a in self.a.tiles} <= {*path}:
            return False
        read = {n for n in contains_inner(e, self.a.ctx) if n in self.a.local}
        return read | self.a.persistent_reads(e) <= scope.ready

    def _start(self, b: Buffer, item: Item) -> float | int | bool:
        if b.fn in ARG:
            is_index = self.values[item.name] is b
            return 0 if is_index else identity(b.fn, b.dtype)
        return identity(b.fn, b.dtype)

    def _stage(
        self, e: Expr, user: Item, path: tuple[Axis, ...], body: list[Stmt], scope: _Scope
    ) -> None:
        axes = tuple(a for a in user.loops if a in self.a.ctx.live(e))
        last = lies_along(e, axes, user, self.a.ctx)
        same = self._same_for_all_tiles(e)
        known = self.once.get((e, (*axes, last))) if same else None
        if known is not None:
            scope.staged[e] = known
            return
        buffer = self._buffer(f"s{len(self.buffers)}", e.dtype, axes, frozenset(), last)
        scope.staged[e] = buffer
        nest = Nest(axes=axes, writes=[Stage(buffer=buffer, expr=self._online_safe(e, user))])
        nest.vector = last
        parts = {x: b for x, b in scope.staged.items() if last not in b.axes or b.last is last}
        parts.pop(e)
        inside = set(reached(e, parts))
        nest.reads = {self._online_safe(x, user): b for x, b in parts.items() if x in inside}
        if same:
            self.once[e, (*axes, last)] = buffer
            self.prologue.append(nest)
        else:
            self._add(nest, body, scope)

    def _same_for_all_tiles(self, e: Expr) -> bool:
        """Return whether the buffer may be filled before the first tile. It then holds all points
        of its axes."""
        axes = e.free
        sources = {load.source for load in ex.loads(e)}
        if axes & self.a.grid_axes() or sources & self.a.defs.keys():
            return False
        sizes = {a.name for n in ex.walk(e) for i in ex.indices(n) for a in deep_atoms(i)
                 if isinstance(a, Size)}  # fmt: skip
        if (sources | sizes) & self.moving:
            return False
        return all(
            (a.extent.const or math.inf) <= self.a.tiles[a] for a in axes if a in self.a.tiles
        )

    def _online_safe(self, e: Expr, item: Item) -> Expr:
        m = self.a.rescaled.get(item.name)
        return online.guarded(e, m) if m else e

    def _nest(self, item: Item, path: tuple[Axis, ...], body: list[Stmt], scope: _Scope) -> None:
        for name in self.a.persistent_reads(item.body):
            if name not in scope.ready and self.a.rescaled.get(item.name) != name:
                raise _Stale(name)
        loops = tuple(a for a in item.loops if a not in self.a.ctx.fixed)
        if item.kind == "store":
            write = _store_of(item)
        else:
            assert isinstance(item.d.expr, Reduce)
            write = Accumulate(
                buffer=self.values[item.name],
                fn=item.d.expr.fn,
                reduced=tuple(a for a in item.reduced if a not in self.a.ctx.fixed),
                expr=self._online_safe(item.body, item),
            )
        nest = Nest(axes=loops, writes=[write], vector=item.vector)
        nest.full = fully_unrolled(item, self.a.ctx)
        followers = [n for n, m in self.a.rescaled.items() if m == item.name]
        if followers:
            self._save_old(item, body, scope)
        used = {e: scope.staged[e] for e in item.staged if e in scope.staged}
        m = self.a.rescaled.get(item.name)
        nest.reads = {online.guarded(e, m) if m else e: b for e, b in used.items()}
        self._add(nest, body, scope)
        if followers:
            self._rescale(item, followers, body, scope)
        if item.kind == "reduce":
            scope.ready.add(item.name)

    def _save_old(self, item: Item, body: list[Stmt], scope: _Scope) -> None:
        m = self.values[item.name]
        old = self._buffer(f"{m.name}_old", m.dtype, m.axes, m.whole, m.last)
        here = [as_index(a if a.extent.const != 1 else 0) for a in item.d.axes]
        value = ex.load(item.name, here, item.d.dtype)
        nest = Nest(axes=m.axes, writes=[Stage(buffer=old, expr=value)], vector=m.last)
        self._add(nest, body, scope)
        self.values[f"{item.name}_old"] = old

    def _rescale(self, item: Item, followers: list[str], body: list[Stmt], scope: _Scope) -> None:
        """acc *= exp(old max - new max), for every accumulator that follows the maximum."""
        d = item.d
        here = [as_index(a if a.extent.const != 1 else 0) for a in d.axes]
        old = ex.load(f"{item.name}_old", here, d.dtype)
        new = ex.load(item.name, here, d.dtype)
        factor = online.factor(old, new)
        m = self.values[item.name]
        scale = self._buffer(f"{m.name}_scale", m.dtype, m.axes, m.whole, m.last)
        nest = Nest(axes=m.axes, writes=[Stage(buffer=scale, expr=factor)], vector=m.last)
        self._add(nest, body, scope)
        for name in followers:
            f = self.a.defs[name]
            at = [as_index(a if a.extent.const != 1 else 0) for a in f.axes]
            acc = self.values[name]
            value = ex.apply("mul", (ex.load(name, at, f.dtype), factor), f.dtype)
            rescale = Nest(axes=acc.axes, writes=[Stage(buffer=acc, expr=value)], vector=acc.last)
            rescale.reads = {factor: scale}
            self._add(rescale, body, scope)

    def _nan_where_all_is_low(self, item: Item, body: list[Stmt], scope: _Scope) -> None:
        """Make a rescaled sum at its end NaN where the maximum is -inf, as exp(-inf - -inf) is."""
        m = self.a.rescaled.get(item.name)
        if m is None or online.is_guarded(item.body, m):
            return
        acc, defs = self.values[item.name], (self.a.defs[item.name], self.a.defs[m])
        total, most = (
            ex.load(d.name, [as_index(a if a.extent.const != 1 else 0) for a in d.axes], d.dtype)
            for d in defs
        )
        value = online.nan_where_low(total, most, product(a.extent for a in item.reduced))
        nest = Nest(axes=acc.axes, writes=[Stage(buffer=acc, expr=value)], vector=acc.last)
        self._add(nest, body, scope)

    def _add(self, nest: Nest, body: list[Stmt], scope: _Scope) -> None:
        """Append, or join an earlier nest that runs over the same points: the last one, if only
        fills stand between, else one that has something costly to compute in common with it."""
        for k in range(len(body) - 1, -1, -1):
            first = body[k]
            if isinstance(first, Sweep):
                break
            if isinstance(first, Nest) and _same_loops(first, nest):
                is_last = all(isinstance(x, Fill) for x in body[k + 1 :])
                is_last &= not (_stores_sums(first) and _stages(nest))
                around = self._around(first, body[k + 1 :], nest)
                if around and (is_last or _share_work(_exprs(first), _exprs(nest), COSTLY)):
                    first.writes.extend(nest.writes)
                    first.reads.update(nest.reads)
                    body[k:] = [*around[0], first, *around[1]]
                    return
        body.append(nest)

    def _around(
        self, first: Nest, between: list[Stmt], nest: Nest
    ) -> tuple[list[Stmt], list[Stmt]] | None:
        """Return the statements to run before the two merged nests and after them; None if they
        cannot be merged."""
        before, after = list[Stmt](), list[Stmt]()
        if self._conflict(first, nest):
            return None
        for x in between:
            if not any(self._conflict(y, x) for y in (first, *after)):
                before.append(x)
            elif not self._conflict(x, nest):
                after.append(x)
            else:
                return None
        return before, after

    def _conflict(self, first: Stmt, second: Stmt) -> bool:
        """Return whether one statement writes what the other one reads or writes."""
        if isinstance(first, Sweep) or isinstance(second, Sweep):
            return True
        (reads, writes), (reads_then, writes_then) = self._used(first), self._used(second)
        return bool(writes & (reads_then | writes_then) or reads & writes_then)

    def _used(self, stmt: Fill | Nest) -> tuple[set[str], set[str]]:
        """Return the names of the buffers and tensors that a statement reads, and those it
        writes."""
        if isinstance(stmt, Fill):
            return set(), {stmt.buffer.name}
        buffers = [w.buffer for w in stmt.writes if not isinstance(w, Store)]
        buffers += [b.twin for b in buffers if b.twin]
        writes = {b.name for b in buffers} | {w.target for w in stmt.writes if isinstance(w, Store)}
        loaded = {load.source for w in stmt.writes for load in ex.loads(w.expr)}
        held = [self.values[n] for n in loaded if n in self.values] + [*stmt.reads.values()]
        held += [b.twin for b in held if b.twin]
        return loaded | {b.name for b in held}, writes


def _share_work(first: Iterable[Expr], second: Iterable[Expr], least: int) -> bool:
    """Return whether both have a common part that costs at least `least`."""
    known = {e for x in first for e in ex.walk(x)}
    return any(e in known and node_cost(e) >= least for x in second for e in ex.walk(x))


def _stores_sums(nest: Nest) -> bool:
    """Return whether the nest only copies buffers to memory."""
    return all(isinstance(w, Store) and isinstance(w.expr, Load) for w in nest.writes)


def _stages(nest: Nest) -> bool:
    """Return whether the nest fills buffers, which nests after the stores may read."""
    return any(isinstance(w, Stage) for w in nest.writes)


def _exprs(nest: Nest) -> list[Expr]:
    return [w.expr for w in nest.writes]


def _store_of(item: Item) -> Store:
    if isinstance(item.body, AddAt):
        place = item.body.place
        return Store(target=place.source, index=place.index, expr=item.body)
    here = tuple(as_index(a if a.extent.const != 1 else 0) for a in item.d.axes)
    return Store(target=item.d.name, index=here, expr=item.body)


def _single_store(d: Def) -> Nest:
    zero = tuple(as_index(0) for _ in d.axes)
    return Nest(axes=(), writes=[Store(target=d.name, index=zero, expr=d.expr)])


def _same_loops(first: Nest, second: Nest) -> bool:
    is_alike = first.full == second.full and first.vector is second.vector
    return is_alike and set(first.axes) == set(second.axes)


def _last(kept: tuple[Axis, ...], item: Item, ctx: Context) -> Axis | None:
    if item.vector in kept:
        return item.vector
    return kept[-1] if kept else None


def _loses_nan(d: Def) -> bool:
    if not isinstance(d.expr, Reduce) or d.expr.fn not in ("min", "max", *ARG):
        return False
    return d.expr.body.dtype.is_float
