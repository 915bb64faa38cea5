"""Repetition, reversal, windows and diagonals: still only changes of index.

roll(x: [N], 2)        →   t[i] = x[(i - 2) % N]
x.unfold(0, 3, 2)      →   t[i, k] = x[2 * i + k]
"""

from __future__ import annotations

from typing import Any

from lowtide.ir.effects import Effects
from lowtide.ops.operands import Size, dim_of, size_list
from lowtide.ops.registry import op
from lowtide.ops.views import reshape, view
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import floordiv, mod

# ---- order and repetition within dims ---------------------------------------------------------


@op(
    "flip",
    "(self: Tensor, *dims: int[]) -> Tensor",
    "torch.flip Tensor.flip",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_flip(b: Builder, x: Val, dims: Any) -> Val:
    """Dims backwards."""
    back = {dim_of(b, d, x.ndim) for d in size_list(dims)}
    if len(back) != len(size_list(dims)):
        raise b.error("a dim is flipped twice")
    return view(
        b,
        x,
        x.shape,
        lambda idx: [as_index(x.shape[d]) - 1 - i if d in back else i for d, i in enumerate(idx)],
    )


@op(
    "fliplr",
    "(self: Tensor) -> Tensor",
    "torch.fliplr Tensor.fliplr",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_fliplr(b: Builder, x: Val) -> Val:
    """Dim 1 backwards."""
    return lower_flip(b, x, [1])


@op(
    "flipud",
    "(self: Tensor) -> Tensor",
    "torch.flipud Tensor.flipud",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_flipud(b: Builder, x: Val) -> Val:
    """Dim 0 backwards."""
    if not x.ndim:
        raise b.error("flipud of no dim")
    return lower_flip(b, x, [0])


@op(
    "roll",
    "(self: Tensor, shifts: int[], dims: int[] = ()) -> Tensor",
    "torch.roll Tensor.roll",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_roll(b: Builder, x: Val, shifts: Any, dims: Any) -> Val:
    """Elements moved on, those that fall off come back at the front."""
    moves, where = size_list(shifts), size_list(dims)
    if not where:
        flat = reshape(b, x, [-1])
        return reshape(b, lower_roll(b, flat, moves, [0]), x.shape)
    if len(moves) != len(where):
        raise b.error("roll: shifts and dims do not pair up")
    total: dict[int, Size] = {}
    for move, dim in zip(moves, where, strict=True):
        d = dim_of(b, dim, x.ndim)
        total[d] = total.get(d, 0) + move

    def index(idx: tuple[Index, ...]) -> list[Index]:
        out = list(idx)
        for d, move in total.items():
            if b.at_least(x.shape[d], 1):
                out[d] = mod(idx[d] - move, x.shape[d])
        return out

    return view(b, x, x.shape, index)


@op(
    "repeat",
    "(self: Tensor, *repeats: int[]) -> Tensor",
    "Tensor.repeat",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_repeat(b: Builder, x: Val, repeats: Any) -> Val:
    """The tensor laid side by side, so many times along each dim."""
    times = size_list(repeats)
    new = len(times) - x.ndim
    if new < 0:
        raise b.error("repeat: fewer counts than dimensions")
    sizes: list[Size] = []
    for k, n in enumerate(times):
        count = b.extent(n, "repeat a negative number of times")
        size = as_index(count) * (x.shape[k - new] if k >= new else 1)
        sizes.append(size if size.const is None else size.const)

    def index(idx: tuple[Index, ...]) -> list[Index | int]:
        return [
            mod(i, s) if b.at_least(s, 1) else i for i, s in zip(idx[new:], x.shape, strict=True)
        ]

    return view(b, x, sizes, index)


@op(
    "tile",
    "(self: Tensor, *dims: int[]) -> Tensor",
    "torch.tile Tensor.tile",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_tile(b: Builder, x: Val, dims: Any) -> Val:
    """As repeat, missing counts being 1."""
    times = size_list(dims)
    return lower_repeat(b, x, [1] * (x.ndim - len(times)) + times)


@op(
    "repeat_interleave",
    "(self: Tensor, repeats: int, dim: int? = None) -> Tensor",
    "torch.repeat_interleave Tensor.repeat_interleave",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_repeat_interleave(b: Builder, x: Val, repeats: Any, dim: Any) -> Val:
    """Each element so many times in a row."""
    if dim is None:
        return lower_repeat_interleave(b, reshape(b, x, [-1]), repeats, 0)
    if x.ndim == 0 or not b.at_least(repeats, 1):
        raise Unsupported("repeat_interleave of a 0-dim tensor or zero times")
    d = dim_of(b, dim, x.ndim)
    size = as_index(x.shape[d]) * repeats
    return view(
        b,
        x,
        [*x.shape[:d], size, *x.shape[d + 1 :]],
        lambda idx: [floordiv(i, repeats) if k == d else i for k, i in enumerate(idx)],
    )


# ---- windows ----------------------------------------------------------------------------------


@op(
    "Tensor.unfold",
    "(self: Tensor, dimension: int, size: int, step: int) -> Tensor",
    "Tensor.unfold",
    kind="view",
)
def lower_unfold(b: Builder, x: Val, dimension: Any, size: Any, step: Any) -> Val:
    """Windows of `size`, every `step`, in a new last dim."""
    d = dim_of(b, dimension, x.ndim)
    if x.ndim == 0 or not b.at_least(step, 1) or not b.at_least(as_index(x.shape[d]) - size, 0):
        raise b.error("unfold: the window does not fit")
    windows = floordiv(as_index(x.shape[d]) - size, step) + 1
    return view(
        b,
        x,
        [*x.shape[:d], windows, *x.shape[d + 1 :], size],
        lambda idx: [i * step + idx[-1] if k == d else i for k, i in enumerate(idx[:-1])],
    )


@op(
    "diagonal",
    "(self: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor",
    "torch.diagonal Tensor.diagonal",
    kind="view",
)
def lower_diagonal(b: Builder, x: Val, offset: Any, dim1: Any, dim2: Any) -> Val:
    """The diagonal of two dims, as a new last dim."""
    p, q, k = dim_of(b, dim1, x.ndim), dim_of(b, dim2, x.ndim), b.static_int(offset)
    if p == q or x.ndim < 2:
        raise b.error("diagonal of one dim")
    rows, cols = as_index(x.shape[p]) - max(-k, 0), as_index(x.shape[q]) - max(k, 0)
    length = rows if b.at_least(cols - rows, 0) else cols
    if not b.at_least(length, 0):
        length = as_index(0)
    rest = [d for d in range(x.ndim) if d not in (p, q)]

    def index(idx: tuple[Index, ...]) -> list[Index]:
        at = {d: idx[n] for n, d in enumerate(rest)}
        at[p], at[q] = idx[-1] + max(-k, 0), idx[-1] + max(k, 0)
        return [at[d] for d in range(x.ndim)]

    return view(b, x, [*(x.shape[d] for d in rest), length], index)
