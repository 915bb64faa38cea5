"""Contractions: matmul and other sums of products.

    matmul(x: [B, N, K], y: [K, M])   →   t[p, i, j] = sum(k < K: x[p, i, k] * y[k, j])

Products of bf16 and f16 are summed in f32, of ints in i64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.operands import (
    Number,
    Operand,
    Size,
    Term,
    broadcast,
    broadcast_index,
    compute,
    dim_of,
    is_list,
    is_one,
    is_zero,
    number,
    pointwise,
    promote,
    same_dtype,
    size_list,
)
from lowtide.ops.rearrange import lower_roll
from lowtide.ops.registry import op
from lowtide.ops.views import permute, reshape
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, product

At = Callable[[tuple[Index, ...], tuple[Index, ...]], Sequence[Index | int]]


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which products are summed."""
    if dtype is dtypes.boolean:
        raise Unsupported("a contraction of bools")
    return compute(dtype) if dtype.is_float else dtypes.i64


def contract(
    b: Builder,
    x: Val,
    y: Val,
    shape: Sequence[Size],
    extents: Sequence[Size],
    x_at: At,
    y_at: At,
    finish: Callable[[Term, tuple[Index, ...]], Term] | None = None,
) -> Val:
    """t[idx] = finish(sum(k: x[x_at(idx, k)] * y[y_at(idx, k)]))."""
    dtype = same_dtype(x, y)
    within = accumulator(dtype)

    def body(idx: tuple[Index, ...]) -> Expr:
        def term(k: tuple[Index, ...]) -> Expr:
            left = b.cast(b.load(x, x_at(idx, k)), within)
            right = b.cast(b.load(y, y_at(idx, k)), within)
            return b.apply("mul", left, right)

        total = Term(b, b.reduce("sum", extents, term))
        return (total if finish is None else finish(total, idx)).cast(dtype).expr

    return b.tensor(shape, dtype, body)


# ---- matmul -----------------------------------------------------------------------------------


def matmul(
    b: Builder, x: Val, y: Val, finish: Callable[[Term, tuple[Index, ...]], Term] | None = None
) -> Val:
    """Return the matrix product of all ranks, batches broadcast."""
    if not x.ndim or not y.ndim:
        raise b.error("matmul of a 0-dim tensor")
    rows = x.shape[-2:-1]  # () for a vector
    cols = y.shape[-1:] if y.ndim > 1 else ()
    inner = x.shape[-1]
    b.require_equal(inner, y.shape[-2] if y.ndim > 1 else y.shape[0], "matmul: inner sizes differ")
    x_batch, y_batch = x.shape[:-2], y.shape[:-2]
    batch = broadcast(b, x_batch, y_batch)
    nb, nr = len(batch), len(rows)

    def x_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        return [*broadcast_index(b, x_batch, idx[:nb]), *idx[nb : nb + nr], k[0]]

    def y_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        return [*broadcast_index(b, y_batch, idx[:nb]), k[0], *idx[nb + nr :]]

    return contract(b, x, y, [*batch, *rows, *cols], [inner], x_at, y_at, finish)


def _ranked(b: Builder, *wanted: tuple[Val, int]) -> None:
    for x, ndim in wanted:
        if x.ndim != ndim:
            raise b.error(f"{x.ndim} dimensions where {ndim} are wanted")


@op(
    "matmul",
    "(self: Tensor, other: Tensor) -> Tensor",
    "torch.matmul Tensor.matmul operator.matmul torch.linalg.matmul",
    kind="contraction",
)
def lower_matmul(b: Builder, x: Val, y: Val) -> Val:
    """The matrix product, batches broadcast."""
    return matmul(b, x, y)


def _fixed(name: str, sources: str, left: int, right: int) -> None:
    @op(name, "(self: Tensor, mat2: Tensor) -> Tensor", sources, kind="contraction")
    def lower(b: Builder, x: Val, y: Val) -> Val:  # pyright: ignore[reportUnusedFunction]
        """A matrix product of fixed ranks."""
        _ranked(b, (x, left), (y, right))
        if left == 3:
            b.require_equal(x.shape[0], y.shape[0], "bmm: batches differ")
        return matmul(b, x, y)


_fixed("mm", "torch.mm Tensor.mm", 2, 2)
_fixed("bmm", "torch.bmm Tensor.bmm", 3, 3)
_fixed("mv", "torch.mv Tensor.mv", 2, 1)
_fixed("dot", "torch.dot Tensor.dot", 1, 1)
_fixed("vdot", "torch.vdot Tensor.vdot", 1, 1)


@op(
    "outer",
    "(self: Tensor, vec2: Tensor) -> Tensor",
    "torch.outer Tensor.outer torch.ger Tensor.ger",
    kind="contraction",
)
def lower_outer(b: Builder, x: Val, y: Val) -> Val:
    """All products of two vectors."""
    _ranked(b, (x, 1), (y, 1))
    common = promote(x, y)
    if common is dtypes.boolean:
        raise Unsupported("outer of bools")
    column = b.tensor([x.shape[0], 1], x.dtype, lambda idx: b.load(x, idx[:1]))
    return pointwise(b, [column, y], common, lambda u, v: u * v)


@op(
    "inner",
    "(self: Tensor, other: Tensor) -> Tensor",
    "torch.inner Tensor.inner",
    kind="contraction",
)
def lower_inner(b: Builder, x: Val, y: Val) -> Val:
    """Sums over the last dims of both."""
    if not x.ndim or not y.ndim:
        return pointwise(b, [x, y], promote(x, y), lambda u, v: u * v)
    return lower_tensordot(b, x, y, [[x.ndim - 1], [y.ndim - 1]])


@op(
    "linear",
    "(input: Tensor, weight: Tensor, bias: Tensor? = None) -> Tensor",
    "F.linear",
    kind="contraction",
)
def lower_linear(b: Builder, x: Val, weight: Val, bias: Val | None) -> Val:
    """x @ weight.T + bias."""
    if weight.ndim != 2 or not x.ndim:
        raise Unsupported("linear with a weight that is not a matrix")
    same_dtype(x, weight, bias)
    w = permute(b, weight, [1, 0])
    if bias is None:
        return matmul(b, x, w)
    return matmul(b, x, w, _plus(b, bias, [*x.shape[:-1], weight.shape[0]]))


def _plus(
    b: Builder, bias: Val, shape: Sequence[Size], alpha: Number = 1, beta: Number = 1
) -> Callable[[Term, tuple[Index, ...]], Term]:
    """Return the epilogue alpha * product + beta * bias, the bias broadcast to `shape`."""
    if bias.ndim > len(shape):
        raise b.error("a bias with more dimensions than the product")
    for size, want in zip(bias.shape, shape[len(shape) - bias.ndim :], strict=True):
        if not b.equal(size, 1):
            b.require_equal(size, want, f"a bias of size {size} for {want}")

    def finish(total: Term, idx: tuple[Index, ...]) -> Term:
        if not is_one(alpha):
            total = total * Term(b, number(b, alpha, total.dtype))
        if is_zero(beta):
            return total
        add = Term(b, b.load(bias, broadcast_index(b, bias.shape, idx))).cast(total.dtype)
        if not is_one(beta):
            add = add * Term(b, number(b, beta, total.dtype))
        return total + add

    return finish


def _added(name: str, sources: str, left: int, right: int) -> None:
    @op(
        name,
        "(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Scalar = 1, alpha: Scalar = 1) "
        "-> Tensor",
        sources,
        kind="contraction",
    )
    def lower(  # pyright: ignore[reportUnusedFunction]
        b: Builder, bias: Val, x: Val, y: Val, beta: Number, alpha: Number
    ) -> Val:
        """beta * self + alpha * (mat1 @ mat2)."""
        _ranked(b, (x, left), (y, right))
        dtype = same_dtype(bias, x, y)
        if not dtype.is_float and not (is_one(alpha) and is_one(beta)):
            raise Unsupported("alpha and beta with ints")
        if left == 3:
            b.require_equal(x.shape[0], y.shape[0], "baddbmm: batches differ")
        shape = [*x.shape[:-1], *y.shape[left - 1 :]]
        return matmul(b, x, y, _plus(b, bias, shape, alpha, beta))


_added("addmm", "torch.addmm Tensor.addmm", 2, 2)
_added("baddbmm", "torch.baddbmm Tensor.baddbmm", 3, 3)
_added("addmv", "torch.addmv Tensor.addmv", 2, 1)


# ---- general ----------------------------------------------------------------------------------


@op(
    "tensordot",
    "(self: Tensor, other: Tensor, dims: any = 2) -> Tensor",
    "torch.tensordot",
    kind="contraction",
)
def lower_tensordot(b: Builder, x: Val, y: Val, dims: Any) -> Val:
    """Sums over pairs of dims; an int n pairs the last n with the first n."""
    if is_list(dims):
        if len(dims) != 2:
            raise b.error("tensordot: two lists of dims")
        left = [dim_of(b, d, x.ndim) for d in size_list(dims[0])]
        right = [dim_of(b, d, y.ndim) for d in size_list(dims[1])]
    else:
        n = b.static_int(dims)
        if not 0 <= n <= min(x.ndim, y.ndim):
            raise b.error("tensordot: dims")
        left, right = list(range(x.ndim - n, x.ndim)), list(range(n))
    if len(left) != len(right) or len(set(left)) != len(left) or len(set(right)) != len(right):
        raise b.error("tensordot: the dims do not pair up")
    for p, q in zip(left, right, strict=True):
        if b.equal(x.shape[p], 1) != b.equal(y.shape[q], 1):
            raise Unsupported("tensordot that broadcasts a size of 1")
        b.require_equal(x.shape[p], y.shape[q], "tensordot: sizes differ")
    x_rest = [d for d in range(x.ndim) if d not in left]
    y_rest = [d for d in range(y.ndim) if d not in right]

    def x_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        return [k[left.index(d)] if d in left else idx[x_rest.index(d)] for d in range(x.ndim)]

    def y_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        rest = idx[len(x_rest) :]
        return [k[right.index(d)] if d in right else rest[y_rest.index(d)] for d in range(y.ndim)]

    shape = [*(x.shape[d] for d in x_rest), *(y.shape[d] for d in y_rest)]
    return contract(b, x, y, shape, [x.shape[d] for d in left], x_at, y_at)


@op("kron", "(self: Tensor, other: Tensor) -> Tensor", "torch.kron Tensor.kron", kind="contraction")
def lower_kron(b: Builder, x: Val, y: Val) -> Val:
    """The Kronecker product."""
    ndim = max(x.ndim, y.ndim)
    common = promote(x, y)
    if common is dtypes.boolean:
        raise Unsupported("kron of bools")
    u = reshape(b, x, [s for size in (1,) * (ndim - x.ndim) + x.shape for s in (size, 1)])
    v = reshape(b, y, [s for size in (1,) * (ndim - y.ndim) + y.shape for s in (1, size)])
    pairs = pointwise(b, [u, v], common, lambda p, q: p * q)
    shape = [product(pairs.shape[2 * d : 2 * d + 2]) for d in range(ndim)]
    return reshape(b, pairs, shape)


def _cross(b: Builder, x: Operand, y: Operand, dim: int | None) -> Val:
    """x[k + 1] y[k + 2] - x[k + 2] y[k + 1], counted modulo 3 along the dim; None: the first dim
    of size 3."""
    if not isinstance(x, Val) or not isinstance(y, Val) or x.ndim != y.ndim:
        raise Unsupported("a cross product of tensors with different numbers of dims")
    shape = broadcast(b, x.shape, y.shape)
    threes = [d for d, size in enumerate(shape) if size == 3]
    if not threes or (dim is not None and dim not in threes):
        raise Unsupported("a cross product along a dim that is not of size 3")
    d = threes[0] if dim is None else dim
    if any(v.shape[d] != 3 for v in (x, y)):
        raise Unsupported("a cross product along a dim that is expanded")
    (x1, y1), (x2, y2) = ([lower_roll(b, v, -k, d) for v in (x, y)] for k in (1, 2))
    factors = [x1, y2, x2, y1]
    return pointwise(b, factors, promote(x, y), lambda s, t, u, v: s * t - u * v, exact=True)


@op(
    "cross",
    "(self: Tensor, other: Tensor, dim: int? = None) -> Tensor",
    "torch.cross Tensor.cross",
    kind="composite",
)
def lower_cross(b: Builder, x: Operand, y: Operand, dim: Any) -> Val:
    """The cross product of vectors of three elements."""
    return _cross(b, x, y, None if dim is None else dim_of(b, dim, _rank(x)))


@op(
    "linalg.cross",
    "(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor",
    "torch.linalg.cross",
    kind="composite",
)
def lower_linalg_cross(b: Builder, x: Operand, y: Operand, dim: Any) -> Val:
    """The same along the last dim."""
    return _cross(b, x, y, dim_of(b, dim, _rank(x)))


def _rank(x: Operand) -> int:
    return x.ndim if isinstance(x, Val) else 0
