"""Convolutions of little work, as sums over windows; PyTorch's library does the others.

    conv1d(x, w, b)   →   t[n, o, i] = sum[c, p](x[n, c, s*i + d*p - border] * w[o, c, p]) + b[o]

A call of the library takes longer than so few multiplications, and ends a region. Front ends leave
convolutions as calls of PyTorch; the specialiser, which knows the sizes, binds them to these
records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lowtide.ops.contractions import contract
from lowtide.ops.joins import lower_pad
from lowtide.ops.library import SMALL, constants, is_none, require_plain, require_wide_floats
from lowtide.ops.operands import Size, Term
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import floordiv

FEW: Final = 1 << 19  # multiplications: 20 to 60 us of a kernel, or of a call of the library
_WHAT: Final = "a convolution with strides, borders or dilations"


def is_few(b: Builder, points: Index) -> bool:
    """Whether so many multiplications are done as soon as the library is called, or there is no
    library."""
    return is_none() or b.at_least(FEW - points, 0)


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
        """The sum over the channels of a window."""
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
    room = as_index(size) + (2 * border - dilation * (k - 1) - 1)
    if k < 1 or not b.at_least(room, 0):
        raise b.error("a convolution whose window does not fit")
    count = floordiv(room, stride) + 1
    return count if count.const is None else count.const


for _dims in (1, 2, 3):
    op(
        f"conv{_dims}d",
        "(input: Tensor, weight: Tensor, bias: Tensor? = None, stride: int[] = 1,"
        " padding: int[]|str = 0, dilation: int[] = 1, groups: int = 1) -> Tensor",
        f"torch.conv{_dims}d",
        kind=SMALL,
    )(_lower(_dims))
