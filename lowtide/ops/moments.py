"""Lowers variance, as the mean of squared deviations from the mean, and logsumexp.

In: a tensor, dims. Out: definitions that the Builder adds.

    var(x: [N, M], 1)         →   m[i] = sum(j: x[i, j]) / M
                                  t[i] = sum(j: (x[i, j] - m[i]) ** 2) / (M - 1)
    logsumexp(x: [N, M], 1)   →   m[i] = max(j: x[i, j])
                                  t[i] = log(sum(j: exp(x[i, j] - m[i]))) + m[i]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir.dtypes import DType
from lowtide.ops.extremes import require_elements
from lowtide.ops.operands import (
    INF,
    Term,
    cast_to,
    compute,
    constant_float,
    dims_of,
    require_float,
    to_float,
    wide_on,
)
from lowtide.ops.reductions import count, divide_by_count, merge_index, reduce_over, reduced_shape
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index

# ---- variance ---------------------------------------------------------------------------------


def variance(
    b: Builder, x: Val, dims: Sequence[int], keepdim: bool, correction: float, root: bool
) -> tuple[Val, Val]:
    """Return the variance (its square root if `root`) and the mean over dims, in the dtype of x.

    On the CPU, f32 is computed in f64, as in PyTorch: the square of 1e30 is finite, and deviations
    from a mean of 1e5 keep their digits. Raises Unsupported."""
    require_float(x)
    within = wide_on(b, x.dtype)
    n = count(x, dims)
    if correction > 1 and not b.at_least(n, math.ceil(correction)):
        raise Unsupported(f"the variance of fewer than {correction} elements")

    def mean_in(kept: bool, dtype: DType) -> Val:
        finish = divide_by_count(b, x, dims)
        return reduce_over(b, x, dims, kept, "sum", within=within, result=dtype, finish=finish)

    mean = mean_in(True, within)

    def finish(total: Term) -> Term:
        size = Term(b, b.cast(b.at(n), within))
        free = (size - correction).fn("maximum", 0.0) if correction else size
        return (total / free).fn("sqrt") if root else total / free

    def squared(v: Term, _full: list[Index], kept: list[Index]) -> Term:
        apart = v - Term(b, b.load(mean, kept))
        return apart * apart

    spread = reduce_over(
        b, x, dims, keepdim, "sum", within=within, result=x.dtype, term=squared, finish=finish
    )
    return spread, mean_in(keepdim, x.dtype)


# name → (root, with_mean)
_NAMES: Final = {
    "var": (False, False),
    "std": (True, False),
    "var_mean": (False, True),
    "std_mean": (True, True),
}


def _correction(unbiased: Any, correction: Any) -> float:
    if unbiased is not None:
        return 1.0 if unbiased else 0.0
    return 1.0 if correction is None else constant_float(correction)


def _var(root: bool, with_mean: bool, whole: bool) -> Lower:
    def run(b: Builder, x: Val, dim: Any, keepdim: Any, correction: float) -> Any:
        dims = dims_of(b, dim, x.ndim)
        spread, mean = variance(b, x, dims, bool(keepdim), correction, root)
        return (spread, mean) if with_mean else spread

    def lower(b: Builder, x: Val, dim: Any, unbiased: Any, keepdim: Any, correction: Any) -> Any:
        return run(b, x, dim, keepdim, _correction(unbiased, correction))

    def lower_whole(b: Builder, x: Val, unbiased: Any) -> Any:
        return run(b, x, None, False, _correction(unbiased, None))

    return lower_whole if whole else lower


def _eager_var(name: str) -> Callable[..., Any]:
    def call(x: Any, dim: Any, unbiased: Any, keepdim: Any, correction: Any) -> Any:
        c = _correction(unbiased, correction)
        return getattr(torch, name)(x, dim, correction=c, keepdim=keepdim)

    return call


for _name, (_root, _with_mean) in _NAMES.items():
    _one = "Tensor" if not _with_mean else f"(Tensor {_name[:3]}, Tensor mean)"
    _sources = f"torch.{_name}" if _with_mean else f"torch.{_name} Tensor.{_name}"
    add_op(
        f"{_name}.unbiased",
        f"(self: Tensor, unbiased: bool) -> {_one}",
        _sources,
        kind="reduction",
        lower=_var(_root, _with_mean, True),
    )
    add_op(
        _name,
        "(self: Tensor, dim: int[]? = None, unbiased: bool? = None, keepdim: bool = False, "
        f"*, correction: Scalar? = None) -> {_one}",
        _sources,
        kind="reduction",
        eager=_eager_var(_name),
        lower=_var(_root, _with_mean, False),
    )


# ---- logsumexp --------------------------------------------------------------------------------


@op(
    "logsumexp",
    "(self: Tensor, dim: int[], keepdim: bool = False) -> Tensor",
    "torch.logsumexp Tensor.logsumexp torch.special.logsumexp",
    kind="reduction",
)
def lower_logsumexp(b: Builder, x: Val, dim: Any, keepdim: Any) -> Val:
    """Lower log(sum(exp(x))). The maximum is subtracted first, so that no exp overflows."""
    x = cast_to(b, x, to_float(x.dtype))
    dims = dims_of(b, dim, x.ndim)
    within = compute(x.dtype)
    top = finite_max(b, x, dims)
    total = reduce_over(
        b, x, dims, True, "sum", within=within, result=within,
        term=lambda v, _full, kept: (v - Term(b, b.load(top, kept))).fn("exp"),
    )  # fmt: skip

    def body(idx: tuple[Index, ...]) -> Expr:
        at = merge_index(x.ndim, dims, bool(keepdim), idx, [as_index(0)] * len(dims))
        return (Term(b, b.load(total, at)).fn("log") + Term(b, b.load(top, at))).cast(x.dtype).expr

    return b.tensor(reduced_shape(x.shape, dims, bool(keepdim)), x.dtype, body)


def finite_max(b: Builder, x: Val, dims: Sequence[int]) -> Val:
    """Return the maximum over dims with keepdim, in the compute dtype; 0 where it is infinite, as
    inf - inf is NaN."""
    require_elements(b, x, dims)
    within = compute(x.dtype)
    return reduce_over(
        b, x, dims, True, "max", within=within, result=within,
        finish=lambda m: m.fn("abs").equals(INF).where(0.0, m),
    )  # fmt: skip
