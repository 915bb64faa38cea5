"""Gives float sums in memory a partial sum for each tile, for less rounding error.

In:  a kernel whose nests are scheduled. Out: the same kernel, changed in place.

    for i by 2048                            for i by 2048
      nest (i, j vector)               ->      fill t_part = 0
        t = sum[i](x[i, j])                    nest (i, j vector)
                                                 t_part = sum[i](x[i, j])
                                               nest (j vector)
                                                 t = t + t_part

A million numbers that are added to a float32 one by one give an error of about a percent. A sum in
a nest's registers is a partial sum already. So is what a thread adds for one tile of the grid, if
the tile has enough terms.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lowtide.ir.dtypes import BY_NAME
from lowtide.texpr import expr as ex
from lowtide.texpr.index import as_index
from lowtide.tile.ir import Accumulate, Buffer, Fill, Kernel, Nest, Stage, Stmt, Write, paths

BLOCK = 64  # terms of a partial sum, at least


def sum_in_parts(kernel: Kernel) -> list[Nest]:
    """Give each such sum a partial sum, in place. Return the nests that add these to the totals,
    which have no schedule yet."""
    made: list[Nest] = []
    for acc in [b for b in kernel.buffers if b.per_thread and b.axes and _rounds(b)]:
        writers = [nest for nest in kernel.nests() if _sum_into(acc, nest)]
        if not all(_is_block(nest, acc, kernel) for nest in writers):
            made.append(_part(acc, writers, kernel.body, kernel))
    found: dict[tuple[int, int], tuple[Buffer, list[Nest], list[Stmt]]] = {}
    for nest, around in paths(kernel.body):
        for w in nest.writes:
            if not isinstance(w, Accumulate) or not _rounds(w.buffer) or summed_inside(nest, w):
                continue
            sweep = next((s for s in reversed(around) if s.axis in w.reduced), None)
            if sweep is not None:
                key = (id(sweep), id(w.buffer))
                found.setdefault(key, (w.buffer, [], sweep.body))[1].append(nest)
    made += [_part(acc, writers, body, kernel) for acc, writers, body in found.values()]
    return made


def summed_inside(nest: Nest, w: Accumulate) -> bool:
    """Return whether the loops over a sum's terms are all inside those over its results, so that a
    register holds the sum."""
    loops = [a for a in nest.order if a not in nest.full]
    walked = [k for k, a in enumerate(loops) if a in w.reduced]
    kept = [k for k, a in enumerate(loops) if a not in w.reduced]
    return not walked or not kept or min(walked) > max(kept)


def _is_block(nest: Nest, acc: Buffer, kernel: Kernel) -> bool:
    """Return whether registers sum at least BLOCK terms of a tile, as in a matrix product, before
    these are added to `acc`."""
    tiles = {t.axis: t.tile or 1 for t in kernel.grid}
    sums = [w for w in nest.writes if isinstance(w, Accumulate) and w.buffer is acc]
    return all(
        summed_inside(nest, w) and math.prod(tiles.get(a, 1) for a in w.reduced) >= BLOCK
        for w in sums
    )


def _rounds(b: Buffer) -> bool:
    return b.fn == "sum" and b.dtype.is_float


def _sum_into(acc: Buffer, nest: Nest) -> bool:
    return any(_adds_to(acc, w) for w in nest.writes)


def _adds_to(acc: Buffer, w: Write) -> bool:
    return isinstance(w, Accumulate) and w.buffer is acc


def _part(acc: Buffer, writers: list[Nest], body: list[Stmt], kernel: Kernel) -> Nest:
    """Make the writers sum into a new buffer, which is zeroed at the start of `body`. Return the
    nest at its end, which adds the buffer to `acc`."""
    name = next(n for n, b in kernel.values.items() if b is acc)
    dtype = next(w.expr.dtype for n in writers for w in n.writes if _adds_to(acc, w))
    part = replace(acc, name=f"{name}_part", dtype=BY_NAME[dtype.compute], per_thread=False)
    kernel.buffers.append(part)
    kernel.values[part.name] = part
    for nest in writers:
        nest.writes = [
            replace(w, buffer=part) if isinstance(w, Accumulate) and _adds_to(acc, w) else w
            for w in nest.writes
        ]
    here = [as_index(a) for a in acc.axes]
    more = ex.cast(ex.load(part.name, here, part.dtype), acc.dtype)
    both = (ex.load(name, here, acc.dtype), more)
    total = Stage(buffer=acc, expr=ex.apply("add", both, acc.dtype))
    add = Nest(axes=acc.axes, writes=[total], vector=acc.last)
    body.insert(0, Fill(buffer=part, value=0))
    body.append(add)
    return add
