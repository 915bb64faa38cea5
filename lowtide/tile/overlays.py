"""Puts buffers of a kernel that are never alive at the same time into the same work memory.

In: a scheduled kernel; the bytes of its buffers. Out: `Overlay`s, each with its buffers.

    for j: a = x[j]; b = sum[k](a * w)    overlay a, d: a is dead where d begins
           c = exp(b); d = c * c          overlay b, c: c begins where b ends, element by element
           y += sum[j](d)

Invariant: a buffer is alive from the statement that begins it to its last reader; to the end of a
sweep, if it holds something from one tile to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Load
from lowtide.texpr.index import Axis, Index, as_index
from lowtide.texpr.index_ranges import nonnegative
from lowtide.tile.ir import (
    Accumulate,
    Buffer,
    Fill,
    Kernel,
    Nest,
    Stage,
    Stmt,
    Store,
    Sweep,
    reached,
)

SHARED_BYTES = 1 << 12  # smaller buffers have memory of their own


@dataclass(slots=True, kw_only=True)
class Overlay:
    """Work memory as large as the largest of its buffers."""

    nbytes: Index
    buffers: list[Buffer]


_Around = tuple[tuple[Axis, range], ...]  # sweeps, outermost first, and the numbers in them


@dataclass(slots=True)
class _Span:
    """The statements that use a buffer, by number, with the sweeps around each. `goes_on`: axes
    along which the buffer goes on from tile to tile; None if that is not known."""

    uses: list[int] = field(default_factory=list[int])
    around: list[_Around] = field(default_factory=list[_Around])
    goes_on: frozenset[Axis] | None = None

    def whole(self) -> range:
        """Return the numbers of the statements during which the buffer is alive."""
        first, last = min(self.uses), max(self.uses)
        for sweeps in self.around:
            for axis, inside in sweeps:
                is_left = not all((axis, inside) in other for other in self.around)
                if is_left or self.goes_on is None or axis in self.goes_on:
                    first, last = min(first, inside.start), max(last, inside.stop - 1)
        return range(first, last + 1)


def overlays(kernel: Kernel, nbytes: Mapping[str, Index]) -> list[Overlay]:
    """Return the work memory of a kernel, see the module's text. `nbytes`: by names of buffers."""
    alive = {name: span.whole() for name, span in _spans(kernel).items()}
    in_place = set(_in_place(kernel, alive))
    found: list[Overlay] = []

    def meet(a: Buffer, b: Buffer) -> bool:
        first, second = alive[a.name], alive[b.name]
        if (a.name, b.name) in in_place or (b.name, a.name) in in_place:
            return False
        return first.start < second.stop and second.start < first.stop

    for b in sorted(kernel.buffers, key=lambda b: -(nbytes[b.name].const or 0)):
        need = nbytes[b.name]
        place = None
        if b.name in alive and (need.const is None or need.const >= SHARED_BYTES):
            free = (s for s in found if s.buffers[0].name in alive and _larger(s.nbytes, need))
            place = next((s for s in free if not any(meet(b, x) for x in s.buffers)), None)
        if place is None:
            found.append(Overlay(nbytes=need, buffers=[b]))
        else:
            place.nbytes = _larger(place.nbytes, need) or place.nbytes
            place.buffers.append(b)
    return found


def _larger(a: Index, b: Index) -> Index | None:
    """Return the larger of two numbers of bytes; None where that depends on the sizes."""
    return a if a is b or nonnegative(a - b) else b if nonnegative(b - a) else None


def _spans(kernel: Kernel) -> dict[str, _Span]:
    """Return the uses of each buffer that lives within a tile of the grid."""
    lasting = {x.name for b in kernel.buffers if b.per_thread for x in _with_twin(b)}
    for nest in kernel.prologue:
        lasting |= _reads(nest, kernel) | _writes(nest)
    found: dict[str, _Span] = {}
    for number, stmt, around in _numbered(kernel.body, itertools.count(), ()):
        reads = _reads(stmt, kernel) if isinstance(stmt, Nest) else set[str]()
        for name in (reads | _writes(stmt)) - lasting:
            span = found.setdefault(name, _Span())
            if not span.uses and name not in reads:
                span.goes_on = _begun(stmt).get(name)
            span.uses.append(number)
            span.around.append(around)
    return found


def _numbered(
    body: Sequence[Stmt], numbers: Iterator[int], around: _Around
) -> list[tuple[int, Fill | Nest, _Around]]:
    """Return the statements in order, with their numbers and the sweeps around them."""
    found: list[tuple[int, Fill | Nest, _Around]] = []
    for stmt in body:
        if isinstance(stmt, Sweep):
            start = next(numbers)
            inner = _numbered(stmt.body, numbers, ())
            own = stmt.axis, range(start, next(numbers) + 1)
            found += [(n, s, (*around, own, *inside)) for n, s, inside in inner]
        else:
            found.append((next(numbers), stmt, around))
    return found


def _with_twin(b: Buffer) -> Iterator[Buffer]:
    yield b
    if b.twin is not None:
        yield b.twin


def _reads(nest: Nest, kernel: Kernel) -> set[str]:
    """Return the names of the buffers that hold what a nest reads before it writes."""
    own = {w.buffer.name for w in nest.writes if isinstance(w, Stage)}
    held = {e: b for e, b in nest.reads.items() if b.name not in own}
    found: set[str] = set()
    for w in nest.writes:
        for node in reached(w.expr, held):
            b = held.get(node)
            if b is None and isinstance(node, Load):
                b = kernel.values.get(node.source)
            found |= {x.name for x in _with_twin(b)} if b is not None else set()
    return found


def _writes(stmt: Nest | Fill) -> set[str]:
    if isinstance(stmt, Fill):
        return {stmt.buffer.name}
    buffers = [w.buffer for w in stmt.writes if not isinstance(w, Store)]
    return {x.name for b in buffers for x in _with_twin(b)}


def _begun(stmt: Nest | Fill) -> dict[str, frozenset[Axis]]:
    """Return the buffers that a statement begins, with the axes along which they go on: a sum that
    needs no fill begins in the first tiles of these, a buffer of a whole axis has a part of it."""
    if isinstance(stmt, Fill):
        return {stmt.buffer.name: stmt.buffer.whole if stmt.empty is not None else frozenset()}
    found: dict[str, frozenset[Axis]] = {}
    for w in stmt.writes:
        if isinstance(w, Stage):
            found[w.buffer.name] = w.buffer.whole
        elif isinstance(w, Accumulate) and w.first is not None:
            found[w.buffer.name] = w.buffer.whole.union(w.first)
    return found


def _in_place(kernel: Kernel, alive: Mapping[str, range]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a buffer and one that dies where it begins, in a nest that reads each element
    of it before it writes the same element of the other."""
    for number, stmt, _ in _numbered(kernel.body, itertools.count(), ()):
        if not isinstance(stmt, Nest) or len(stmt.writes) != 1 or stmt.transposed:
            continue
        (w,) = stmt.writes
        if not isinstance(w, Stage) or w.buffer.name not in alive:
            continue
        for name, old in kernel.values.items():
            is_end = old.name in alive and alive[old.name].stop == number + 1
            meets = is_end and alive[w.buffer.name].start == number
            is_alike = _same_layout(old, w.buffer) and old not in stmt.reads.values()
            if meets and is_alike and _read_in_place(w.expr, name, old):
                yield w.buffer.name, old.name


def _same_layout(a: Buffer, b: Buffer) -> bool:
    if a.twin is not None or b.twin is not None:
        return False
    is_alike = a.dtype is b.dtype and a.axes == b.axes and a.whole == b.whole
    return is_alike and a.last is b.last and a.panel == b.panel


def _read_in_place(expr: ex.Expr, name: str, b: Buffer) -> bool:
    """Return whether all loads of a value read the point that the nest is at."""
    points = {as_index(a) for a in b.axes}
    loads = [load for load in ex.loads(expr) if load.source == name]
    return bool(loads) and all(
        {i for i in load.index if i.const is None} == points for load in loads
    )
