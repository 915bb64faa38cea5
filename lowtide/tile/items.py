"""The work of a kernel, as items for the planner.

In:  a group's definitions.
Out: `Item`s: each is the work of one loop nest, with the axis of the vector lanes and the
     subexpressions to compute once per tile (`staged`).

    out[i, c] = sum[j](exp(-d[i, j]) * b[j, c])   ->   reduce item over {i, c, j}, exp(-d) staged
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache

from lowtide.ir.dtypes import boolean
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import is_windowed
from lowtide.texpr.expr import AddAt, Apply, Cast, Def, Expr, Input, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    FloorDiv,
    Gather,
    Index,
    Mod,
    as_index,
    deep_atoms,
    row_major,
)
from lowtide.texpr.index_ranges import substitute
from lowtide.texpr.places import address, place_in, stride_along
from lowtide.texpr.sizes import likely
from lowtide.tile.axes import own_axes, owning_axes

COSTS = {"div": 4, "sqrt": 4, "pow": 40, "add": 1, "sub": 1, "mul": 1, "fma": 1}
CHEAP = frozenset({
    "add", "sub", "mul", "fma", "neg", "abs", "minimum", "maximum", "fmin", "fmax", "lt", "le",
    "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "floor", "ceil", "trunc", "round", "sign",
})  # fmt: skip
FULL_EXTENT = 8  # constant extents up to this are unrolled completely in a reduction
ARG = frozenset({"argmin", "argmax"})
LEAST_STAGED = 4  # vector operations,
WORTH_STAGING = 28  # and so many that are saved at each point of the buffer
WIDENING = 3  # of a vector of bytes, such as a mask
COSTLY = 10  # vector operations: of a transcendental function
SPLAT, SIDE_BY_SIDE, STAGED, TESTED = 0.25, 1.0, 1.3, 1.6  # a vector, by how its elements lie
STRIDED, ANYWHERE = 0.7, 2.0  # the same for each of its lanes
STAGED_TILE = 512  # points of a tile of an axis, at most
STAGED_POINTS = 1 << 19  # of one staged value: 2 MiB of floats
SUM_TILE = 512  # a longer float sum is added up in parts, so that rounding does not pile up
LANES_TILE = 2048  # the same of a sum along the lanes, each of which has a part of it
ADD_TILE = 64  # the same of a sum in memory: each term is added to it
REDUCED_POINTS = 512  # of all axes that a register tile sums over: lines that stay in L2


@dataclass(eq=False, slots=True, kw_only=True)
class Item:
    """`kind`: "reduce" or "store". `loops`: all axes; `reduced`: those of the reduction."""

    kind: str
    name: str
    d: Def
    loops: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    body: Expr
    vector: Axis | None = None
    staged: list[Expr] = field(default_factory=list[Expr])
    chain: tuple[Axis, ...] = ()

    @property
    def unreduced(self) -> tuple[Axis, ...]:
        return tuple(a for a in self.loops if a not in self.reduced)


def reduce_item(d: Def) -> Item:
    assert isinstance(d.expr, Reduce)
    loops = (*own_axes(d), *d.expr.axes)
    return Item(kind="reduce", name=d.name, d=d, loops=loops, reduced=d.expr.axes, body=d.expr.body)


def store_item(d: Def) -> Item:
    """Store a definition: a pointwise one is computed, a reduction is read from its buffer."""
    here = [as_index(a) if a.extent.const != 1 else as_index(0) for a in d.axes]
    body = ex.load(d.name, here, d.dtype) if isinstance(d.expr, Reduce) else d.expr
    return Item(kind="store", name=f"{d.name}.out", d=d, loops=own_axes(d), reduced=(), body=body)


def cost(expr: Expr) -> int:
    """Vector operations, roughly: a transcendental function counts ten."""
    return sum(map(node_cost, ex.walk(expr)))


def node_cost(node: Expr) -> int:
    """Return the operations of one node, without its operands."""
    if isinstance(node, Apply):
        return COSTS.get(node.fn, 1 if node.fn in CHEAP else 10)
    return 1 if isinstance(node, Select) else 0


def is_read(item: Item) -> bool:
    """Return whether each point of an item is an element of memory, not a pair of two."""
    loops = frozenset(item.loops)
    return any(load.free >= loops for load in ex.loads(item.body))


def counts(fn: str, body: Expr) -> bool:
    """Return whether the reduction is a sum of bools. Kernels count them in 32 bits within a
    tile."""
    is_truth = isinstance(body, Cast) and body.arg.dtype is boolean
    return fn == "sum" and is_truth and body.dtype.name == "i64"


# ---- how a load walks along an axis ------------------------------------------------------------


@lru_cache(maxsize=8192)
def along_lanes(offset: Index, axis: Axis, lanes: int) -> Index | None:
    """Return the step of the offset per lane of a vector that begins at a multiple of `lanes`; None
    if it is not fixed. 16 lanes of `(j % 256) // 32` and `j % 32` are contiguous: heads of 32, one
    after another."""
    step = stride_along(offset, axis)
    if step is None:
        known = _lane_step(offset, axis, lanes)
        step = None if known is None else as_index(known)
    return step


def _lane_step(offset: Index, axis: Axis, lanes: int) -> int | None:
    total = 0
    for monomial, factor in offset.terms:
        steps = [_atom_step(a, axis, lanes) for a in monomial]
        if None in steps or (any(steps) and len(steps) > 1):
            return None
        total += factor * sum(s or 0 for s in steps)
    return total


def _atom_step(atom: Atom, axis: Axis, lanes: int) -> int | None:
    """0 or 1; None where the atom goes another way."""
    if isinstance(atom, Gather):
        return None if axis in atom.expr.free else 0
    if axis not in deep_atoms(as_index(atom)):
        return 0
    if atom is axis or not isinstance(atom, FloorDiv | Mod):
        return 1 if atom is axis else None
    step, by = _lane_step(atom.num, axis, lanes), atom.den.const
    if step == 0 and axis not in deep_atoms(atom.den):
        return 0
    start = [a for a in atom.num.atoms() if a is axis or isinstance(a, Mod)]
    beyond = (atom.num - as_index(start[0])).const if start else None
    if step != 1 or not by or by % lanes or beyond is None or beyond % lanes:
        return None  # a vector may begin anywhere within a run
    return 1 if isinstance(atom, Mod) else 0


@lru_cache(maxsize=8192)
def breaks_along(offset: Index, axis: Axis) -> tuple[Clamp | Mod, ...]:
    """Return the clamps and remainders that, at a few points, keep points along the axis from being
    contiguous."""
    held = [a for a in offset.atoms() if isinstance(a, Clamp | Mod) and axis in deep_atoms(a.num)]
    plain = substitute(offset, {a: a.num for a in held})
    steps = [stride_along(i, axis) for i in (plain, *(a.num for a in held))]
    if any(step is None or step.const != 1 for step in steps):
        return ()
    return () if any(isinstance(a, Gather) for a in deep_atoms(offset)) else tuple(held)


@dataclass(slots=True, kw_only=True)
class Context:
    """The facts by which the functions below choose. `strides`: of everything in memory. `fixed`:
    grid axes of tile 1, constants within a task. `shared`: the grid axis of which a task has some
    points. `inner`: values in buffers."""

    strides: Mapping[str, tuple[Index, ...]]
    inner: Mapping[str, Def]
    fixed: frozenset[Axis]
    shared: frozenset[Axis]
    hints: Mapping[str, int]
    lanes: int

    def extent(self, a: Axis) -> int:
        return likely(a.extent, self.hints)

    def live(self, e: Expr) -> frozenset[Axis]:
        return e.free - self.fixed


def choose_vector(items: list[Item], ctx: Context, others: Set[Axis] = frozenset()) -> Axis | None:
    """Return the axis for the lanes of items that run over the same points. It has the least cost
    of loads and stores, whole vectors, kept axes before reduced ones, and later axes first. An axis
    of `others` is the last choice."""
    best: tuple[float, int] | None = None
    chosen = long_sum(items[0], ctx) if len(items) == 1 else None
    if chosen is not None and chosen not in ctx.fixed and chosen not in others:
        return chosen
    loops = [a for a in items[0].loops if a not in ctx.fixed]
    loops = [a for a in loops if all(_lies_in_lanes(i.body, a) for i in items)]
    for position, a in enumerate([a for a in loops if a not in others] or loops):
        n = ctx.extent(a) if a.extent.const is not None else max(ctx.extent(a), 8 * ctx.lanes)
        waste = math.ceil(n / ctx.lanes) * ctx.lanes / n
        key = (round(sum(_lane_cost(i, a, ctx) for i in items) * waste, 3), -position)
        if best is None or key < best:
            best, chosen = key, a
    return chosen


def _lane_cost(item: Item, a: Axis, ctx: Context) -> float:
    total = 1.0 if a in item.reduced else 0.5
    for load in set(ex.loads(item.body)):
        total += _load_cost(load, a, item, ctx)
    if item.kind == "store":
        step = stride_along(_own_address(item, ctx), a)
        total += 1 if step is not None and step.const == 1 else 0.7 * ctx.lanes
    return total + cost(item.body) * 0.5


def _lies_in_lanes(body: Expr, a: Axis) -> bool:
    """Return whether an op that adds at places which are data adds at the same place in all
    lanes."""
    if not isinstance(body, AddAt):
        return True
    gathers = (g for i in body.place.index for g in deep_atoms(i) if isinstance(g, Gather))
    return a in owning_axes(body.place) and not any(a in g.expr.free for g in gathers)


def _own_address(item: Item, ctx: Context) -> Index:
    if isinstance(item.body, AddAt):
        return address(item.body.place, ctx.strides)
    return place_in(tuple(map(as_index, item.d.axes)), ctx.strides[item.d.name])


def _load_cost(load: Load, a: Axis, item: Item, ctx: Context) -> float:
    walked = _walked_cost(load, a, ctx)
    stageable = load.source not in ctx.inner and _reuse(load, item, ctx) >= 4
    return STAGED if walked >= STRIDED * ctx.lanes and stageable else walked


def _walked_cost(load: Load, a: Axis, ctx: Context) -> float:
    """Return a vector along an axis, from memory or from a buffer."""
    if load.source in ctx.inner:
        kept = own_axes(ctx.inner[load.source])
        if a not in load.free:
            return SPLAT
        return SIDE_BY_SIDE if kept[-1] is a else STRIDED * ctx.lanes
    offset = address(load, ctx.strides)
    step = along_lanes(offset, a, ctx.lanes)
    if step is None:
        return TESTED if breaks_along(offset, a) else ANYWHERE * ctx.lanes
    known = {0: SPLAT, 1: SIDE_BY_SIDE}
    return (
        known.get(step.const, STRIDED * ctx.lanes)
        if step.const is not None
        else STRIDED * ctx.lanes
    )


def _reuse(e: Expr, item: Item, ctx: Context) -> int:
    have = ctx.live(e)
    return math.prod(ctx.extent(a) for a in item.loops if a not in have and a not in ctx.fixed)


def shared_rows(d: Def) -> Axis | None:
    """Of a convolution, the axis of its outputs o: all of them read the same windows of x.

    out[o, i, j] = sum[c, p, q](w[o, c, p, q] * x[c, i + p, j + q])"""
    e = d.expr
    if not isinstance(e, Reduce) or e.fn != "sum" or not isinstance(e.body, Apply):
        return None
    if e.body.fn != "mul" or not all(isinstance(a, Load) for a in e.body.args):
        return None
    x, w = e.body.args
    if not _goes_far(x, e.axes):
        x, w = w, x
    if not _goes_far(x, e.axes) or _goes_far(w, e.axes):
        return None
    in_x, in_w = x.free, w.free
    rows = [a for a in own_axes(d) if a in in_w and a not in in_x]
    return max(rows, key=lambda a: a.extent.const or 1 << 30, default=None)


def short_row(d: Def) -> Axis | None:
    """Return the axis of the places of a row, in the gradient of a convolution's weights. They
    share the loads of the other factor, and stay in registers together (see `long_sum`)."""
    e = d.expr
    if not isinstance(e, Reduce) or e.fn != "sum" or not isinstance(e.body, Apply):
        return None
    if e.body.fn != "mul" or not all(isinstance(a, Load) for a in e.body.args):
        return None
    x, g = e.body.args
    if is_windowed(g, e.axes):
        x, g = g, x
    if not isinstance(x, Load) or is_windowed(g, e.axes) or not x.index:
        return None
    places = deep_atoms(x.index[-1])
    if not any(a in places for a in e.axes):
        return None
    found = [a for a in own_axes(d) if a in places and 1 < (a.extent.const or 0) <= FULL_EXTENT]
    return found[-1] if found and found[-1] not in g.free else None


def _goes_far(e: Expr, reduced: tuple[Axis, ...]) -> bool:
    """Return whether the value is read in windows along a line. (Weights may be, over the few
    phases of a stride.)"""
    short = [a for a in e.free if (a.extent.const or FULL_EXTENT + 1) <= FULL_EXTENT]
    return is_windowed(e, reduced) and is_windowed(
        Rewriter(atoms={a: as_index(0) for a in short if a not in reduced})(e), reduced
    )


def long_sum(item: Item, ctx: Context) -> Axis | None:
    """Return the axis of a row that the gradient of a convolution's weights is summed over: both
    factors are contiguous along it, and the windows of one overlap."""
    e = item.d.expr
    if item.kind != "reduce" or not isinstance(e, Reduce) or e.fn != "sum":
        return None
    if not isinstance(e.body, Apply) or e.body.fn != "mul" or not e.dtype.is_float:
        return None
    factors = [a for a in e.body.args if isinstance(a, Load) and a.source not in ctx.inner]
    if len(factors) != 2 or not any(_overlaps(f, e.axes) for f in factors):
        return None
    for a in e.axes:
        steps = [stride_along(address(f, ctx.strides), a) for f in factors]
        if all(s is not None and s.const == 1 for s in steps) and ctx.extent(a) >= 4 * ctx.lanes:
            return a
    return None


def _overlaps(load: Load, reduced: tuple[Axis, ...]) -> bool:
    """Return whether windows over axes of `reduced` have elements in common. Those of `64 * head +
    i`, for i below 64, have none."""
    for index in load.index:
        axes = [a for a in deep_atoms(index) if isinstance(a, Axis)]
        for r in (a for a in axes if a in reduced):
            for other in (a for a in axes if a not in reduced):
                step, by = stride_along(index, r), stride_along(index, other)
                reach = None if step is None or r.extent.const is None else step * r.extent
                if by is None or reach is None or by.const is None or reach.const is None:
                    return True
                if abs(by.const) < abs(reach.const):
                    return True
    return False


def rounds(item: Item) -> bool:
    return isinstance(item.d.expr, Reduce) and item.d.expr.fn == "sum" and item.d.dtype.is_float


def long_terms(item: Item) -> list[Axis]:
    """Long axes that a float sum is taken over one by one, not along the lanes."""
    if not rounds(item):
        return []
    return [a for a in item.reduced if a is not item.vector and is_long(a, SUM_TILE)]


def long_lanes(item: Item) -> list[Axis]:
    """The long axis along the lanes that a float sum is taken over."""
    lanes = [a for a in item.reduced if a is item.vector and is_long(a, 8 * LANES_TILE)]
    return lanes if rounds(item) else []


def short_terms(item: Item, *but: Axis | None) -> int:
    """Return the number of terms of a sum over its short axes of fixed extent, without those in
    `but`."""
    short = (a.extent.const or 1 for a in item.reduced if not is_long(a, SUM_TILE) and a not in but)
    return math.prod(short)


def is_long(a: Axis, most: int) -> bool:
    return a.extent.const is None or a.extent.const > most


def same_points(a: Item, b: Item) -> bool:
    return set(a.loops) == set(b.loops)


def updated_in_memory(item: Item, items: Iterable[Item]) -> bool:
    """Return whether a float sum may be updated in memory at each term, next to sums of other
    axes."""
    beside = (i for i in items if i.kind == "reduce" and same_points(i, item))
    return rounds(item) and any(set(i.reduced) != set(item.reduced) for i in beside)


# ---- staging --------------------------------------------------------------------------------


def choose_staged(item: Item, ctx: Context) -> list[Expr]:
    """Maximal subexpressions that lack some of the loops and are worth a buffer of the tile."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()  # expressions share their parts
    skip = fully_unrolled(item, ctx)
    loops = frozenset(item.loops) - ctx.fixed
    reduced = frozenset(item.reduced if is_register_tile(item, ctx) else ())

    def visit(e: Expr) -> None:
        have = ctx.live(e) & loops
        if not have or e in seen:
            return
        seen.add(e)
        lacks_some = have < loops and not (loops - have) <= skip
        if lacks_some and _fits(e, have, reduced) and _worth_staging(e, have, item, ctx):
            found[e] = None
            return
        for child in e.children:
            visit(child)

    visit(item.body)
    return [x for e in found for x in (*_parts(e, item, ctx), e)]


def _parts(e: Expr, item: Item, ctx: Context) -> list[Expr]:
    """Return the values to stage for a staged value, whose nest runs over points as an item's
    does."""
    axes = tuple(a for a in item.loops if a in ctx.live(e))
    if isinstance(e, Load) or len(axes) < 2:
        return []
    along = lies_along(e, axes, item, ctx)
    nest = Item(
        kind="store", name=item.name, d=item.d, loops=axes, reduced=(), body=e, vector=along
    )
    return choose_staged(nest, ctx)


def fully_unrolled(item: Item, ctx: Context) -> frozenset[Axis]:
    """Kept axes of small constant extent, held in registers as a whole: all their points share what
    is read along the lanes."""
    if item.kind != "reduce" or item.vector in item.reduced:
        return frozenset()
    points_left = 16
    chosen: set[Axis] = set()
    along = [x.free for x in ex.loads(item.body) if item.vector in x.free]
    for a in item.unreduced:
        n = a.extent.const
        if a is item.vector or a in ctx.fixed or a in ctx.shared:
            continue
        if along and all(a in free for free in along):
            continue
        if n and n <= FULL_EXTENT and n <= points_left:
            chosen.add(a)
            points_left //= n
    return frozenset(chosen)


def is_register_tile(item: Item, ctx: Context) -> bool:
    """Return whether a reduction keeps a block of results in registers while it walks its reduced
    axes."""
    if item.kind != "reduce" or item.vector in item.reduced or item.d.expr.dtype.name == "bool":
        return False
    kept = [a for a in item.unreduced if a not in ctx.fixed]
    steps = math.prod(ctx.extent(a) for a in item.reduced)
    return len(kept) >= 2 and steps >= 8


def _fits(e: Expr, axes: frozenset[Axis], reduced: frozenset[Axis]) -> bool:
    """Return whether one tile of these axes fits in a buffer. `reduced`: the axes that a register
    tile sums over, a few steps at a time. A costly value may have tiles of more than two axes,
    which are cut until they fit."""
    summed = math.prod(_tile_points(a) for a in axes & reduced)
    points = sorted((*(_tile_points(a) for a in axes - reduced), min(summed, REDUCED_POINTS)))
    return math.prod(points[-2:] if cost(e) >= COSTLY else points) <= STAGED_POINTS


def _tile_points(a: Axis) -> int:
    return min(a.extent.const or STAGED_TILE, STAGED_TILE)


def _worth_staging(e: Expr, have: frozenset[Axis], item: Item, ctx: Context) -> bool:
    if isinstance(e, Load) and e.source in ctx.inner:
        return False
    reuse = _reuse(e, item, ctx)
    walked = {item.vector, *item.reduced}
    if is_register_tile(item, ctx) and not fully_unrolled(item, ctx):
        return reuse >= 16 and bool(have & walked)
    if isinstance(e, Load):
        if item.vector not in have or reuse < 4:
            return False
        step = along_lanes(address(e, ctx.strides), item.vector, ctx.lanes)
        return step is None or step.const != 1
    hoisted = item.vector not in have and not (have & set(item.reduced))
    operations = cost(e) + WIDENING * sum(x.dtype.itemsize == 1 for x in set(ex.loads(e)))
    is_worth_it = operations >= LEAST_STAGED and (reuse - 1) * operations >= WORTH_STAGING
    return not hoisted and is_worth_it


def lies_along(e: Expr, axes: tuple[Axis, ...], user: Item, ctx: Context) -> Axis:
    """Return the contiguous axis of a staged value: the lanes of its user, if it has them.

    Else single elements are read, and its axis is that of its operands, or a reduced one.
    """
    if user.vector in axes:
        assert user.vector is not None
        return user.vector

    def rank(position: int) -> tuple[float, bool, int]:
        a = axes[position]
        walked = sum(_walked_cost(load, a, ctx) for load in set(ex.loads(e)))
        return walked, a not in user.reduced, -position

    return axes[min(range(len(axes)), key=rank)]


def contains_inner(e: Expr, ctx: Context) -> Iterator[str]:
    """Yield names of buffered definitions that an expression loads."""
    seen: set[str] = set()
    for load in ex.loads(e):
        if load.source in ctx.inner and load.source not in seen:
            seen.add(load.source)
            yield load.source


def memory_strides(
    inputs: Mapping[str, Input], defs: Mapping[str, Def]
) -> dict[str, tuple[Index, ...]]:
    """Strides of inputs and, row-major, of every definition that may lie in memory."""
    found = {n: i.strides for n, i in inputs.items()}
    found.update({n: row_major(d.shape) for n, d in defs.items()})
    return found
