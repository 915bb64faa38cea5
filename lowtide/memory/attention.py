"""scaled_dot_product_attention as PyTorch runs it on the CPU: one op, which keeps no weights.

On meta tensors PyTorch takes another road, which makes the matrix of all weights. In: a call, on
meta tensors. Out: the CPU's op; what that and its gradient give, and what they allocate inside.

    attended    sdpa(q, k, v, mask)  ──►  aten._scaled_dot_product_flash_attention_for_cpu, or None
    results     this op and its gradient  ──►  empty results
    scratch, backward_scratch     scores of a tile, for each thread

Without gradients, in eval mode, `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` are one op
each, which makes all scores: `native_scratch`; `encoder_layer` is the second by what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten
_torch: Final[Any] = torch  # whose private functions have no types
ENCODER_LAYER: Final[Any] = _torch._transformer_encoder_layer_fwd
Tensor = torch.Tensor
_COLUMNS: Final = 512  # of a tile
_ENCODER_WEIGHTS: Final = 15  # of an encoder layer, and its options
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
    if dropout_p or not _is_taken(q, k, v, enable_gqa):
        return None
    if attn_mask is not None:
        if attn_mask.requires_grad:
            return None
        if attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.new_empty(attn_mask.shape, dtype=q.dtype)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    return op(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def encoder_layer(
    x: Tensor,
    width: int,
    heads: int,
    *weights: Any,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`torch._transformer_encoder_layer_fwd`, by the ops that it calls, on any device."""
    if len(weights) > _ENCODER_WEIGHTS:
        weights, (mask, mask_type) = weights[:-2], weights[-2:]
    *attention, is_gelu, comes_first, eps, w1, b1, w2, b2, up, up_bias, down, down_bias = weights

    def normed(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.layer_norm(x, (width,), weight, bias, eps)

    given = x
    x = normed(x, w1, b1) if comes_first else x
    x, _ = _torch._native_multi_head_attention(
        x, x, x, width, heads, *attention, mask, False, True, mask_type
    )
    x.add_(given)
    x = x if comes_first else normed(x, w1, b1)
    given = x
    x = normed(x, w2, b2) if comes_first else x
    places = x.shape[:2]
    x = _torch._addmm_activation(up_bias, x.flatten(0, 1), up.t(), use_gelu=is_gelu)
    x = torch.addmm(down_bias, x, down.t()).view(*places, width)
    x.add_(given)
    return x if comes_first else normed(x, w2, b2)


def _is_taken(q: Tensor, k: Tensor, v: Tensor, shares_heads: bool) -> bool:
    given = (q, k, v)
    alike = all(x.dim() == 4 and x.shape[-1] == q.shape[-1] and x.numel() for x in given)
    return (
        alike
        and q.is_floating_point()
        and all(x.is_meta and x.stride(-1) == 1 for x in given)
        and q.shape[0] == k.shape[0]
        and k.shape[:2] == v.shape[:2]
        and (q.shape[1] % k.shape[1] == 0 if shares_heads else q.shape[1] == k.shape[1])
    )


def results(func: Any, args: Sequence[Any]) -> Any:
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


def _native(q: Tensor, k: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    """`nn.MultiheadAttention` in one op, as it runs without gradients."""
    heads = given[2]
    _, needs, averages, *_ = _options(given[7:])
    batch, length, _width = q.shape
    dims = (batch, length, k.shape[1]) if averages else (batch, heads, length, k.shape[1])
    return torch.empty_like(q), q.new_empty(dims if needs else 0)


def _options(given: Sequence[Any]) -> Sequence[Any]:
    """mask, need_weights, average_attn_weights, mask_type: those at the end may be left out."""
    return *given, *(None, True, True, None)[len(given) :]


def native_scratch(args: Sequence[Any], _: Any) -> int:
    """Of `aten._native_multi_head_attention`: queries, keys and values twice, then scores."""
    mask, needs, *_ = _options(args[9:])
    more = 2 * args[0].numel() * args[0].itemsize if needs else 0
    return more + _native_bytes(args[0], args[4], mask)


def _native_bytes(x: Tensor, heads: int, mask: Tensor | None) -> int:
    batch, length, _width = x.shape
    whole = x.numel() * x.itemsize
    places = batch * heads * length * length
    masked = 0 if mask is None else places * (x.itemsize + (mask.dtype is not torch.bool))
    return max(places * x.itemsize + masked + 2 * whole, 5 * whole)


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


_MAKERS: Final[dict[Any, Callable[..., Any]]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _backward,
    aten._native_multi_head_attention.default: _native,
}
