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

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from lowtide.errors import Loc
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import AddAt, Expr, Rewriter
from lowtide.texpr.index import Axis, Index, as_index


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
    over: tuple[Axis, ...]
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
    sites: list[tuple[str, Loc]]
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

    def __str__(self) -> str:
        return "\n".join(_lines(self))


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


def _lines(kernel: Kernel) -> Iterator[str]:
    grid = ", ".join(f"{t.axis.name}:{t.axis.extent} by {t.tile}" for t in kernel.grid)
    by = f"lanes {kernel.lanes}"
    if kernel.warps:
        by = f"warps {kernel.warps}  stages {kernel.stages}"
    yield f"kernel {kernel.name}  grid ({grid})  {by}"
    for b in kernel.buffers:
        axes = ", ".join(f"{a.name}{' whole' if a in b.whole else ''}" for a in b.axes)
        kind = "accumulator" if b.fn else "tile"
        scope = " per thread" if b.per_thread else ""
        yield f"  {kind} {b.name}[{axes}]: {b.dtype}{scope}"
    if kernel.prologue:
        yield "  once per thread"
        yield from _stmt_lines([*kernel.prologue], "    ")
    yield from _stmt_lines(kernel.body, "  ")
    for c in kernel.combines:
        yield f"  combine {c.target} = {c.buffer.fn} over threads of {c.buffer.name}"
    yield from _stmt_lines([*kernel.epilogue], "  then ")


def _stmt_lines(body: list[Stmt], indent: str) -> Iterator[str]:
    for stmt in body:
        if isinstance(stmt, Sweep):
            yield f"{indent}for {stmt.axis.name}:{stmt.axis.extent} by {stmt.tile}"
            yield from _stmt_lines(stmt.body, indent + "  ")
        elif isinstance(stmt, Fill):
            where = "" if stmt.empty is None else f" where {_names(stmt.empty)} is empty"
            yield f"{indent}fill {stmt.buffer.name} = {stmt.value!r}{where}"
        else:
            order = ", ".join(_loop_text(stmt, a) for a in stmt.order or stmt.axes)
            yield f"{indent}nest ({order})" + (" transposed" if stmt.transposed else "")
            for w in stmt.writes:
                yield f"{indent}  {_write_text(w, stmt)}"


def _loop_text(nest: Nest, a: Axis) -> str:
    marks = ""
    if a is nest.vector:
        marks += f" vector x{nest.vectors}"
    if a in nest.full:
        marks += " unrolled"
    elif a in nest.unroll:
        marks += f" unroll {nest.unroll[a]}"
    return a.name + marks


def _write_text(w: Write, nest: Nest) -> str:
    expr = _with_reads(w.expr, nest.reads)
    if isinstance(w, Store):
        sign, expr = ("+=", expr.value) if isinstance(expr, AddAt) else ("=", expr)
        return f"{w.target}[{', '.join(map(str, w.index))}] {sign} {expr}"
    if isinstance(w, Stage):
        return f"{w.buffer.name} = {expr}"
    begins = ""
    if w.first is not None:
        begins = f" from its first {_names(w.first)}" if w.first else " at once"
    return f"{w.buffer.name} = {w.fn}[{_names(w.over)}]({expr}){begins}"


def _with_reads(expr: Expr, reads: Mapping[Expr, Buffer]) -> Expr:
    """Return the expression with parts replaced that a buffer has, the larger parts first."""
    for e in sorted(reads, key=lambda e: -sum(1 for _ in ex.walk(e))):
        b = reads[e]
        found = ex.load(b.name, [as_index(a) for a in b.axes], e.dtype)
        expr = Rewriter(lambda node, e=e, found=found: found if node is e else None)(expr)
    return expr


def _names(axes: tuple[Axis, ...]) -> str:
    return ", ".join(a.name for a in axes)
