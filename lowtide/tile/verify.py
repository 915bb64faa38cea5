"""Verifies a planned kernel: every value is complete where it is read.

In:  a kernel whose nests are in order, scheduled or not. Out: nothing; raises VerifyError, an
internal fault.

    for i: t = sum[i](x)                  rule broken: t is read while its sum over i goes on
           y = t * x
    s = t * 2; for i: t = sum[i](x)       rule broken: t is read before anything made it
    for j: s = exp(b[j]);  for j: y = s   rule broken: the tile of s is gone when it is read
    for j: s = exp(b[j]);  s = 2 * s      rule broken: the buffer of s is as long as a tile of j
    t = 0; t[[n[i]]] += x[i]              rule broken: another task may add before this one begins t
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.errors import VerifyError
from lowtide.texpr.expr import AddAt, Expr, Load
from lowtide.tile.ir import (
    Accumulate,
    Buffer,
    Fill,
    Kernel,
    Nest,
    Stmt,
    Store,
    Sweep,
    Write,
    reached,
    sweeps,
)

Path = tuple[Sweep, ...]


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that a buffer lives through, in the order of the text."""

    around: Path
    write: Write | None  # None: it is filled


def verify(kernel: Kernel) -> None:
    """Raise VerifyError if a nest reads a value that does not exist there."""
    past: dict[str, list[_Event]] = {b.name: [] for b in kernel.buffers}
    for stmt, around in _in_order([*kernel.prologue, *kernel.body]):
        if isinstance(stmt, Fill):
            if stmt.empty is None:
                past[stmt.buffer.name] = [_Event(around, None)]
            continue
        for w in stmt.writes:
            if isinstance(w, Store) and isinstance(w.expr, AddAt) and w.target in kernel.outputs:
                raise VerifyError(f"kernel {kernel.name} adds to {w.target}, which it stores")
            for buffer, name in _read(w.expr, stmt, kernel):
                is_kept = not isinstance(w, Store) and w.buffer.name in (buffer.name, f"{name}_old")
                if not is_kept:
                    _check(buffer, past[buffer.name], around, kernel, running=name)
        for w in stmt.writes:
            if not isinstance(w, Store):
                past[w.buffer.name].append(_Event(around, w))
    swept = {s.axis for s in sweeps(kernel.body)}
    for stmt, around in _in_order(kernel.body):
        for w in stmt.writes if isinstance(stmt, Nest) else ():
            within = {s.axis for s in around}
            if not isinstance(w, Store) and (swept - within - w.buffer.whole) & {*w.buffer.axes}:
                raise VerifyError(
                    f"kernel {kernel.name} writes more than a tile of {w.buffer.name}"
                )


def _in_order(body: list[Stmt], around: Path = ()) -> Iterator[tuple[Nest | Fill, Path]]:
    for stmt in body:
        if isinstance(stmt, Sweep):
            yield from _in_order(stmt.body, (*around, stmt))
        else:
            yield stmt, around


def _read(expr: Expr, nest: Nest, kernel: Kernel) -> Iterator[tuple[Buffer, str]]:
    """Yield the buffers that an expression reads; with the name, if it is a definition's value."""
    for node in reached(expr, nest.reads):
        if node in nest.reads:
            yield nest.reads[node], ""
        elif isinstance(node, Load) and node.source in kernel.values:
            yield kernel.values[node.source], node.source


def _check(b: Buffer, past: list[_Event], here: Path, kernel: Kernel, running: str) -> None:
    made = [e for e in past if e.write is not None]
    if not made:
        raise VerifyError(f"kernel {kernel.name} reads {b.name} before anything made it")
    if f"{running}_old" in kernel.values:
        return  # a running maximum: its readers follow it, they are rescaled whenever it grows
    if b.per_thread:
        raise VerifyError(f"kernel {kernel.name} reads {b.name}, of which a thread has a part")
    for event in made:
        closed = [s for s in event.around if s not in here]
        if any(s.axis in b.axes and s.axis not in b.whole for s in closed):
            raise VerifyError(f"kernel {kernel.name} reads {b.name}, whose tile is gone")
    begun = next((x for e in reversed(past) if (x := _begun(e, b)) is not None), None)
    if begun is None:
        raise VerifyError(f"kernel {kernel.name} reads {b.name}, which nothing began")
    going_on = [s for s in here if s not in begun]
    for event in made:
        w = event.write
        if isinstance(w, Accumulate) and any(
            s.axis in w.reduced and s in event.around for s in going_on
        ):
            raise VerifyError(f"kernel {kernel.name} reads {b.name}, whose sum is not whole yet")


def _begun(event: _Event, b: Buffer) -> Path | None:
    """Return the sweeps around the begin of the buffer, None if it is only added to. A sum that
    needs no fill begins outside the sweeps whose first tiles store it."""
    w = event.write
    if w is None or not b.fn:
        return event.around
    if not isinstance(w, Accumulate) or w.first is None:
        return None
    swept = [k for k, s in enumerate(event.around) if s.axis in w.first]
    return event.around[: min(swept, default=len(event.around))]
