"""Images of other sizes, where there is no library: interpolation, pixel shuffles.

F.interpolate(x, scale_factor=2.0)   →   t[n, c, i, j] = x[n, c, i // 2, j // 2]
…, mode="linear"                     →   t[n, c, i] = (1 - f) * x[n, c, s] + f * x[n, c, s + 1]
                                         s + f = (i + 1/2) / scale - 1/2, at least 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

import torch

from lowtide.ops.library import LIBRARY, require_kernels, require_wide_floats
from lowtide.ops.operands import Size, Term, constant_float, is_list
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv, mod

_LINEAR: Final = {"linear": 1, "bilinear": 2, "trilinear": 3}
_FINEST: Final = 1 << 12  # of a scale: fractions with larger numbers are PyTorch's


@op(
    "interpolate",
    "(input: Tensor, size: any = None, scale_factor: any = None, mode: str = 'nearest',"
    " align_corners: any = None, recompute_scale_factor: any = None, antialias: any = False)"
    " -> Tensor",
    "F.interpolate",
    kind=LIBRARY,
)
def lower_interpolate(
    b: Builder,
    x: Val,
    size: Any,
    scale_factor: Any,
    mode: Any,
    align_corners: Any,
    recompute: Any,
    antialias: Any,
) -> Val:
    """Nearest or linear interpolation of all dims but the first two."""
    require_kernels(b)
    require_wide_floats(x)
    dims = x.ndim - 2
    if dims not in (1, 2, 3) or antialias is not False:
        raise Unsupported("interpolation of other dims, or with a filter")
    if mode != "nearest" and _LINEAR.get(mode) != dims:
        raise Unsupported(f"interpolation of mode {mode}")
    if mode == "nearest" and align_corners is not None:
        raise b.error("nearest interpolation with corners")
    if (size is None) == (scale_factor is None) or not all(b.at_least(n, 1) for n in x.shape):
        raise Unsupported("interpolation to nothing, or by size and scale")
    sizes = x.shape[-dims:]
    given = scale_factor if size is None else size
    each: list[Any] = list(given) if is_list(given) else [given] * dims
    if len(each) != dims:
        raise b.error("interpolation of other dims")
    if size is None and recompute is True:
        numbers = [constant_float(s) for s in each]
        each = [math.floor(b.static_int(n) * s) for n, s in zip(sizes, numbers, strict=True)]
    by_scale = size is None and recompute is not True
    axes = [
        (_scaled(b, n, constant_float(s)) if by_scale else _sized(b, n, s))
        for n, s in zip(sizes, each, strict=True)
    ]
    if mode == "nearest":
        return _nearest(b, x, axes)
    if align_corners is True:
        axes = [
            (n, m, Fraction(b.static_int(n) - 1, max(b.static_int(m) - 1, 1))) for n, m, _ in axes
        ]
    return _linear(b, x, axes, align_corners is True)


_Axis = tuple[Size, Size, Fraction]  # its size, the new size, elements of the old per new one


def _scaled(b: Builder, size: Size, scale: float) -> _Axis:
    if not scale > 0 or not math.isfinite(scale):
        raise b.error("interpolation by a scale that is not positive")
    step = Fraction(1.0 / scale).limit_denominator(_FINEST)
    if abs(float(step) - 1.0 / scale) > 1e-15 / scale or step.numerator > _FINEST:
        raise Unsupported("interpolation by such a scale")
    if scale.is_integer():
        return size, _plain(as_index(size) * int(scale)), step
    n = b.static_int(size)
    return n, _some(b, math.floor(n * scale)), step


def _sized(b: Builder, size: Size, new: Any) -> _Axis:
    n, m = b.static_int(size), b.static_int(new)
    return n, _some(b, m), Fraction(n, max(m, 1))


def _some(b: Builder, size: int) -> int:
    if size < 1:
        raise b.error("interpolation to nothing")
    return size


def _plain(size: Index) -> Size:
    return size if size.const is None else size.const


def _nearest(b: Builder, x: Val, axes: Sequence[_Axis]) -> Val:
    for size, new, step in axes:
        _check_rounding(b, x, size, new, step)

    def index(idx: tuple[Index, ...]) -> list[Index]:
        rows = zip(idx[-len(axes) :], axes, strict=True)
        places = [floordiv(i * s.numerator, s.denominator) for i, (_, _, s) in rows]
        held = [b.clamp(p, n) for p, (n, _, _) in zip(places, axes, strict=True)]
        return [*idx[: -len(axes)], *held]

    return view(b, x, [*x.shape[: -len(axes)], *(m for _, m, _ in axes)], index)


def _check_rounding(b: Builder, x: Val, size: Size, new: Size, step: Fraction) -> None:
    """Raise Unsupported where PyTorch, which multiplies in floats, reads another place."""
    if step.numerator == 1 and step.denominator & (step.denominator - 1) == 0:
        return  # exact
    n, m = b.static_int(size), b.static_int(new)
    dtype = x.dtype.torch
    scale = torch.tensor(float(step), dtype=torch.float64).to(dtype)
    numbers = torch.arange(m)
    theirs = (numbers.to(dtype) * scale).floor().long().clamp(max=n - 1)
    ours = (numbers * step.numerator // step.denominator).clamp(max=n - 1)
    if not torch.equal(theirs, ours):
        raise Unsupported("interpolation at places that rounding moves")


def _linear(b: Builder, x: Val, axes: Sequence[_Axis], corners: bool) -> Val:
    batch = x.ndim - len(axes)

    def body(idx: tuple[Index, ...]) -> Expr:
        return _mixed(b, x, list(idx[:batch]), list(idx[batch:]), list(axes), corners).expr

    return b.tensor([*x.shape[:batch], *(m for _, m, _ in axes)], x.dtype, body)


def _mixed(
    b: Builder, x: Val, found: list[Index], left: list[Index], axes: list[_Axis], corners: bool
) -> Term:
    """Return the mean of the neighbours on both sides along the first dim that is left, each
    interpolated along the others."""
    if not left:
        return Term(b, b.load(x, found))
    i, (size, new, step) = left[0], axes[0]

    def inner(place: Index) -> Term:
        return _mixed(b, x, [*found, place], left[1:], axes[1:], corners)

    if as_index(size) is as_index(new):
        return inner(i)
    num, den = i * step.numerator, step.denominator
    if not corners:  # (i + 1/2) * step - 1/2, at least 0
        num, den = (2 * i + 1) * step.numerator - step.denominator, 2 * step.denominator
        num = b.clamp(num, as_index(new) * (2 * step.numerator) + 1)
    low = b.clamp(floordiv(num, den), size)
    high = b.clamp(low + 1, size)
    part = Term(b, b.cast(b.at(mod(num, den)), x.dtype)) / float(den)
    return inner(low) * (1.0 - part) + inner(high) * part


# ---- channels and places ----------------------------------------------------------------------


def _shuffle(index: Callable[[Builder, Val, int], tuple[list[Size], Any]]) -> Callable[..., Val]:
    def lower(b: Builder, x: Val, factor: Any) -> Val:
        """Channels become places of an image, or the reverse."""
        require_kernels(b)
        r = b.static_int(factor)
        if x.ndim < 3 or r < 1:
            raise b.error("a shuffle of other than images")
        shape, at = index(b, x, r)
        return view(b, x, shape, at)

    return lower


def _to_places(b: Builder, x: Val, r: int) -> tuple[list[Size], Any]:
    *batch, channels, height, width = x.shape
    if not b.divides(r * r, channels):
        raise b.error("a shuffle of other channels")
    shape = [*batch, _plain(floordiv(as_index(channels), r * r)), height * r, width * r]

    def at(idx: tuple[Index, ...]) -> list[Index]:
        *n, c, i, j = idx
        place = (c * r + mod(i, r)) * r + mod(j, r)
        return [*n, place, floordiv(i, r), floordiv(j, r)]

    return shape, at


def _to_channels(b: Builder, x: Val, r: int) -> tuple[list[Size], Any]:
    *batch, channels, height, width = x.shape
    if not b.divides(r, height) or not b.divides(r, width):
        raise b.error("a shuffle of other sizes")
    rows, columns = (_plain(floordiv(as_index(n), r)) for n in (height, width))

    def at(idx: tuple[Index, ...]) -> list[Index]:
        *n, c, i, j = idx
        return [*n, floordiv(c, r * r), i * r + mod(floordiv(c, r), r), j * r + mod(c, r)]

    return [*batch, channels * (r * r), rows, columns], at


op(
    "pixel_shuffle",
    "(self: Tensor, upscale_factor: int) -> Tensor",
    "torch.pixel_shuffle",
    kind=LIBRARY,
)(_shuffle(_to_places))
op(
    "pixel_unshuffle",
    "(self: Tensor, downscale_factor: int) -> Tensor",
    "torch.pixel_unshuffle",
    kind=LIBRARY,
)(_shuffle(_to_channels))
