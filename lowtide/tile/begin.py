"""Starts a reduction with its first part instead of a filled buffer.

In:  a scheduled kernel. Out: the same kernel; if only one nest writes an accumulator, its first
     part is stored, and only later parts are added.

    fill t = 0                               fill t = 0 where k is empty
    for k by 144                       ->    for k by 144
      nest (j vector, i, k)                    nest (j vector, i, k)
        t = sum[k](a * b)                        t = sum[k](a * b) from its first k

This saves a tenth of the time of a short contraction, such as the 64 terms of an attention head,
which would fill its tile, read it back and add.
"""

from __future__ import annotations

from dataclasses import replace

from lowtide.texpr import expr as ex
from lowtide.texpr.index import Axis
from lowtide.tile.ir import Accumulate, Buffer, Fill, Kernel, Nest, Stmt, Store, Sweep, paths
from lowtide.tile.items import ARG
from lowtide.tile.parts import summed_inside


def begin_in_registers(kernel: Kernel) -> None:
    """Mark the sums that need no fill, in place."""
    _begin(kernel.body, kernel)


def _begin(body: list[Stmt], kernel: Kernel) -> None:
    for k, stmt in enumerate(list(body)):
        if isinstance(stmt, Sweep):
            _begin(stmt.body, kernel)
        elif isinstance(stmt, Fill):
            found = _only_writer(stmt.buffer, body[k + 1 :], kernel)
            if found is not None:
                nest, w, swept = found
                first = tuple(a for a in w.reduced if a in swept)
                nest.writes[nest.writes.index(w)] = replace(w, first=first)
                grid = {t.axis for t in kernel.grid}
                stmt.empty = tuple(a for a in w.reduced if a not in grid and not a.extent.const)
    body[:] = [s for s in body if not isinstance(s, Fill) or s.empty != ()]


def _only_writer(
    buffer: Buffer, after: list[Stmt], kernel: Kernel
) -> tuple[Nest, Accumulate, tuple[Axis, ...]] | None:
    """Return the nest that alone writes the buffer and is not read before, with the sweeps around
    it."""
    everywhere = [w for n in kernel.nests() for w in n.writes if not isinstance(w, Store)]
    if sum(w.buffer is buffer for w in everywhere) != 1 or buffer.fn in ARG:
        return None
    for nest, around in paths(after):
        for w in nest.writes:
            if isinstance(w, Accumulate) and w.buffer is buffer:
                swept = tuple(s.axis for s in around)
                return (nest, w, swept) if _keeps_in_registers(nest, w) else None
        if _reads(nest, buffer, kernel):
            return None
    return None


def _reads(nest: Nest, buffer: Buffer, kernel: Kernel) -> bool:
    loads = (load for w in nest.writes for load in ex.loads(w.expr))
    return any(kernel.values.get(load.source) is buffer for load in loads)


def _keeps_in_registers(nest: Nest, w: Accumulate) -> bool:
    """Return whether each result is summed up by inner loops in registers, and written once, as
    vectors."""
    if nest.vector is None or nest.vector in w.reduced:
        return False
    walks = any(a in w.reduced for a in nest.order if a not in nest.full)
    return walks and summed_inside(nest, w)
