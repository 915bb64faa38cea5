"""Pooling: the extreme or the mean of a window, where there is no library.

    max_pool1d(x, 3, 2, 1)   →   t[n, c, i] = max[p](padded[n, c, 2*i + p])     padded with -inf
    avg_pool1d(x, 3, 2, 1)   →   t[n, c, i] = sum[p](padded[n, c, 2*i + p]) / 3       with zeros

NaN wins, as in PyTorch. With `ceil_mode` the last window may reach beyond the border, and a mean
divides by what lies within.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.ops.joins import lower_pad
from lowtide.ops.library import (
    LIBRARY,
    SMALL,
    constants,
    require_kernels,
    require_plain,
    require_wide_floats,
)
from lowtide.ops.operands import INF, Size, Term, is_list
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import floordiv

_WRITTEN = 25  # elements of a window that are written out: vectors then lie along the windows
_WHAT = "pooling with windows, strides or borders"


@dataclass(frozen=True, slots=True)
class _Window:
    """The windows along one dim: `count` of them, the first `border` before the first element."""

    size: Size
    width: int
    stride: int
    border: int
    dilation: int
    count: Size

    @property
    def beyond(self) -> int:
        """The most elements by which a window reaches beyond the last element."""
        if isinstance(self.count, Index) or isinstance(self.size, Index):
            return self.border  # such counts are rounded down
        last = (self.count - 1) * self.stride - self.border
        return max(last + self.dilation * (self.width - 1) + 1 - self.size, self.border)


def _windows(
    b: Builder,
    x: Val,
    dims: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: Any,
) -> list[_Window]:
    require_plain(b)
    require_wide_floats(x)
    if x.ndim not in (dims + 1, dims + 2):
        raise b.error("pooling of other dimensions")
    if stride is None or (is_list(stride) and not stride):
        stride = kernel
    numbers = [
        constants(b, given, dims, least, _WHAT)
        for given, least in ((kernel, 1), (stride, 1), (padding, 0), (dilation, 1))
    ]
    found: list[_Window] = []
    for size, k, s, p, d in zip(x.shape[-dims:], *numbers, strict=True):
        reach = d * (k - 1) + 1
        if 2 * p > k:
            raise b.error("pooling with a border of more than half a window")
        if not all(b.at_least(n, 1) for n in x.shape[:-dims]):
            raise Unsupported("pooling of nothing")
        slack = as_index(size) + (2 * p - reach)
        if ceil_mode is True:
            n = b.static_int(size)
            count = -(-(n + 2 * p - reach) // s) + 1
            count -= (count - 1) * s >= n + p
            found.append(_Window(n, k, s, p, d, count))
        else:
            rest = floordiv(slack, s) + 1
            found.append(_Window(size, k, s, p, d, rest if rest.const is None else rest.const))
        if not b.at_least(slack if ceil_mode is not True else found[-1].count - 1, 0):
            raise b.error("pooling with a window that does not fit")
    return found


def _pooled(
    b: Builder,
    x: Val,
    windows: Sequence[_Window],
    fn: str,
    border: float,
    finish: Callable[[Term, Sequence[Index]], Term],
) -> Val:
    """finish(the reduction of each window)."""
    dims = len(windows)
    pairs = [n for w in reversed(windows) for n in (w.border, w.beyond)]
    if any(pairs):
        x = lower_pad(b, x, pairs, "constant", border)

    def body(idx: tuple[Index, ...]) -> Expr:
        at = idx[-dims:]

        def inner(axes: tuple[Index, ...]) -> Expr:
            rows = zip(at, axes, windows, strict=True)
            return b.load(x, [*idx[:-dims], *(i * w.stride + k * w.dilation for i, k, w in rows)])

        if math.prod(w.width for w in windows) > _WRITTEN:
            return finish(Term(b, b.reduce(fn, [w.width for w in windows], inner)), at).expr
        within = itertools.product(*(map(as_index, range(w.width)) for w in windows))
        join = "maximum" if fn == "max" else "add"
        return finish(
            Term(b, functools.reduce(functools.partial(b.apply, join), map(inner, within))), at
        ).expr

    return b.tensor([*x.shape[:-dims], *(w.count for w in windows)], x.dtype, body)


def _max(dims: int) -> Callable[..., Val]:
    def lower(
        b: Builder,
        x: Val,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        ceil_mode: Any,
        return_indices: Any,
    ) -> Val:
        """Return the largest of each window; NaN wins."""
        if return_indices is not False:
            raise Unsupported("the places of what is pooled")
        windows = _windows(b, x, dims, kernel, stride, padding, dilation, ceil_mode)
        return _pooled(b, x, windows, "max", -INF, lambda v, _: v)

    return lower


def _average(dims: int) -> Callable[..., Val]:
    def lower(
        b: Builder,
        x: Val,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: Any,
        count_include_pad: Any,
        divisor: Any = None,
    ) -> Val:
        """Return the mean of each window."""
        windows = _windows(b, x, dims, kernel, stride, padding, 1, ceil_mode)
        if dims == 3 and not all(b.at_least(w.size, w.width) for w in windows):
            raise b.error("avg_pool3d of less than a window")
        if divisor is not None:
            many = b.static_int(divisor)
            if many == 0:
                raise b.error("a divisor of zero")
            return _pooled(b, x, windows, "sum", 0.0, lambda v, _: v / float(many))
        padded = count_include_pad is True
        return _pooled(
            b, x, windows, "sum", 0.0, lambda v, at: v / _count(b, v, windows, at, padded)
        )

    return lower


def _count(
    b: Builder, like: Term, windows: Sequence[_Window], at: Sequence[Index], padded: bool
) -> Term:
    """Return the number of elements of each window that count."""
    counts: list[Index] = []
    for i, w in zip(at, windows, strict=True):
        start = i * w.stride - w.border
        if padded and w.beyond <= w.border:
            counts.append(as_index(w.width))
            continue
        end = start + w.width
        if padded:
            counts.append(b.clamp(end, as_index(w.size) + (w.border + 1)) - start)
        else:
            counts.append(b.clamp(end, as_index(w.size) + 1) - b.clamp(start, w.size))
    many = product(counts)
    if many.const is not None:
        return like.like(float(many.const))
    return Term(b, b.cast(b.at(many), like.dtype))


for _dims in (1, 2, 3):
    op(
        f"max_pool{_dims}d",
        "(input: Tensor, kernel_size: any, stride: any = None, padding: any = 0,"
        " dilation: any = 1, ceil_mode: bool = False, return_indices: any = False) -> Tensor",
        f"F.max_pool{_dims}d torch.max_pool{_dims}d",
        kind=SMALL,
    )(_max(_dims))
    _divisor = "" if _dims == 1 else ", divisor_override: any = None"
    op(
        f"avg_pool{_dims}d",
        "(input: Tensor, kernel_size: any, stride: any = None, padding: any = 0,"
        f" ceil_mode: bool = False, count_include_pad: bool = True{_divisor}) -> Tensor",
        "F.avg_pool1d torch.avg_pool1d" if _dims == 1 else f"F.avg_pool{_dims}d",
        kind=SMALL,
    )(_average(_dims))


# ---- to a number of windows -------------------------------------------------------------------


def _adaptive(dims: int, fn: str) -> Callable[..., Val]:
    def lower(b: Builder, x: Val, output_size: Any, return_indices: Any = False) -> Val:
        """A given number of windows, which may overlap if the number does not divide the size."""
        require_kernels(b)
        require_wide_floats(x)
        if return_indices is not False:
            raise Unsupported("the places of what is pooled")
        if x.ndim not in (dims + 1, dims + 2):
            raise b.error("pooling of other dimensions")
        given = list(output_size) if is_list(output_size) else [output_size] * dims
        if len(given) != dims:
            raise b.error("pooling to other dimensions")
        if not all(b.at_least(n, 1) for n in x.shape):
            raise Unsupported("pooling of nothing")
        sizes = x.shape[-dims:]
        counts = [
            size if n is None else b.static_int(n) for n, size in zip(given, sizes, strict=True)
        ]
        if any(isinstance(n, int) and n < 1 for n in counts):
            raise Unsupported("pooling to nothing")
        return _adapted(b, x, counts, fn)

    return lower


def _adapted(b: Builder, x: Val, counts: Sequence[Size], fn: str) -> Val:
    dims = len(counts)
    sizes = list(x.shape[-dims:])
    widths: list[Size] = []
    for d, n in enumerate(counts):
        if n == 1:
            widths.append(sizes[d])
        elif n is sizes[d]:
            widths.append(1)
        else:
            sizes[d] = size = b.static_int(sizes[d])
            n = b.static_int(n)
            widths.append(max(_end(k, size, n) - k * size // n for k in range(n)))
    exact = [n == 1 or n is s or w * n == s for n, s, w in zip(counts, sizes, widths, strict=True)]

    def body(idx: tuple[Index, ...]) -> Expr:
        at = idx[-dims:]
        starts = [floordiv(i * s, n) for i, s, n in zip(at, sizes, counts, strict=True)]
        many = [
            as_index(w) if is_exact else floordiv((i + 1) * s + (as_index(n) - 1), n) - start
            for i, s, n, w, start, is_exact in zip(
                at, sizes, counts, widths, starts, exact, strict=True
            )
        ]

        def inner(axes: tuple[Index, ...]) -> Expr:
            places: list[Index] = []
            within: Expr | None = None
            for d, (k, start) in enumerate(zip(axes, starts, strict=True)):
                places.append(start + k if exact[d] else b.clamp(start + k, sizes[d]))
                if not exact[d]:
                    test = b.apply("lt", b.at(k), b.at(many[d]))
                    within = test if within is None else b.apply("and", within, test)
            value = b.load(x, [*idx[:-dims], *places])
            if within is None:
                return value
            return b.select(within, value, b.const(0.0 if fn == "sum" else -INF, x.dtype))

        total = b.reduce(fn, widths, inner)
        if fn == "max":
            return total
        return b.apply("div", total, b.cast(b.at(product(many)), x.dtype))

    return b.tensor([*x.shape[:-dims], *counts], x.dtype, body)


def _end(k: int, size: int, n: int) -> int:
    return -(-(k + 1) * size // n)


for _dims in (1, 2, 3):
    op(
        f"adaptive_avg_pool{_dims}d",
        "(input: Tensor, output_size: any) -> Tensor",
        "F.adaptive_avg_pool1d torch.adaptive_avg_pool1d"
        if _dims == 1
        else f"F.adaptive_avg_pool{_dims}d",
        kind=LIBRARY,
    )(_adaptive(_dims, "sum"))
    op(
        f"adaptive_max_pool{_dims}d",
        "(input: Tensor, output_size: any, return_indices: any = False) -> Tensor",
        f"F.adaptive_max_pool{_dims}d",
        kind=LIBRARY,
    )(_adaptive(_dims, "max"))
