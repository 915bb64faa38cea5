"""Is a group one plain matrix product? Then PyTorch's own product may run it, if that is faster.

In:  the definitions of a group and the strides of what it loads.
Out: a `Matmul`: the two operands and the result as strided matrices, or None.

    t[b, i, j] = sum[k](mul(x[b, i, k], w[j, k]))  ->  x as (b*i, k) times w as (k, j)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Apply, Def, Load, Reduce
from lowtide.texpr.index import Axis, Index, as_index, product
from lowtide.tile.axes import own_axes
from lowtide.tile.items import address, stride_along

LEAST_POINTS = 1 << 18  # multiplications; below, a call into PyTorch costs more than it can gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`source[offset + …]` seen as (batch…, rows, columns)."""

    source: str
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    left: Matrix
    right: Matrix
    result: Matrix
    points: Index


def as_matmul(defs: Mapping[str, Def], strides: Mapping[str, tuple[Index, ...]]) -> Matmul | None:
    """The product that a group is, or None."""
    if len(defs) != 1:
        return None
    d = next(iter(defs.values()))
    e = d.expr
    if not isinstance(e, Reduce) or e.fn != "sum" or len(e.axes) != 1:
        return None
    if d.dtype.name not in ("f32", "f64") or not isinstance(e.body, Apply) or e.body.fn != "mul":
        return None
    x, y = e.body.args
    if not (isinstance(x, Load) and isinstance(y, Load)):
        return None
    k = e.axes[0]
    kept = own_axes(d)
    in_x, in_y = x.free, y.free
    if k not in in_x or k not in in_y or not set(kept) <= in_x | in_y:
        return None
    batch = [a for a in kept if a in in_x and a in in_y]
    left, right = ([a for a in kept if a in s and a not in batch] for s in (in_x, in_y))
    if not left or not right:
        return None
    here = ex.load(d.name, [as_index(a) for a in d.axes], d.dtype)
    parts = (
        _matrix(x, batch, left, [k], strides),
        _matrix(y, batch, [k], right, strides),
        _matrix(here, batch, left, right, strides),
    )
    if any(p is None for p in parts):
        return None
    a, b, c = parts
    assert a is not None
    assert b is not None
    assert c is not None
    return Matmul(left=a, right=b, result=c, points=product(z.extent for z in (*kept, k)))


def _matrix(
    load: Load,
    batch: list[Axis],
    rows: list[Axis],
    columns: list[Axis],
    strides: Mapping[str, tuple[Index, ...]],
) -> Matrix | None:
    offset = address(load, strides)
    steps: dict[Axis, Index] = {}
    for a in (*batch, *rows, *columns):
        step = stride_along(offset, a)
        if step is None:
            return None
        steps[a] = step
        offset = offset - as_index(a) * step
    if load.free - set(steps) or any(ax in offset.atoms() for ax in steps):
        return None
    down, along = _merged(rows, steps), _merged(columns, steps)
    if down is None or along is None or 1 not in (down[1].const, along[1].const):
        return None
    return Matrix(
        source=load.source,
        sizes=(*(a.extent for a in batch), down[0], along[0]),
        strides=(*(steps[a] for a in batch), down[1], along[1]),
        offset=offset,
    )


def _merged(axes: list[Axis], steps: Mapping[Axis, Index]) -> tuple[Index, Index] | None:
    """Several axes that walk through memory as one: its size and stride."""
    size, step = axes[-1].extent, steps[axes[-1]]
    for a in reversed(axes[:-1]):
        if steps[a] is not size * step:
            return None
        size = size * a.extent
    return size, step
