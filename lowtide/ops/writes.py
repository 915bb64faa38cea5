"""Writes at index vectors into a part of a matrix, for `budget/chunk_forms`; no op of PyTorch's.

d[rows, columns] = v    →    t = put_in_part(d[p : q], rows, columns, v, arange(p, q), …)

PyTorch runs it: of all places that the vectors name, those in the part are written, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from lowtide.ir.effects import Effects
from lowtide.ops.registry import add_op

Tensor = torch.Tensor


def put_in_part(
    x: Tensor,
    rows: Tensor | None,
    columns: Tensor | None,
    value: Any,
    row_places: Tensor,
    column_places: Tensor,
    height: int,
    width: int,
    adds: bool,
) -> Tensor:
    """Return a part of a matrix [height, width] after a write at indices.

    `row_places`, `column_places`: which rows and columns of the matrix the part has, all or some
    that lie together. Raises IndexError for an index outside of the matrix, as PyTorch does."""
    if x.is_meta:
        return x.clone()
    named = [i for i in (rows, columns) if i is not None]
    given = cast("Sequence[Tensor]", torch.broadcast_tensors(*named))
    indices = [_wrapped(i, d, n) for i, d, n in _named(given, rows, columns, height, width)]
    places = [p for i, p in ((rows, row_places), (columns, column_places)) if i is not None]
    sizes = [n for i, n in ((rows, height), (columns, width)) if i is not None]
    inside = torch.ones_like(indices[0], dtype=torch.bool)
    for k, (place, size) in enumerate(zip(places, sizes, strict=True)):
        if place.numel() != size:
            indices[k] = indices[k] - place.flatten()[0]
            inside &= (indices[k] >= 0) & (indices[k] < place.numel())
    value = torch.as_tensor(value, dtype=x.dtype, device=x.device)
    value = value.expand(inside.shape)[inside] if value.dim() else value
    indices = [i[inside] for i in indices]
    if len(indices) == 1:  # of whole rows or columns
        return x.index_fill(0 if columns is None else 1, indices[0], value)
    return x.index_put(tuple(indices), value, adds)


def _named(
    given: Sequence[Tensor], rows: Tensor | None, columns: Tensor | None, height: int, width: int
) -> list[tuple[Tensor, int, int]]:
    """Return the indices, each with its dim and the size of that."""
    dims = [d for d, i in enumerate((rows, columns)) if i is not None]
    return [(i, d, (height, width)[d]) for i, d in zip(given, dims, strict=True)]


def _wrapped(index: Tensor, dim: int, size: int) -> Tensor:
    """Return the index without negative numbers."""
    if index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < -size or high >= size:
            wrong = low if low < -size else high
            raise IndexError(f"index {wrong} is out of bounds for dimension {dim} with size {size}")
    return torch.where(index < 0, index + size, index)


add_op(
    "put_in_part",
    "(self: Tensor, rows: Tensor?, columns: Tensor?, value: any, row_places: Tensor, "
    "column_places: Tensor, height: int, width: int, adds: bool) -> Tensor",
    "",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
    eager=cast("Any", put_in_part),
    doc="A part of a matrix after a write at index vectors.",
)
