"""Sliding windows over images: the columns that a convolution multiplies, as a change of index.

F.unfold(x, 3)   →   t[n, 9*c + 3*p + q, W'*i + j] = x[n, c, i + p, j + q]          x: [N, C, H, W]
"""

from __future__ import annotations

from typing import Any

from lowtide.ir.effects import Effects
from lowtide.ops.joins import lower_pad
from lowtide.ops.operands import Size, is_list, unravel
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv


def _pair(b: Builder, value: Any, least: int) -> tuple[int, int]:
    """Two constants, of a number or of two; raises Unsupported for what PyTorch refuses."""
    given = list(value) if is_list(value) else [value]
    numbers = [b.static_int(v) for v in given]
    if len(numbers) not in (1, 2) or min(numbers) < least:
        raise Unsupported("unfold of other than two dims, or by negative numbers")
    return numbers[0], numbers[-1]


@op(
    "unfold",
    "(input: Tensor, kernel_size: any, dilation: any = 1, padding: any = 0, stride: any = 1)"
    " -> Tensor",
    "F.unfold",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_unfold_windows(
    b: Builder, x: Val, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Val:
    """Every window of the last two dims as a column."""
    kernel, dilate = _pair(b, kernel_size, 1), _pair(b, dilation, 1)
    border, step = _pair(b, padding, 0), _pair(b, stride, 1)
    if x.ndim not in (3, 4):
        raise b.error("unfold of other than an image")
    if any(border):
        x = lower_pad(b, x, [border[1], border[1], border[0], border[0]], "constant", 0)
    *batch, channels, height, width = x.shape
    counts: list[Size] = []
    for size, k, d, s in zip((height, width), kernel, dilate, step, strict=True):
        slack = as_index(size) - d * (k - 1) - 1
        if not b.at_least(slack, 0):
            raise b.error("unfold: the window does not fit")
        count = floordiv(slack, s) + 1
        counts.append(count if count.const is None else count.const)
    rows = as_index(channels) * (kernel[0] * kernel[1])
    columns = as_index(counts[0]) * counts[1]

    def index(idx: tuple[Index, ...]) -> list[Index]:
        c, p, q = unravel(idx[-2], [channels, *kernel])
        i, j = unravel(idx[-1], counts)
        return [*idx[:-2], c, i * step[0] + p * dilate[0], j * step[1] + q * dilate[1]]

    return view(b, x, [*batch, rows, columns], index)
