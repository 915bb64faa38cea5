"""Convolutions of little work, as sums over windows; PyTorch's library does the others.

    conv1d(x, w, b)   →   t[n, o, i] = sum[c, p](x[n, c, s*i + d*p - border] * w[o, c, p]) + b[o]

A call of the library takes longer than so few multiplications, and ends a region. Front ends leave
convolutions as calls of PyTorch; the specialiser, which knows the sizes, binds them to these
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ops.contractions import contract
from lowtide.ops.joins import lower_pad
from lowtide.ops.library import (
    LIBRARY,
    SMALL,
    constants,
    require_kernels,
    require_plain,
    require_wide_floats,
    without_library,
)
from lowtide.ops.operands import Size, Term
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import floordiv, mod

FEW: Final = 1 << 19  # multiplications: 20 to 60 us of a kernel, or of a call of the library
_WHAT: Final = "a convolution with strides, borders or dilations"


def is_few(b: Builder, points: Index) -> bool:
    """Return whether kernels compute so few multiplications as soon as a library would be called,
    or there is no library."""
    return without_library() or b.at_least(FEW - points, 0)


def _lower(dims: int) -> Callable[..., Val]:
    def lower(
        b: Builder,
        x: Val,
        weight: Val,
        bias: Val | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: Any,
    ) -> Val:
        """Return the sum over the channels of a window."""
        require_plain(b)
        require_wide_floats(x, weight, bias)
        if isinstance(padding, str) and padding != "valid":
            raise Unsupported("a convolution with the borders of `same`")
        if x.ndim not in (dims + 1, dims + 2) or weight.ndim != dims + 2:
            raise b.error("a convolution of other dimensions")
        return _convolved(
            b,
            x,
            weight,
            bias,
            constants(b, stride, dims, 1, _WHAT),
            constants(b, 0 if isinstance(padding, str) else padding, dims, 0, _WHAT),
            constants(b, dilation, dims, 1, _WHAT),
            b.static_int(groups),
        )

    return lower


def _convolved(
    b: Builder,
    x: Val,
    weight: Val,
    bias: Val | None,
    stride: list[int],
    border: list[int],
    dilation: list[int],
    groups: int,
) -> Val:
    dims = len(stride)
    outer, within, *kernel = weight.shape
    batch, channels, sizes = x.shape[: -dims - 1], x.shape[-dims - 1], x.shape[-dims:]
    b.require_equal(channels, as_index(within) * groups, "a convolution of other channels")
    if bias is not None:
        if bias.ndim != 1:
            raise b.error("a bias that is not a vector")
        b.require_equal(bias.shape[0], outer, "a bias of other channels")
    counts = [
        _count(b, size, k, s, p, d)
        for size, k, s, p, d in zip(sizes, kernel, stride, border, dilation, strict=True)
    ]
    shape: list[Size] = [*batch, outer, *counts]
    if any(as_index(n).const == 0 for n in shape):
        raise Unsupported("is PyTorch's own, where there is nothing to compute")
    if not is_few(b, product([*shape, within, *kernel])):
        raise Unsupported("is PyTorch's own, of so much work")
    each = 0
    if groups > 1:
        each = b.static_int(outer) // groups
        if each * groups != b.static_int(outer):
            raise b.error("a convolution whose groups do not divide its channels")
    if any(border):
        x = lower_pad(b, x, [p for k in reversed(border) for p in (k, k)], "constant", 0)
    summed = [within, *kernel]
    axes = [j for j, n in enumerate(summed) if as_index(n).const != 1]  # of one place: no axis

    def whole(k: tuple[Index, ...]) -> list[Index]:
        places = dict(zip(axes, k, strict=True))
        return [places.get(j, as_index(0)) for j in range(len(summed))]

    def x_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        c, *window = whole(k)
        if groups > 1:
            c = c + floordiv(idx[len(batch)], each) * within
        at = idx[len(batch) + 1 :]
        moved = [i * s + p * d for i, s, p, d in zip(at, stride, window, dilation, strict=True)]
        return [*idx[: len(batch)], c, *moved]

    def w_at(idx: tuple[Index, ...], k: tuple[Index, ...]) -> list[Index]:
        return [idx[len(batch)], *whole(k)]

    def finish(total: Term, idx: tuple[Index, ...]) -> Term:
        assert bias is not None
        return total + Term(b, b.load(bias, [idx[len(batch)]]))

    extents = [summed[j] for j in axes]
    return contract(b, x, weight, shape, extents, x_at, w_at, None if bias is None else finish)


def _count(b: Builder, size: Size, kernel: Size, stride: int, border: int, dilation: int) -> Size:
    """Return how many windows fit."""
    k = b.static_int(kernel)
    slack = as_index(size) + (2 * border - dilation * (k - 1) - 1)
    if k < 1 or not b.at_least(slack, 0):
        raise b.error("a convolution whose window does not fit")
    count = floordiv(slack, stride) + 1
    return count if count.const is None else count.const


for _dims in (1, 2, 3):
    op(
        f"conv{_dims}d",
        "(input: Tensor, weight: Tensor, bias: Tensor? = None, stride: int[] = 1,"
        " padding: int[]|str = 0, dilation: int[] = 1, groups: int = 1) -> Tensor",
        f"torch.conv{_dims}d",
        kind=SMALL,
    )(_lower(_dims))


# ---- transposed -------------------------------------------------------------------------------


def _transposed(dims: int) -> Callable[..., Val]:
    def lower(
        b: Builder,
        x: Val,
        weight: Val,
        bias: Val | None,
        stride: Any,
        padding: Any,
        output_padding: Any,
        groups: Any,
        dilation: Any,
    ) -> Val:
        """Return the sum of what all windows that reach a place bring there."""
        require_kernels(b)
        require_wide_floats(x, weight, bias)
        if x.ndim not in (dims + 1, dims + 2) or weight.ndim != dims + 2:
            raise b.error("a convolution of other dimensions")
        batch, channels, sizes = x.shape[: -dims - 1], x.shape[-dims - 1], x.shape[-dims:]
        many, each, *kernel = weight.shape
        b.require_equal(channels, many, "a convolution of other channels")
        parts = b.static_int(groups)
        if not all(b.at_least(n, 1) for n in (*x.shape, *weight.shape)) or parts < 1:
            raise Unsupported("a convolution of nothing")
        if not b.divides(parts, channels):
            raise b.error("a convolution whose groups do not divide its channels")
        within = floordiv(as_index(channels), parts)
        outer = as_index(each) * parts
        if bias is not None:
            if bias.ndim != 1:
                raise b.error("a bias that is not a vector")
            b.require_equal(bias.shape[0], outer, "a bias of other channels")
        steps = constants(b, stride, dims, 1, _WHAT)
        borders = constants(b, padding, dims, 0, _WHAT)
        more = constants(b, output_padding, dims, 0, _WHAT)
        holes = constants(b, dilation, dims, 1, _WHAT)
        counts: list[Size] = []
        for n, k, s, p, extra, d in zip(sizes, kernel, steps, borders, more, holes, strict=True):
            if extra >= max(s, d):
                raise b.error("more output padding than a stride")
            count = (as_index(n) - 1) * s + (d * (b.static_int(k) - 1) + 1 + extra - 2 * p)
            if not b.at_least(count, 1):
                raise Unsupported("a convolution that leaves nothing")
            counts.append(count if count.const is None else count.const)
        summed = [within, *kernel]
        axes = [j for j, n in enumerate(summed) if as_index(n).const != 1]

        def body(idx: tuple[Index, ...]) -> Expr:
            o, at = idx[len(batch)], idx[len(batch) + 1 :]

            def term(k: tuple[Index, ...]) -> Expr:
                places = dict(zip(axes, k, strict=True))
                c, *window = [places.get(j, as_index(0)) for j in range(len(summed))]
                own = o
                if parts > 1:
                    c, own = c + floordiv(o, each) * within, mod(o, each)
                read: list[Index] = []
                reached: Expr | None = None
                for i, w, n, s, p, d in zip(at, window, sizes, steps, borders, holes, strict=True):
                    test, place = _reaches(b, i + p - w * d, n, s)
                    read.append(place)
                    reached = test if reached is None else b.apply("and", reached, test)
                value = b.load(x, [*idx[: len(batch)], c, *read])
                product_ = b.apply("mul", value, b.load(weight, [c, own, *window]))
                assert reached is not None
                return b.select(reached, product_, b.const(0, x.dtype))

            total = Term(b, b.reduce("sum", [summed[j] for j in axes], term))
            return (total if bias is None else total + Term(b, b.load(bias, [o]))).expr

        return b.tensor([*batch, outer, *counts], x.dtype, body)

    return lower


def _reaches(b: Builder, place: Index, size: Size, stride: int) -> tuple[Expr, Index]:
    """Return the condition that an input lies at the place, and its index. Inputs are `stride`
    apart."""
    i64 = dtypes.i64
    row = floordiv(place, stride)
    test = b.apply("ge", b.at(row), b.const(0, i64))
    test = b.apply("and", test, b.apply("lt", b.at(row), b.at(size)))
    if stride > 1:
        exact = b.apply("eq", b.at(mod(place, stride)), b.const(0, i64))
        test = b.apply("and", test, exact)
    return test, b.clamp(row, size)


for _dims in (1, 2, 3):
    op(
        f"conv_transpose{_dims}d",
        "(input: Tensor, weight: Tensor, bias: Tensor? = None, stride: int[] = 1,"
        " padding: int[] = 0, output_padding: int[] = 0, groups: int = 1,"
        " dilation: int[] = 1) -> Tensor",
        f"torch.conv_transpose{_dims}d",
        kind=LIBRARY,
    )(_transposed(_dims))
