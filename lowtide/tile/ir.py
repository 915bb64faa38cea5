"""Tile programs: where and when.

    Kernel = grid (Axis, tile)*, buffers, Stmt*, combines
    Stmt   = Sweep(axis, tile, Stmt*)         -- loop over tiles of an axis
           | Fill(buffer, value)              -- before a reduction starts
           | Nest(axes, Write*)               -- loops over the points of one tile
    Write  = Store(value to a tensor, or added to one) | Stage(expr to a tile buffer)
           | Accumulate(buffer, fn, expr)

A kernel runs once per tile of its grid, tiles in parallel. Names tiles, accumulators and loops,
never an instruction set.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from lowtide.ir.dtypes import DType
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Axis, Index


@dataclass(frozen=True, slots=True)
class Tiled:
    """An axis cut into tiles; `tile` None is the whole extent."""

    axis: Axis
    tile: int | None


@dataclass(eq=False, slots=True, kw_only=True)
class Buffer:
    """Work memory of one thread. An axis in `whole` is held in full, the others one tile at a time.

    `fn` is set for accumulators; `indexed` ones (argmin) hold the best index beside the value.
    `last` is the axis that lies contiguously. `per_thread`: lives through all tiles of a thread
    and is combined over threads at the end."""

    name: str
    dtype: DType
    axes: tuple[Axis, ...]
    whole: frozenset[Axis] = frozenset()
    last: Axis | None = None
    fn: str = ""
    per_thread: bool = False
    panel: int = 0  # elements of `last` that lie together, all other axes inside; 0: all of them
    twin: Buffer | None = None  # argmin, argmax: the best values; this buffer holds the indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """`target[address] = expr` for a tensor in memory; where `expr` is an `AddAt`, its value is
    added to what is there. On GPUs other tasks may do so at the same time."""

    target: str
    index: tuple[Index, ...]
    expr: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`buffer[its axes] = expr`."""

    buffer: Buffer
    expr: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulate:
    """`buffer[its axes] = fn over axes of expr`, going on from what the buffer holds.

    `first`: in the first tile of all these swept axes the buffer holds nothing yet."""

    buffer: Buffer
    fn: str
    reduced: tuple[Axis, ...]
    expr: Expr
    first: tuple[Axis, ...] | None = None


Write = Store | Stage | Accumulate


@dataclass(slots=True, kw_only=True)
class Nest:
    """Loops over `axes` within the current tiles. `reads`: expressions found in a buffer.

    The schedule sets the other fields: the axis along the vector lanes, the vectors per block, the
    axis of which registers hold several points, and the order of the loops, outermost first.
    """

    axes: tuple[Axis, ...]
    writes: list[Write]
    reads: dict[Expr, Buffer] = field(default_factory=dict[Expr, "Buffer"])
    order: tuple[Axis, ...] = ()
    vector: Axis | None = None
    vectors: int = 1
    unroll: dict[Axis, int] = field(default_factory=dict[Axis, int])
    full: frozenset[Axis] = frozenset()  # axes of constant extent that are unrolled completely
    transposed: Axis | None = None  # copies across the grain: the axis that memory lies along
    parts: frozenset[Axis] = frozenset()  # loops with a partial sum of their own, for less rounding
    blocks: dict[Axis, int] = field(default_factory=dict[Axis, int])  # steps that have one


def reached(expr: Expr, known: Container[Expr]) -> Iterator[Expr]:
    """Yield every node once that is computed or read, if expressions in `known` are read from a
    buffer."""
    seen: set[Expr] = set()
    todo = [expr]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if node not in known:
            todo.extend(node.children)


@dataclass(slots=True, kw_only=True)
class Fill:
    """`empty`: needed only where one of these axes has no points."""

    buffer: Buffer
    value: float | int | bool
    empty: tuple[Axis, ...] | None = None


@dataclass(slots=True, kw_only=True)
class Sweep:
    axis: Axis
    tile: int
    body: list[Stmt]


Stmt = Nest | Fill | Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine:
    """After all tiles: fold a per-thread buffer over threads and store it."""

    buffer: Buffer
    target: str
    axes: tuple[Axis, ...]  # of the target, extent 1 included


@dataclass(slots=True, kw_only=True)
class Kernel:
    """One launch. `values` says which buffer holds a definition's value while it runs. `prologue`:
    what all tiles read alike; a thread computes it once, in a loop of many steps at the first.

    `adds`: definitions, and the tensors, of other kernels, that they are added to.
    `checks_nan`: fast minima lose NaN; if one was seen the kernel runs again with
    the exact ones. `warps`, `stages`: of a kernel of blocks, see `target.BlockSizes`."""

    name: str
    grid: tuple[Tiled, ...]
    buffers: list[Buffer]
    values: dict[str, Buffer]
    prologue: list[Nest]
    body: list[Stmt]
    combines: list[Combine]
    epilogue: list[Nest]
    outputs: list[str]
    adds: dict[str, str]
    checks_nan: bool
    lanes: int
    warps: int = 0
    stages: int = 0

    def nests(self) -> Iterator[Nest]:
        yield from (nest for nest, _ in paths(self.body))
        yield from self.prologue
        yield from self.epilogue

    def tiles(self) -> Iterator[tuple[Axis, int | None]]:
        """Yield every axis that is cut, with its tile."""
        yield from ((t.axis, t.tile) for t in self.grid)
        yield from ((s.axis, s.tile) for s in sweeps(self.body))

    def has_whole(self, a: Axis) -> bool:
        """Return whether every tile holds all points of an axis. Only such an axis can be fully
        unrolled."""
        return all(
            tile is None or (a.extent.const is not None and a.extent.const <= tile)
            for axis, tile in self.tiles()
            if axis is a
        )


def sweeps(body: list[Stmt]) -> Iterator[Sweep]:
    """Yield all sweeps, outer ones first."""
    for stmt in body:
        if isinstance(stmt, Sweep):
            yield stmt
            yield from sweeps(stmt.body)


def paths(
    body: list[Stmt], around: tuple[Sweep, ...] = ()
) -> Iterator[tuple[Nest, tuple[Sweep, ...]]]:
    """Yield all nests in order, each with the sweeps around it, outermost first."""
    for stmt in body:
        if isinstance(stmt, Nest):
            yield stmt, around
        elif isinstance(stmt, Sweep):
            yield from paths(stmt.body, (*around, stmt))
