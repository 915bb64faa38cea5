"""Stores equal parts of a value, which a loop computes one by one, in one tensor.

In:  a definition that `split_ranges` has assembled from its parts. Out: the same value, read from a
     tensor of all parts, which the loop writes one after the other.

    d[t, j:4h] = select(j < h, d0[t, j], select(j < 2h, d1[t, j-h], …))
    ->  d[t, j] = D[j // h, t, j % h]        D: d0, d1, d2, d3, each with all of its steps

A reader of all of d, such as a gradient of weights, is then one definition, not one for each part.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Expr, Load, Select
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import clamp, floordiv, mod


@dataclass(frozen=True, slots=True)
class Block:
    """`parts`, one behind the other in a tensor of this shape."""

    name: str
    parts: tuple[str, ...]
    shape: tuple[Index, ...]
    dtype: DType


def as_block(d: Def, dim: int) -> tuple[Block, Def] | None:
    """Return the block and the definition that reads it; None if its parts are not alike."""
    parts = _parts(d.expr)
    if len(parts) < 2:
        return None
    length = floordiv(d.shape[dim], len(parts))
    for k, load in enumerate(parts):
        index = [as_index(a) for a in d.axes]
        index[dim] = clamp(index[dim] - length * k, length)
        if load.index != tuple(index):
            return None
    names = tuple(load.source for load in parts)
    if len(set(names)) < len(names) or length * len(parts) is not d.shape[dim]:
        return None
    shape = list(d.shape)
    shape[dim] = length
    block = Block(f"{d.name}_parts", names, (as_index(len(parts)), *shape), d.dtype)
    at = [as_index(a) for a in d.axes]
    place, at[dim] = floordiv(at[dim], length), mod(at[dim], length)
    expr = ex.load(block.name, (place, *at), d.dtype)
    return block, Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)


def _parts(e: Expr) -> list[Load]:
    """Return the loads of a chain of selects; [] if it contains anything else."""
    found: list[Load] = []
    while isinstance(e, Select):
        if not isinstance(e.yes, Load):
            return []
        found.append(e.yes)
        e = e.no
    return [*found, e] if isinstance(e, Load) else []
