"""Covariances and correlations of the rows of a matrix.

cov(x: [N, D])        →   m[i]    = sum(k < D: x[i, k]) / D
                          c[i, j] = sum(k < D: (x[i, k] - m[i]) * (x[j, k] - m[j])) / (D - 1)
corrcoef(x: [N, D])   →   s[i]    = sqrt(c[i, i]),   t[i, j] = clamp(c[i, j] / s[i] / s[j], -1, 1)
"""

from __future__ import annotations

from typing import Any

from lowtide.ops.contractions import contract
from lowtide.ops.operands import Term, pointwise, require_float
from lowtide.ops.reductions import mean_over, reduce_over
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index


def _centred(b: Builder, x: Val) -> Val:
    """Return the rows of a matrix, or a vector as one row, less their means. Raises Unsupported."""
    require_float(x)
    if x.ndim not in (1, 2) or x.dtype.name not in ("f32", "f64"):
        raise Unsupported(f"the covariance of {x.dtype} of {x.ndim} dims")
    if x.ndim == 1:
        x = view(b, x, [1, x.shape[0]], lambda idx: idx[1:])
    mean = mean_over(b, x, [1], True, x.dtype)
    return pointwise(b, [x, mean], x.dtype, lambda v, m: v - m)


def _free(b: Builder, x: Val, correction: Any) -> Index:
    """Return by what a sum of products is divided. Raises Unsupported."""
    less = 1 if correction is None else b.static_int(correction)
    if not b.at_least(x.shape[1], max(less + 1, 1)):
        raise Unsupported("the covariance of too few observations")
    return as_index(x.shape[1]) - less


def _covariance(b: Builder, x: Val, free: Index) -> Val:
    """Return the products of all rows with each other, over `free`."""
    return contract(
        b, x, x, [x.shape[0], x.shape[0]], [x.shape[1]],
        lambda idx, k: [idx[0], k[0]], lambda idx, k: [idx[1], k[0]],
        lambda total, _: total / Term(b, b.cast(b.at(free), total.dtype)),
    )  # fmt: skip


def _squeezed(b: Builder, c: Val) -> Val:
    """Return a matrix; its element if it has only one."""
    if not b.is_one(c.shape[0]):
        return c
    return view(b, c, [], lambda _: [as_index(0), as_index(0)])


@op(
    "cov",
    "(self: Tensor, *, correction: int = 1, fweights: Tensor? = None, aweights: Tensor? = None) "
    "-> Tensor",
    "torch.cov Tensor.cov",
    kind="contraction",
)
def lower_cov(b: Builder, x: Val, correction: Any, fweights: Any, aweights: Any) -> Val:
    """The covariance of each two rows."""
    if fweights is not None or aweights is not None:
        raise Unsupported("a covariance with weights")
    x = _centred(b, x)
    return _squeezed(b, _covariance(b, x, _free(b, x, correction)))


@op(
    "corrcoef",
    "(self: Tensor) -> Tensor",
    "torch.corrcoef Tensor.corrcoef",
    kind="contraction",
)
def lower_corrcoef(b: Builder, x: Val) -> Val:
    """The correlation of each two rows: NaN for a row whose elements are equal."""
    x = _centred(b, x)
    free = _free(b, x, None)
    if b.is_one(x.shape[0]):
        c = _squeezed(b, _covariance(b, x, free))
        return pointwise(b, [c], x.dtype, lambda v: v / v)
    spread = reduce_over(
        b, x, [1], False, "sum", within=x.dtype, result=x.dtype,
        term=lambda v, _full, _kept: v * v,
        finish=lambda total: (total / Term(b, b.cast(b.at(free), total.dtype))).fn("sqrt"),
    )  # fmt: skip
    c = _covariance(b, x, free)

    def body(idx: tuple[Index, ...]) -> Expr:
        rows = [Term(b, b.load(spread, [i])) for i in idx]
        found = Term(b, b.load(c, idx)) / rows[0] / rows[1]
        return found.fn("maximum", -1.0).fn("minimum", 1.0).expr

    return b.tensor(c.shape, x.dtype, body)
