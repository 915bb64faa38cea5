"""scaled_dot_product_attention as PyTorch runs it on the CPU: one op, which keeps no weights.

On meta tensors PyTorch takes another road, which makes the matrix of all weights. In: a call, on
meta tensors. Out: the CPU's op; what that and its gradient give, and what they allocate inside.

    attended    sdpa(q, k, v, mask)  ──►  aten._scaled_dot_product_flash_attention_for_cpu, or None
    results     this op and its gradient  ──►  empty results
    scratch, backward_scratch     scores of a tile, for each thread
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
_COLUMNS: Final = 512  # of a tile
_ROWS: Final = ((768, 256), (192, 64), (0, 32))  # from so many queries on, rows of a tile


def attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """See the module's text; None where the CPU takes the other road, too."""
    if dropout_p or enable_gqa or not _is_taken(q, k, v):
        return None
    if attn_mask is not None:
        if attn_mask.requires_grad:
            return None
        if attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.new_empty(attn_mask.shape, dtype=q.dtype)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    return op(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _is_taken(q: Tensor, k: Tensor, v: Tensor) -> bool:
    given = (q, k, v)
    alike = all(x.dim() == 4 and x.shape[-1] == q.shape[-1] and x.numel() for x in given)
    return (
        alike
        and q.is_floating_point()
        and all(x.is_meta and x.stride(-1) == 1 for x in given)
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
    )


def results(func: Any, args: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """What the op or its gradient gives, on the meta device; None for any other op."""
    make = _MAKERS.get(func)
    return None if make is None else make(*args)


def _forward(q: Tensor, *_: Any) -> tuple[Tensor, ...]:
    batch, heads, length, _width = q.shape
    single = torch.float32 if q.itemsize < 4 else q.dtype
    sums = q.new_empty((batch, length, heads), dtype=single)
    return _lines(q), sums.transpose(1, 2)


def _backward(_: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return tuple(map(_lines, given[:3]))


def _lines(x: Tensor) -> Tensor:
    """One like it, the heads of a place side by side."""
    batch, heads, length, width = x.shape
    return x.new_empty((batch, length, heads, width)).transpose(1, 2)


def scratch(args: Sequence[Any], _: Any) -> int:
    """Of the op."""
    return _tiles(args[0], args[1], 1)


def backward_scratch(args: Sequence[Any], _: Any) -> int:
    """Of its gradient; the cotangent is copied, to lie as the result does."""
    g, q, k = args[:3]
    return _tiles(q, k, 2) + g.numel() * g.itemsize


def _tiles(q: Tensor, k: Tensor, count: int) -> int:
    rows = min(next(r for least, r in _ROWS if q.shape[2] >= least), q.shape[2])
    columns = min(_COLUMNS, k.shape[2])
    itemsize = max(q.itemsize, 4)
    is_packed = q.itemsize < 4 and torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
    packed = 2 * k.numel() * k.itemsize if is_packed else 0
    floats = torch.get_num_threads() * rows * (count * columns + q.shape[3])
    return packed + floats * itemsize


_MAKERS: Final[dict[Any, Callable[..., tuple[Tensor, ...]]]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
}
