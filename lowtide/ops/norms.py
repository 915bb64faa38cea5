"""Vector norms and distances.

cdist(x: [N, D], y: [M, D])   →   t[i, j] = sqrt(sum(k < D: (x[i, k] - y[j, k]) ** 2))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ops.extremes import require_elements
from lowtide.ops.operands import (
    INF,
    Size,
    Term,
    broadcast,
    broadcast_index,
    cast_to,
    compute,
    constant_float,
    dim_of,
    dims_of,
    from_torch,
    pointwise,
    promote,
    require_float,
    same_dtype,
)
from lowtide.ops.reductions import reduce_over
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index
from lowtide.torch_private.private_names import WEIGHT_NORM

# order → (reduction, of the absolute value, of the total); other orders are powers.
_ORDERS: Final[dict[float, tuple[str, Callable[[Term], Term], Callable[[Term], Term]]]] = {
    0.0: ("sum", lambda a: a.fn("ne", 0.0).cast(a.dtype), lambda s: s),
    1.0: ("sum", lambda a: a, lambda s: s),
    2.0: ("sum", lambda a: a * a, lambda s: s.fn("sqrt")),
    INF: ("max", lambda a: a, lambda s: s),
    -INF: ("min", lambda a: a, lambda s: s),
}


def order(p: float) -> tuple[str, Callable[[Term], Term], Callable[[Term], Term]]:
    """Return the reduction of a norm of order p, with the functions before and after it."""
    if p in _ORDERS:
        return _ORDERS[p]
    return "sum", lambda a: a.fn("pow", p), lambda s: s.fn("pow", 1.0 / p)


def vector_norm(b: Builder, x: Val, p: float, dims: Sequence[int], keepdim: bool) -> Val:
    """Return the norm of order p over dims."""
    require_float(x)
    fn, inner, finish = order(p)
    if fn != "sum":
        require_elements(b, x, dims)
    elif p < 0:
        raise Unsupported("a norm of negative order")
    return reduce_over(
        b, x, dims, keepdim, fn, within=compute(x.dtype), result=x.dtype,
        term=lambda v, _full, _kept: inner(v.fn("abs")), finish=finish,
    )  # fmt: skip


def _typed(b: Builder, x: Val, dtype: torch.dtype | None) -> Val:
    return x if dtype is None else cast_to(b, x, from_torch(dtype))


@op(
    "linalg.vector_norm",
    "(self: Tensor, ord: Scalar = 2, dim: int[]? = None, keepdim: bool = False, *, "
    "dtype: dtype? = None) -> Tensor",
    "torch.linalg.vector_norm",
    kind="reduction",
)
def lower_vector_norm(
    b: Builder, x: Val, p: Any, dim: Any, keepdim: Any, dtype: torch.dtype | None
) -> Val:
    """The norm of order `ord` over dims, all by default."""
    x = _typed(b, x, dtype)
    return vector_norm(b, x, constant_float(p), dims_of(b, dim, x.ndim), bool(keepdim))


@op(
    "norm",
    "(self: Tensor, p: Scalar|str? = 'fro', dim: int[]? = None, keepdim: bool = False, "
    "dtype: dtype? = None) -> Tensor",
    "torch.norm Tensor.norm",
    kind="reduction",
)
def lower_norm(
    b: Builder, x: Val, p: Any, dim: Any, keepdim: Any, dtype: torch.dtype | None
) -> Val:
    """The vector norm of order p; "fro" is 2."""
    if p == "fro" or p is None:
        p = 2.0
    if isinstance(p, str):
        raise Unsupported(f"norm {p!r}")
    x = _typed(b, x, dtype)
    return vector_norm(b, x, constant_float(p), dims_of(b, dim, x.ndim), bool(keepdim))


@op(
    "linalg.norm",
    "(self: Tensor, ord: Scalar|str? = None, dim: int[]? = None, keepdim: bool = False, *, "
    "dtype: dtype? = None) -> Tensor",
    "torch.linalg.norm",
    kind="reduction",
)
def lower_linalg_norm(
    b: Builder, x: Val, p: Any, dim: Any, keepdim: Any, dtype: torch.dtype | None
) -> Val:
    """A vector norm; of matrix norms only the Frobenius one."""
    x = _typed(b, x, dtype)
    dims = dims_of(b, dim, x.ndim)
    given = None if dim is None else len(dims)
    if isinstance(p, str):
        if p != "fro" or (given or x.ndim) != 2:
            raise Unsupported(f"norm {p!r}")
        p = 2.0
    elif p is not None and (given or x.ndim) != 1:
        raise Unsupported("a matrix norm")
    return vector_norm(b, x, 2.0 if p is None else constant_float(p), dims, bool(keepdim))


@op(
    "normalize",
    "(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor",
    "F.normalize",
    kind="composite",
)
def lower_normalize(b: Builder, x: Val, p: Any, dim: Any, eps: Any) -> Val:
    """x over its norm along dim, held to at least eps."""
    length = vector_norm(b, x, constant_float(p), dims_of(b, dim, x.ndim), True)
    least = constant_float(eps)
    return pointwise(b, [x, length], x.dtype, lambda v, n: v / n.fn("maximum", least))


@op(
    "weight_norm",
    "(v: Tensor, g: Tensor, dim: int = 0) -> Tensor",
    WEIGHT_NORM,
    kind="composite",
    eager=lambda v, g, dim: v * (g / torch.norm_except_dim(v, 2, dim)),  # type: ignore[operator]
)
def lower_weight_norm(b: Builder, v: Val, g: Val, dim: Any) -> Val:
    """v, scaled to norms g over all dims but one. Eager mode computes it by parts: PyTorch's own
    kernel trusts its caller with the size of g."""
    if b.static_int(dim) == -1:
        raise Unsupported("the norm of a whole tensor")
    kept = dim_of(b, dim, v.ndim)
    length = vector_norm(b, v, 2.0, [d for d in range(v.ndim) if d != kept], True)
    return pointwise(b, [v, g, length], v.dtype, lambda x, scale, n: x * (scale / n))


# ---- distances --------------------------------------------------------------------------------


_MODES: Final = (
    None,
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)


@op(
    "cdist",
    "(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str? = None) -> Tensor",
    "torch.cdist",
    kind="contraction",
    eager=lambda x1, x2, p, compute_mode: torch.cdist(
        x1, x2, p, compute_mode or "use_mm_for_euclid_dist_if_necessary"
    ),
)
def lower_cdist(b: Builder, x: Val, y: Val, p: Any, compute_mode: Any) -> Val:
    """Distances between the rows of x and of y, by their differences, never by a matmul."""
    if compute_mode not in _MODES:
        raise b.error(f"compute_mode {compute_mode!r}")
    require_float(x, y)
    dtype = same_dtype(x, y)
    if x.ndim < 2 or y.ndim < 2:
        raise b.error("cdist of vectors")
    b.require_equal(x.shape[-1], y.shape[-1], "cdist: sizes of the rows differ")
    within, power = compute(dtype), constant_float(p)
    if dtype in (dtypes.bf16, dtypes.f16) or power < 0:
        raise Unsupported("cdist of half floats or of negative order")
    fn, inner, finish = order(power)
    if fn != "sum" and not b.at_least(x.shape[-1], 1):
        raise Unsupported("cdist of rows of size 0")
    batch = broadcast(b, x.shape[:-2], y.shape[:-2])

    def body(idx: tuple[Index, ...]) -> Expr:
        def term(k: tuple[Index, ...]) -> Expr:
            left = b.load(x, [*broadcast_index(b, x.shape[:-2], idx[:-2]), idx[-2], k[0]])
            right = b.load(y, [*broadcast_index(b, y.shape[:-2], idx[:-2]), idx[-1], k[0]])
            apart = Term(b, b.cast(left, within)) - Term(b, b.cast(right, within))
            return inner(apart if power == 2 else apart.fn("abs")).expr

        return finish(Term(b, b.reduce(fn, [x.shape[-1]], term))).expr

    return b.tensor([*batch, x.shape[-2], y.shape[-2]], dtype, body)


@op(
    "pdist",
    "(self: Tensor, p: float = 2.0) -> Tensor",
    "torch.pdist F.pdist",
    kind="contraction",
)
def lower_pdist(b: Builder, x: Val, p: Any) -> Val:
    """Distances between each two rows; `specialise/selections` has those that are only reduced."""
    raise Unsupported("the list of all distances")


@op(
    "pairwise_distance",
    "(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor",
    "F.pairwise_distance torch.pairwise_distance",
    kind="composite",
)
def lower_pairwise_distance(b: Builder, x: Val, y: Val, p: Any, eps: Any, keepdim: Any) -> Val:
    """The norm of x - y + eps over the last dim."""
    require_float(x, y)
    small = constant_float(eps)
    apart = pointwise(b, [x, y], promote(x, y), lambda u, v: u - v + small)
    if not apart.ndim:
        raise Unsupported("pairwise_distance of 0-dim tensors")
    return vector_norm(b, apart, constant_float(p), [apart.ndim - 1], bool(keepdim))


@op(
    "cosine_similarity",
    "(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor",
    "F.cosine_similarity torch.cosine_similarity",
    kind="composite",
)
def lower_cosine_similarity(b: Builder, x: Val, y: Val, dim: Any, eps: Any) -> Val:
    """The dot product of x and y, each divided by its norm, which is held to at least eps. (The
    product of the norms may overflow or vanish where these do not.)"""
    require_float(x, y)
    dtype = promote(x, y)
    within, least = compute(dtype), constant_float(eps)
    shape: list[Size] = list(broadcast(b, x.shape, y.shape))
    d = dim_of(b, dim, len(shape))
    if not shape:
        raise Unsupported("cosine_similarity of 0-dim tensors")

    def unit(v: Val) -> Val:
        own = d - len(shape) + v.ndim
        if own < 0 or (v.shape[own] == 1 and shape[d] != 1):
            raise Unsupported("cosine_similarity along a dim that is expanded")
        v = cast_to(b, v, within)
        length = vector_norm(b, v, 2.0, [own], True)
        return pointwise(b, [v, length], within, lambda u, n: u / n.fn("maximum", least))

    units = unit(x), unit(y)

    def body(idx: tuple[Index, ...]) -> Expr:
        def term(k: tuple[Index, ...]) -> Expr:
            at = [*idx[:d], k[0], *idx[d:]]
            u, v = (b.load(z, broadcast_index(b, z.shape, at)) for z in units)
            return b.apply("mul", u, v)

        return b.reduce("sum", [shape[d]], term)

    return b.tensor([*shape[:d], *shape[d + 1 :]], dtype, body)
