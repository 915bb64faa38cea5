"""Scatters that add: the indices are data, and may repeat.

    index_add(x: [N, D], 0, i: [K], v: [K, D])   →   t[n, d]   = x[n, d]
                                                     a[k, d]   = v[k, d] added to t[[i[k]], d]

Only if kernels may add at such places (`Builder.adds`); otherwise PyTorch adds. Half precision is
PyTorch's, since it would have to be summed in float32. Negative indices do not wrap; the recorded
check finds them.
"""

from __future__ import annotations

from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ops.arithmetic import check_alpha
from lowtide.ops.indexing import check_index, gathered
from lowtide.ops.operands import Number, dim_of, is_one, pointwise
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index

ADDITIONS: Final = ("index_add", "scatter_add")  # in these PyTorch's flag for determinism decides
SUMMED: Final = (dtypes.f32, dtypes.f64, dtypes.i32, dtypes.i64)


@op(
    "index_add",
    "(self: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Scalar = 1) -> Tensor",
    "torch.index_add Tensor.index_add",
    kind="reduction",
)
def lower_index_add(b: Builder, x: Val, dim: Any, index: Val, source: Val, alpha: Number) -> Val:
    """`alpha * source`, its slices added to those of `self` that a vector of indices names."""
    _check(b, x, source)
    if index.ndim != 1:
        raise Unsupported("index_add by a tensor that is not a vector")
    d = dim_of(b, dim, x.ndim)
    size = x.shape[d]
    for k, (mine, given) in enumerate(zip(x.shape, source.shape, strict=True)):
        b.require_equal(index.shape[0] if k == d else mine, given, "index_add of other sizes")
    check_index(b, index, size, wraps=False)
    if not is_one(alpha):
        check_alpha(b, x.dtype, alpha)
        source = pointwise(b, [source, alpha], x.dtype, lambda v, a: a * v)

    def at(idx: tuple[Index, ...]) -> list[Index]:
        pick = gathered(b, index, [idx[d]], size, wraps=False)
        return [pick if k == d else i for k, i in enumerate(idx)]

    return b.added(x, source.shape, at, lambda idx: b.load(source, idx))


@op(
    "scatter_add",
    "(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor",
    "torch.scatter_add Tensor.scatter_add",
    kind="reduction",
)
def lower_scatter_add(b: Builder, x: Val, dim: Any, index: Val, src: Val) -> Val:
    """src[.., k, ..] added to self[.., index[.., k, ..], ..]."""
    _check(b, x, src)
    if index.ndim != x.ndim or index.dtype is not dtypes.i64:
        raise Unsupported("scatter_add by an index of another rank, or that is not int64")
    d = dim_of(b, dim, x.ndim)
    for k, count in enumerate(index.shape):
        if not (_fits(b, count, src.shape[k]) and (k == d or _fits(b, count, x.shape[k]))):
            raise b.error("scatter_add: the index is larger than a tensor")
        if b.records and not b.equal(count, src.shape[k]):
            raise Unsupported("scatter_add of a part of a tensor, which has no gradient")
    size = x.shape[d]
    check_index(b, index, size, wraps=False)

    def at(idx: tuple[Index, ...]) -> list[Index]:
        pick = gathered(b, index, idx, size, wraps=False)
        return [pick if k == d else i for k, i in enumerate(idx)]

    return b.added(x, index.shape, at, lambda idx: b.load(src, idx))


def _check(b: Builder, x: Val, source: Val) -> None:
    if not b.adds:
        raise Unsupported("adds at places that are data, which PyTorch does in a fixed order")
    if x.dtype not in SUMMED or source.dtype is not x.dtype or not x.ndim:
        raise Unsupported(f"adds {source.dtype} to {x.dtype} of {x.ndim} dims, at places of data")
    if source.ndim != x.ndim:
        raise b.error("adds what has another number of dims")


def _fits(b: Builder, count: Index | int, size: Index | int) -> bool:
    return b.at_least(as_index(size) - count, 0)
