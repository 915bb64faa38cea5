"""Gathers: loads whose index is data.

    embedding(i: [N], w: [V, D])   →   t[n, d] = w[[i[n]], d]

Negative indices wrap in `take_along_dim` only; elsewhere the recorded check finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.factories import filled
from lowtide.ops.indexing import check_index, gathered
from lowtide.ops.operands import Number, broadcast, broadcast_index, check_converts, dim_of
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index

# ---- indices that are data --------------------------------------------------------------------


@op(
    "index_select",
    "(self: Tensor, dim: int, index: Tensor) -> Tensor",
    "torch.index_select Tensor.index_select",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_index_select(b: Builder, x: Val, dim: Any, index: Val) -> Val:
    """The slices that a vector of indices names."""
    if x.ndim == 0 or index.ndim != 1:
        raise Unsupported("index_select of a 0-dim tensor or by a tensor that is not a vector")
    d = dim_of(b, dim, x.ndim)
    size = x.shape[d]
    check_index(b, index, size, wraps=False)

    def at(idx: tuple[Index, ...]) -> list[Index]:
        pick = gathered(b, index, [idx[d]], size, wraps=False)
        return [pick if k == d else i for k, i in enumerate(idx)]

    return view(b, x, [*x.shape[:d], index.shape[0], *x.shape[d + 1 :]], at)


@op(
    "gather",
    "(self: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor",
    "torch.gather Tensor.gather",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_gather(b: Builder, x: Val, dim: Any, index: Val, sparse_grad: Any) -> Val:
    """t[.., k, ..] = x[.., index[.., k, ..], ..]."""
    if x.ndim == 0 or index.ndim != x.ndim or sparse_grad:
        raise Unsupported("gather of other ranks, or with a sparse gradient")
    d = dim_of(b, dim, x.ndim)
    for k in range(x.ndim):
        if k != d and not b.at_least(as_index(x.shape[k]) - index.shape[k], 0):
            raise b.error("gather: the index is larger than the tensor")
    size = x.shape[d]
    check_index(b, index, size, wraps=False)

    def at(idx: tuple[Index, ...]) -> list[Index]:
        pick = gathered(b, index, idx, size, wraps=False)
        return [pick if k == d else i for k, i in enumerate(idx)]

    return view(b, x, index.shape, at)


@op(
    "take_along_dim",
    "(self: Tensor, indices: Tensor, dim: int? = None) -> Tensor",
    "torch.take_along_dim Tensor.take_along_dim",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_take_along_dim(b: Builder, x: Val, index: Val, dim: Any) -> Val:
    """gather, with the other dims broadcast."""
    if dim is None or x.ndim == 0 or index.ndim != x.ndim:
        raise Unsupported("take_along_dim of the flattened tensor or of other ranks")
    d = dim_of(b, dim, x.ndim)
    size = x.shape[d]
    check_index(b, index, size, wraps=True)
    x_rest = [1 if k == d else s for k, s in enumerate(x.shape)]
    index_rest = [1 if k == d else s for k, s in enumerate(index.shape)]
    shape = list(broadcast(b, x_rest, index_rest))
    shape[d] = index.shape[d]

    def at(idx: tuple[Index, ...]) -> list[Index]:
        pick = gathered(b, index, broadcast_index(b, index.shape, idx), size, wraps=True)
        rest = broadcast_index(b, x_rest, idx)
        return [pick if k == d else i for k, i in enumerate(rest)]

    return view(b, x, shape, at)


def _of_embedding(operands: Sequence[object]) -> Effects:
    """`max_norm`: rows of the weight that are too long are shortened in place."""
    is_plain = operands[3] is None
    made = Effects.MAKES | Effects.RAISES
    return made if is_plain else made | Effects.WRITES


@op(
    "embedding",
    "(input: Tensor, weight: Tensor, padding_idx: int? = None, max_norm: float? = None, "
    "norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor",
    "F.embedding",
    kind="copy",
    effects=_of_embedding,
    eager="F.embedding",
)
def lower_embedding(
    b: Builder,
    index: Val,
    weight: Val,
    padding_idx: Any,
    max_norm: Any,
    norm_type: Any,
    scale_grad_by_freq: Any,
    sparse: Any,
) -> Val:
    """The rows of `weight` that the indices name."""
    del norm_type
    if padding_idx is not None or max_norm is not None or scale_grad_by_freq or sparse:
        raise Unsupported("embedding with a gradient of its own, or with max_norm")
    if weight.ndim != 2:
        raise b.error("embedding of a weight that is not a matrix")
    size = weight.shape[0]
    check_index(b, index, size, wraps=False)
    return view(
        b,
        weight,
        [*index.shape, weight.shape[1]],
        lambda idx: [gathered(b, index, idx[:-1], size, wraps=False), idx[-1]],
    )


@op(
    "one_hot",
    "(tensor: Tensor, num_classes: int = -1) -> Tensor",
    "F.one_hot",
    kind="pointwise",
    # contiguous on the CPU in any case, but not on the meta device
    eager=lambda tensor, num_classes: torch.nn.functional.one_hot(tensor, num_classes).contiguous(),
)
def lower_one_hot(b: Builder, index: Val, num_classes: Any) -> Val:
    """1 at the class, else 0; the number of classes must be given."""
    if index.dtype is not dtypes.i64 or not b.at_least(num_classes, 1):
        raise Unsupported("one_hot with a number of classes found in the data")
    b.check_bounds(index, 0, num_classes)

    def body(idx: tuple[Index, ...]) -> Any:
        hit = b.apply("eq", b.load(index, idx[:-1]), b.at(idx[-1]))
        return b.cast(hit, dtypes.i64)

    return b.tensor([*index.shape, num_classes], dtypes.i64, body)


_MOST_PLACES: Final = 16  # of a row, that each of its elements is compared with


@op(
    "scatter.value",
    "(self: Tensor, dim: int, index: Tensor, value: Scalar) -> Tensor",
    "torch.scatter Tensor.scatter",
    kind="pointwise",
)
def lower_scatter_value(b: Builder, x: Val, dim: Any, index: Val, value: Number) -> Val:
    """`self`, and `value` at few places along a dim, which a tensor of indices names."""
    check_converts(b, x.dtype, value)
    d, count = _few_places(b, x, dim, index)
    number = filled(b, x.shape, x.dtype, value)
    return with_values_at(b, x, d, index, count, lambda idx, _: b.load(number, idx))


@op(
    "scatter.src",
    "(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor",
    "torch.scatter Tensor.scatter",
    kind="pointwise",
)
def lower_scatter_src(b: Builder, x: Val, dim: Any, index: Val, src: Val) -> Val:
    """`self`, and values of `src` at few places along a dim, which a tensor of indices names."""
    d, count = _few_places(b, x, dim, index)
    if b.records or src.dtype is not x.dtype or src.ndim != x.ndim:
        raise Unsupported("a scatter of a tensor with a gradient, or of another dtype")
    for mine, given in zip(index.shape, src.shape, strict=True):
        b.require_equal(mine, given, "a scatter of a part of a tensor")
    return with_values_at(b, x, d, index, count, lambda _, at: b.load(src, at))


def _few_places(b: Builder, x: Val, dim: Any, index: Val) -> tuple[int, int]:
    """Return the dim of a scatter and the number of places in each row. Raises Unsupported."""
    d = dim_of(b, dim, x.ndim)
    if index.ndim != x.ndim or not x.ndim or index.dtype is not dtypes.i64:
        raise Unsupported("a scatter by an index of other dims, or dtype")
    for k, (mine, given) in enumerate(zip(x.shape, index.shape, strict=True)):
        if k != d:
            b.require_equal(mine, given, "a scatter into a part of the rows")
    count = as_index(index.shape[d]).const
    if count is None or count > _MOST_PLACES:
        raise Unsupported(f"a scatter to more than {_MOST_PLACES} places of a row")
    check_index(b, index, x.shape[d], wraps=False)
    return d, count


def with_value_at(b: Builder, x: Val, d: int, index: Val, value: Number) -> Val:
    """Return the tensor with a number at one place along dim d, which a vector names for each
    row."""
    check_converts(b, x.dtype, value)
    check_index(b, index, x.shape[d], wraps=True)
    number = filled(b, x.shape, x.dtype, value)
    return with_values_at(b, x, d, index, 1, lambda idx, _: b.load(number, idx), wraps=True)


def with_values_at(
    b: Builder,
    x: Val,
    d: int,
    index: Val,
    count: int,
    value: Callable[[tuple[Index, ...], list[Index]], Expr],
    *,
    wraps: bool = False,
) -> Val:
    """Return the tensor with values at the `count` places along dim d that the rows of `index`
    name. `value`: takes the place in x and that in the index."""

    def body(idx: tuple[Index, ...]) -> Expr:
        found = b.load(x, idx)
        for k in range(count):
            at = [as_index(k) if n == d else i for n, i in enumerate(idx)]
            place = b.at(gathered(b, index, at[: index.ndim], x.shape[d], wraps=wraps))
            found = b.select(b.apply("eq", place, b.at(idx[d])), value(idx, at), found)
        return found

    return b.tensor(x.shape, x.dtype, body)
