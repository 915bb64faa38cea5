"""Extremes and truth: max, min, argmax, any, all.

    max(x: [N, M], 1)   →   values[i] = max(j: x[i, j]) · indices[i] = argmax(j: x[i, j])

NaN wins, and of equal elements the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowtide.ir import dtypes
from lowtide.ops.operands import compute, dim_of, dims_of, is_list, numel, unravel
from lowtide.ops.reductions import DIMS, merge_index, reduce_over, reduced_shape
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index

# ---- truth ------------------------------------------------------------------------------------


def _truth(fn: str) -> Lower:
    def lower(b: Builder, x: Val, dim: Any, keepdim: Any) -> Val:
        if x.dtype is dtypes.u8:
            raise Unsupported(f"{fn} of u8, which stays u8 in PyTorch")
        if is_list(dim) and not dim:
            raise Unsupported(f"{fn} over an empty list of dims")
        return reduce_over(
            b, x, dims_of(b, dim, x.ndim), bool(keepdim), fn,
            within=dtypes.boolean, result=dtypes.boolean,
        )  # fmt: skip

    return lower


for _name in ("any", "all"):
    add_op(
        _name,
        f"(self: Tensor, {DIMS}) -> Tensor",
        f"torch.{_name} Tensor.{_name}",
        kind="reduction",
        lower=_truth(_name),
    )


# ---- extremes ---------------------------------------------------------------------------------


def require_elements(b: Builder, x: Val, dims: Sequence[int]) -> None:
    """Raise the error of an extreme of nothing."""
    for d in dims:
        if not b.at_least(x.shape[d], 1):
            raise b.error("an extreme over an empty dimension")


def extreme(b: Builder, x: Val, dims: Sequence[int], keepdim: bool, fn: str) -> Val:
    """Return the largest or smallest over dims; NaN wins."""
    require_elements(b, x, dims)
    if x.dtype is dtypes.boolean:
        fn = "any" if fn == "max" else "all"
        return reduce_over(b, x, dims, keepdim, fn, within=x.dtype, result=x.dtype)
    return reduce_over(b, x, dims, keepdim, fn, within=compute(x.dtype), result=x.dtype)


def arg_extreme(b: Builder, x: Val, dim: Any, keepdim: bool, fn: str) -> Val:
    """Return the index of the first extreme along one dim, or in the flattened tensor."""
    within = compute(x.dtype)
    if dim is None:
        total = numel(x)
        require_elements(b, x, range(x.ndim))

        def flat(_: tuple[Index, ...]) -> Expr:
            return b.reduce(
                fn, [total], lambda k: b.cast(b.load(x, unravel(k[0], x.shape)), within)
            )

        return b.tensor((1,) * x.ndim if keepdim else (), dtypes.i64, flat)
    d = dim_of(b, dim, x.ndim)
    if x.ndim == 0:
        return b.tensor((), dtypes.i64, lambda _: b.const(0, dtypes.i64))
    require_elements(b, x, [d])

    def body(outer: tuple[Index, ...]) -> Expr:
        def inner(axes: tuple[Index, ...]) -> Expr:
            return b.cast(b.load(x, merge_index(x.ndim, [d], keepdim, outer, axes)), within)

        return b.reduce(fn, [x.shape[d]], inner)

    return b.tensor(reduced_shape(x.shape, [d], keepdim), dtypes.i64, body)


def _whole(fn: str) -> Lower:
    def lower(b: Builder, x: Val) -> Val:
        return extreme(b, x, range(x.ndim), False, fn)

    return lower


def _amax(fn: str) -> Lower:
    def lower(b: Builder, x: Val, dim: Any, keepdim: Any) -> Val:
        return extreme(b, x, dims_of(b, dim, x.ndim), bool(keepdim), fn)

    return lower


def _with_index(fn: str) -> Lower:
    def lower(b: Builder, x: Val, dim: Any, keepdim: Any) -> tuple[Val, Val]:
        dims = dims_of(b, dim_of(b, dim, x.ndim), x.ndim)
        values = extreme(b, x, dims, bool(keepdim), fn)
        return values, arg_extreme(b, x, dim, bool(keepdim), "arg" + fn)

    return lower


def _arg(fn: str) -> Lower:
    def lower(b: Builder, x: Val, dim: Any, keepdim: Any) -> Val:
        if x.dtype is dtypes.boolean:
            raise Unsupported(f"{fn} of bools")
        return arg_extreme(b, x, dim, bool(keepdim), fn)

    return lower


for _name in ("max", "min"):
    _pair = "(Tensor values, Tensor indices)"
    _both = f"torch.{_name} Tensor.{_name}"
    add_op(_name, "(self: Tensor) -> Tensor", _both, kind="reduction", lower=_whole(_name))
    add_op(
        f"{_name}.dim",
        f"(self: Tensor, dim: int, keepdim: bool = False) -> {_pair}",
        _both,
        kind="reduction",
        lower=_with_index(_name),
    )
    add_op(
        f"a{_name}",
        "(self: Tensor, dim: int[] = (), keepdim: bool = False) -> Tensor",
        f"torch.a{_name} Tensor.a{_name}",
        kind="reduction",
        lower=_amax(_name),
    )
    add_op(
        f"arg{_name}",
        "(self: Tensor, dim: int? = None, keepdim: bool = False) -> Tensor",
        f"torch.arg{_name} Tensor.arg{_name}",
        kind="reduction",
        lower=_arg(f"arg{_name}"),
    )


@op(
    "aminmax",
    "(self: Tensor, *, dim: int? = None, keepdim: bool = False) -> (Tensor min, Tensor max)",
    "torch.aminmax Tensor.aminmax",
    kind="reduction",
)
def lower_aminmax(b: Builder, x: Val, dim: Any, keepdim: Any) -> tuple[Val, Val]:
    """The smallest and the largest."""
    dims = dims_of(b, dim, x.ndim)
    return extreme(b, x, dims, bool(keepdim), "min"), extreme(b, x, dims, bool(keepdim), "max")
