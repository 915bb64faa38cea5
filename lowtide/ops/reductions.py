"""Reductions: sum, mean, extremes, variance, norms.

    mean(x: [N, M] bf16, dim=1)   →   t[i] = bf16(sum(j < M: f32(x[i, j])) / f32(M))

Sums of bf16 and f16 are taken in f32, of ints and bools in i64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.indexing import lower_getitem
from lowtide.ops.operands import Size, Term, cast_to, compute, dims_of, from_torch, require_float
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index, product

Finish = Callable[[Term], Term]
DIMS: Final = "dim: int[]? = None, keepdim: bool = False"


def reduced_shape(shape: Sequence[Size], dims: Sequence[int], keepdim: bool) -> tuple[Size, ...]:
    """Return the shape without `dims`, or with size 1 there."""
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(shape))
    return tuple(s for d, s in enumerate(shape) if d not in dims)


def merge_index(
    ndim: int, dims: Sequence[int], keepdim: bool, outer: Sequence[Index], inner: Sequence[Index]
) -> list[Index]:
    """Return the index into the unreduced tensor from result index and reduction axes."""
    rest = list(outer)
    full: list[Index] = []
    for d in range(ndim):
        if d in dims:
            full.append(inner[list(dims).index(d)])
            if keepdim:
                rest.pop(0)
        else:
            full.append(rest.pop(0))
    return full


def reduce_over(
    b: Builder,
    x: Val,
    dims: Sequence[int],
    keepdim: bool,
    fn: str,
    *,
    within: DType,
    result: DType,
    term: Callable[[Term, list[Index], list[Index]], Term] | None = None,
    finish: Finish | None = None,
) -> Val:
    """finish(reduce(fn, term(element))), the elements cast to `within` first.

    `term` is also given the index in x, and that index with 0 at the reduced dims."""
    extents = [x.shape[d] for d in dims]

    def body(outer: tuple[Index, ...]) -> Expr:
        def inner(axes: tuple[Index, ...]) -> Expr:
            full = merge_index(x.ndim, dims, keepdim, outer, axes)
            value = Term(b, b.cast(b.load(x, full), within))
            kept = [as_index(0) if d in dims else i for d, i in enumerate(full)]
            return value.expr if term is None else term(value, full, kept).expr

        total = Term(b, b.reduce(fn, extents, inner))
        return (total if finish is None else finish(total)).cast(result).expr

    return b.tensor(reduced_shape(x.shape, dims, keepdim), result, body)


def count(x: Val, dims: Sequence[int]) -> Index:
    """Return the number of elements that are reduced into one."""
    return product(x.shape[d] for d in dims)


def divide_by_count(b: Builder, x: Val, dims: Sequence[int]) -> Finish:
    """Return the mean from the sum."""
    n = count(x, dims)
    return lambda total: total / Term(b, b.cast(b.at(n), total.dtype))


def sum_dtype(x: Val, dtype: torch.dtype | None) -> DType:
    if dtype is not None:
        return from_torch(dtype)
    return x.dtype if x.dtype.is_float else dtypes.i64


# ---- sums -------------------------------------------------------------------------------------


@op(
    "sum",
    f"(self: Tensor, {DIMS}, *, dtype: dtype? = None) -> Tensor",
    "torch.sum Tensor.sum",
    kind="reduction",
)
def lower_sum(b: Builder, x: Val, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Val:
    """The sum over dims, all by default."""
    result = sum_dtype(x, dtype)
    within = compute(result) if result.is_float else dtypes.i64
    if result is dtypes.boolean:
        raise Unsupported("a sum in bool")
    return reduce_over(
        b, cast_to(b, x, result) if dtype is not None else x,
        dims_of(b, dim, x.ndim), bool(keepdim), "sum", within=within, result=result,
    )  # fmt: skip


@op(
    "prod",
    "(self: Tensor, dim: int? = None, keepdim: bool = False, *, dtype: dtype? = None) -> Tensor",
    "torch.prod Tensor.prod",
    kind="reduction",
    eager=lambda x, dim, keepdim, dtype: (
        torch.prod(x, dtype=dtype) if dim is None else torch.prod(x, dim, keepdim, dtype=dtype)
    ),
)
def lower_prod(b: Builder, x: Val, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Val:
    """The product over one dim, or all."""
    result = sum_dtype(x, dtype)
    if result is dtypes.boolean:
        raise Unsupported("a product in bool")
    within = compute(result) if result.is_float else dtypes.i64
    x = cast_to(b, x, result)
    dims = dims_of(b, dim, x.ndim)
    return reduce_over(b, x, dims, bool(keepdim), "prod", within=within, result=result)


@op(
    "mean",
    f"(self: Tensor, {DIMS}, *, dtype: dtype? = None) -> Tensor",
    "torch.mean Tensor.mean",
    kind="reduction",
)
def lower_mean(b: Builder, x: Val, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Val:
    """The mean over dims, all by default; floats only."""
    if dtype is not None:
        x = cast_to(b, x, from_torch(dtype))
    require_float(x)
    return mean_over(b, x, dims_of(b, dim, x.ndim), bool(keepdim), x.dtype)


def mean_over(
    b: Builder, x: Val, dims: Sequence[int], keepdim: bool, result: DType, fn: Finish | None = None
) -> Val:
    """Return the mean of fn(x) over dims, in the dtype `result`."""
    return reduce_over(
        b, x, dims, keepdim, "sum",
        within=compute(x.dtype), result=result,
        term=None if fn is None else lambda v, _full, _kept: fn(v),
        finish=divide_by_count(b, x, dims),
    )  # fmt: skip


@op(
    "nansum",
    f"(self: Tensor, {DIMS}, *, dtype: dtype? = None) -> Tensor",
    "torch.nansum Tensor.nansum",
    kind="reduction",
)
def lower_nansum(b: Builder, x: Val, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Val:
    """The sum, NaN counted as zero."""
    if not x.dtype.is_float or dtype is not None:
        raise Unsupported("nansum of ints or into another dtype")
    return reduce_over(
        b, x, dims_of(b, dim, x.ndim), bool(keepdim), "sum",
        within=compute(x.dtype), result=x.dtype,
        term=lambda v, _full, _kept: v.fn("isnan").where(0.0, v),
    )  # fmt: skip


@op(
    "nanmean",
    f"(self: Tensor, {DIMS}, *, dtype: dtype? = None) -> Tensor",
    "torch.nanmean Tensor.nanmean",
    kind="reduction",
)
def lower_nanmean(b: Builder, x: Val, dim: Any, keepdim: Any, dtype: torch.dtype | None) -> Val:
    """The mean of what is not NaN."""
    if not x.dtype.is_float or dtype is not None:
        raise Unsupported("nanmean of ints or into another dtype")
    dims, within = dims_of(b, dim, x.ndim), compute(x.dtype)
    total = reduce_over(
        b, x, dims, bool(keepdim), "sum", within=within, result=within,
        term=lambda v, _full, _kept: v.fn("isnan").where(0.0, v),
    )  # fmt: skip
    present = reduce_over(
        b, x, dims, bool(keepdim), "sum", within=within, result=within,
        term=lambda v, _full, _kept: v.fn("isnan").where(v.like(0.0), v.like(1.0)),
    )  # fmt: skip
    return b.tensor(
        total.shape, x.dtype, lambda idx: b.cast(
            b.apply("div", b.load(total, idx), b.load(present, idx)), x.dtype)
    )  # fmt: skip


@op(
    "count_nonzero",
    "(self: Tensor, dim: int[]? = None) -> Tensor",
    "torch.count_nonzero Tensor.count_nonzero",
    kind="reduction",
)
def lower_count_nonzero(b: Builder, x: Val, dim: Any) -> Val:
    """The number of elements that are not zero."""
    dims = dims_of(b, dim, x.ndim)
    truth = b.tensor(x.shape, dtypes.boolean, lambda idx: b.cast(b.load(x, idx), dtypes.boolean))
    return reduce_over(b, truth, dims, False, "sum", within=dtypes.i64, result=dtypes.i64)


# ---- of what a mask selects: from `passes/masked_sums`, no function of PyTorch's ----------------


def _masked(b: Builder, x: Val, index: Val, name: str) -> tuple[Val, Val | None]:
    """Return the elements, zero where the mask is False, and the mask. For an index that is no
    mask, return the elements that it names."""
    if index.dtype not in (dtypes.boolean, dtypes.u8):
        return lower_getitem(b, ("tensor",), x, index), None
    if index.dtype is not dtypes.boolean or index.ndim > x.ndim:
        raise Unsupported(f"{name} by an index of {index.dtype}")
    for size, whole in zip(index.shape, x.shape, strict=False):
        b.require_equal(size, whole, "a mask of another size")

    def body(idx: tuple[Index, ...]) -> Expr:
        return b.select(b.load(index, idx[: index.ndim]), b.load(x, idx), b.const(0, x.dtype))

    return b.tensor(x.shape, x.dtype, body), index


@op(
    "masked_sum",
    "(self: Tensor, mask: Tensor) -> Tensor",
    "",
    kind="reduction",
    eager=lambda x, mask: x[mask].sum(),
)
def lower_masked_sum(b: Builder, x: Val, mask: Val) -> Val:
    """`self[mask].sum()`"""
    chosen, _ = _masked(b, x, mask, "a sum of what is selected")
    return lower_sum(b, chosen, None, False, None)


@op(
    "masked_mean",
    "(self: Tensor, mask: Tensor) -> Tensor",
    "",
    kind="reduction",
    eager=lambda x, mask: x[mask].mean(),
)
def lower_masked_mean(b: Builder, x: Val, mask: Val) -> Val:
    """`self[mask].mean()`: NaN where nothing is selected."""
    require_float(x)
    chosen, is_on = _masked(b, x, mask, "a mean of what is selected")
    if is_on is None:
        return lower_mean(b, chosen, None, False, None)
    within = compute(x.dtype)
    total = lower_sum(b, cast_to(b, chosen, within), None, False, None)
    found = lower_sum(b, is_on, None, False, None)
    each = product(x.shape[is_on.ndim :])  # elements for one of the mask's

    def body(idx: tuple[Index, ...]) -> Expr:
        count = b.apply("mul", b.load(found, idx), b.cast(b.at(each), dtypes.i64))
        return b.cast(b.apply("div", b.load(total, idx), b.cast(count, within)), x.dtype)

    return b.tensor((), x.dtype, body)
