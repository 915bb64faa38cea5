"""Slices of one dim: select, narrow, split, chunk, unbind.

x.chunk(4, 1)   →   t0[i, j] = x[i, j] · t1[i, j] = x[i, j + 1] · ...         x: [N, 4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.ops.indexing import int_index
from lowtide.ops.operands import Size, dim_of, is_list
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv

# ---- one dim ----------------------------------------------------------------------------------


@op(
    "select",
    "(self: Tensor, dim: int, index: int) -> Tensor",
    "torch.select Tensor.select",
    kind="view",
)
def lower_select(b: Builder, x: Val, dim: Any, index: Any) -> Val:
    """One slice along a dim, which goes away."""
    if x.ndim == 0:
        raise b.error("select of a 0-dim tensor")
    d = dim_of(b, dim, x.ndim)
    at = int_index(b, index, x.shape[d])
    return view(b, x, [*x.shape[:d], *x.shape[d + 1 :]], lambda idx: [*idx[:d], at, *idx[d:]])


def narrow(b: Builder, x: Val, d: int, start: Index | int, length: Size) -> Val:
    """x[start : start + length] along dim d; bounds are the caller's care."""
    return view(
        b,
        x,
        [*x.shape[:d], length, *x.shape[d + 1 :]],
        lambda idx: [i + start if k == d else i for k, i in enumerate(idx)],
    )


@op(
    "narrow",
    "(self: Tensor, dim: int, start: int, length: int) -> Tensor",
    "torch.narrow Tensor.narrow",
    kind="view",
)
def lower_narrow(b: Builder, x: Val, dim: Any, start: Any, length: Any) -> Val:
    """`length` slices from `start`."""
    if x.ndim == 0:
        raise b.error("narrow of a 0-dim tensor")
    d = dim_of(b, dim, x.ndim)
    size = as_index(x.shape[d])
    first = as_index(start) if b.at_least(start, 0) else size + start
    count = b.extent(length, "narrow: a negative length")
    if not b.at_least(first, 0) or not b.at_least(size - first - count, 0):
        raise b.error("narrow: out of range")
    return narrow(b, x, d, first, count)


@op(
    "split",
    "(self: Tensor, split_size_or_sections: int|int[], dim: int = 0) -> Tensor[]",
    "torch.split Tensor.split torch.functional.split",
    kind="view",
)
def lower_split(b: Builder, x: Val, sections: Any, dim: Any) -> list[Val]:
    """Pieces of one size, the last smaller, or of the sizes given."""
    if x.ndim == 0:
        raise b.error("split of a 0-dim tensor")
    d = dim_of(b, dim, x.ndim)
    size = as_index(x.shape[d])
    if is_list(sections):
        total = sum((as_index(s) for s in sections), as_index(0))
        lengths = [as_index(b.extent(s, "split: a negative size")) for s in sections]
        b.require_equal(total, size, "split: the sizes do not add up")
        return _pieces(b, x, d, lengths)
    if not b.at_least(sections, 1):
        raise Unsupported("split into pieces of size 0")
    step = as_index(sections)
    count = max(b.static_int(floordiv(size + step - 1, step)), 1)
    return _pieces(b, x, d, [step] * (count - 1) + [size - step * (count - 1)])


def _pieces(b: Builder, x: Val, d: int, sizes: Sequence[Index]) -> list[Val]:
    start = as_index(0)
    pieces: list[Val] = []
    for size in sizes:
        pieces.append(narrow(b, x, d, start, size))
        start = start + size
    return pieces


@op(
    "chunk",
    "(self: Tensor, chunks: int, dim: int = 0) -> Tensor[]",
    "torch.chunk Tensor.chunk",
    kind="view",
)
def lower_chunk(b: Builder, x: Val, chunks: Any, dim: Any) -> list[Val]:
    """At most `chunks` pieces of one size, the last smaller."""
    if x.ndim == 0:
        raise b.error("chunk of a 0-dim tensor")
    n, d = b.static_int(chunks), dim_of(b, dim, x.ndim)
    if n < 1:
        raise b.error("chunk: no chunks")
    size = as_index(x.shape[d])
    if size.const == 0:
        raise Unsupported("chunk of an empty dimension")
    step = floordiv(size + n - 1, n)
    # From n * (n - 1) on there are n pieces; below, or where it is not known, the size decides.
    if size.const is None and b.at_least(size, n * (n - 1)):
        return _pieces(b, x, d, [step] * (n - 1) + [size - step * (n - 1)])
    length = b.static_int(size)
    return lower_split(b, x, -(-length // n), d)


@op(
    "unbind",
    "(self: Tensor, dim: int = 0) -> Tensor[]",
    "torch.unbind Tensor.unbind",
    kind="view",
)
def lower_unbind(b: Builder, x: Val, dim: Any) -> list[Val]:
    """All slices along a dim."""
    if x.ndim == 0:
        raise b.error("unbind of a 0-dim tensor")
    d = dim_of(b, dim, x.ndim)
    return [lower_select(b, x, d, k) for k in range(b.static_int(x.shape[d]))]
