"""scaled_dot_product_attention as PyTorch runs it on GPUs: one kernel, or in parts.

On meta tensors PyTorch takes it apart. In: a call, on meta tensors, and the device. Out: its
result, by the op that PyTorch chooses for tensors of that form on that device; what that and its
gradient allocate inside.

    attended    sdpa(q, k, v, mask)  ──►  aten._scaled_dot_product_flash_attention, _efficient_…,
                                          _cudnn_…, or products and a softmax
    flash_scratch, …     parts of the result; sums of single precision; copies that lie in order

Read from what the allocator was asked for by PyTorch 2.11 built with CUDA 13, on the simulated GPU
of `tests/simulated`; what cuDNN allocates inside is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, cast

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from lowtide.memory.convolution import nbytes
from lowtide.memory.recurrent_cuda import dropout
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.memory.stand_ins import over_nothing

aten = torch.ops.aten
Tensor = torch.Tensor

_EIGHT: Final = 8  # numbers, to whose multiples flash attention pads heads, and masks are padded
_QUERIES: Final = 64  # of a block of flash attention
_KEYS: Final = ((64, 256), (128, 128), (math.inf, 64))  # up to such heads, keys of a block
_MOST_PARTS: Final = 128
_FULL: Final = 0.8  # of a GPU's places for blocks: then nothing is done in parts
_NEARLY_BEST: Final = 0.85
_SINGLE: Final = 4  # bytes


def attended(
    device: torch.device,
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
    """See the module's text; None where the road is the one of meta tensors."""
    kernel = _choice(device, q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if kernel == SDPBackend.FLASH_ATTENTION:
        return _flash(q, k, v, dropout_p, is_causal, scale)
    if kernel == SDPBackend.EFFICIENT_ATTENTION:
        bias = _bias(attn_mask, q, k)
        op = aten._scaled_dot_product_efficient_attention
        return op(q, k, v, bias, keeps, dropout_p, is_causal, scale=scale)[0]
    if kernel == SDPBackend.CUDNN_ATTENTION:
        bias = _bias(attn_mask, q, k)
        op = aten._scaled_dot_product_cudnn_attention
        return op(q, k, v, bias, keeps, dropout_p, is_causal, False, scale=scale)[0]
    if dropout_p and not enable_gqa:
        return _in_parts(q, k, v, attn_mask, dropout_p, is_causal, scale)
    return None


def _choice(
    device: torch.device,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> SDPBackend:
    """PyTorch's own, which looks at forms, dtypes and the device."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return SDPBackend.MATH
    with outside_dispatch_modes():
        given = [None if x is None else over_nothing(x, device) for x in (q, k, v, mask)]
        for made, x in zip(given[:3], (q, k, v), strict=True):
            cast("Tensor", made).requires_grad_(x.requires_grad)
        found = aten._fused_sdp_choice(
            *given, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    return SDPBackend(found)


def _flash(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> Tensor:
    width = q.shape[-1]
    missing = -width % _EIGHT
    if missing:
        q, k, v = (F.pad(x, (0, missing)) for x in (q, k, v))
    scale = width**-0.5 if scale is None else scale
    op = aten._scaled_dot_product_flash_attention
    return op(q, k, v, dropout_p, is_causal, False, scale=scale)[0][..., :width]


def _bias(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """A mask as the kernels add it, its rows beginning at multiples of eight numbers."""
    if mask is None:
        return None
    if mask.dtype is torch.bool:
        mask = mask.new_empty(mask.shape, dtype=q.dtype)
    length = mask.shape[-1]
    if missing := -length % _EIGHT:
        mask = F.pad(mask, (0, missing))[..., :length]
    return mask.expand(*q.shape[:3], k.shape[2])


def _in_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """With a mask of bools for dropout, where the one of meta tensors is of numbers."""
    dtype = q.dtype
    if q.itemsize == 2 and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        q, k, v = q.float(), k.float(), v.float()
    if is_causal:
        mask = q.new_ones((q.shape[-2], k.shape[-2]), dtype=torch.bool).tril()
    if mask is not None and mask.dtype is torch.bool:
        mask = mask.new_empty(mask.shape, dtype=q.dtype)
    root = math.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
    scaled = q * root  # alive to the end, as what is converted
    weights = scaled @ (k.transpose(-2, -1) * root)
    if mask is not None:
        weights = weights + mask
    weights = aten._safe_softmax(weights, -1)
    return (dropout(weights, dropout_p, True) @ v).to(dtype)


def flash_scratch(args: Sequence[Any], _: Any) -> int:
    """Keys are read in parts where there are few queries: results of each, then summed."""
    q, k = args[:2]
    parts = 1 if len(args) > 3 and args[3] else _parts(q, k)
    width = _up(q.shape[-1], 32)
    return parts * _single(q, 1, width + 1) if parts > 1 else 0


def _parts(q: Tensor, k: Tensor) -> int:
    """The fewest that use a GPU's places for blocks nearly as well as any number of them does."""
    if not torch.cuda.is_available():
        return 1
    device = torch.cuda.current_device()
    found = cast("Any", torch.cuda.get_device_properties)(device)
    places = 2 * int(found.multi_processor_count)
    blocks = q.shape[0] * q.shape[1] * _up(q.shape[2], _QUERIES) // _QUERIES
    if blocks >= _FULL * places:
        return 1
    keys = next(size for width, size in _KEYS if q.shape[-1] <= width)
    of_keys = -(-k.shape[2] // keys)
    most = min(_MOST_PARTS, places, of_keys)
    each = [-(-of_keys // n) for n in range(most + 1) if n]
    used: dict[int, float] = {}
    for n, blocks_of_keys in enumerate(each, 1):
        if n == 1 or blocks_of_keys != each[n - 2]:
            waves = blocks * n / places
            used[n] = waves / math.ceil(waves)
    best = max(used.values(), default=1.0)
    return next((n for n, share in used.items() if share >= _NEARLY_BEST * best), 1)


def flash_backward_scratch(args: Sequence[Any], _: Any) -> int:
    """The queries' gradient in single precision, a number for each query, and keys' and values' for
    each head where heads share them."""
    cotangent, q, k, _v, out = args[:5]
    width = _up(q.shape[-1], 32)
    queries = _single(q, 128, width + 1)
    shared = (
        2 * k.numel() // k.shape[1] * q.shape[1] * k.itemsize if k.shape[1] != q.shape[1] else 0
    )
    return queries + shared + _in_order(cotangent) + _in_order(out)


def efficient_scratch(args: Sequence[Any], _: Any) -> int:
    """Sums of wide heads in single precision."""
    q, v = args[0], args[2]
    return _single(q, 1, v.shape[-1]) if v.shape[-1] > 128 and q.itemsize < _SINGLE else 0


def efficient_backward_scratch(args: Sequence[Any], _: Any) -> int:
    """The same of gradients, of the queries' at most; two numbers for each query."""
    cotangent, q, k = args[:3]
    width = _up(q.shape[-1], 64)
    is_wide = width > 128 and q.itemsize < _SINGLE
    keys = 2 * _single(k, 128, width) if is_wide else 0
    return _in_order(cotangent) + _single(q, 32, 2) + _single(q, 128, width) + keys


def _single(x: Tensor, rows: int, width: int) -> int:
    """So many numbers of single precision for each place and head, of `rows` together."""
    return x.shape[0] * x.shape[1] * _up(x.shape[2], rows) * width * _SINGLE


def _in_order(x: Tensor) -> int:
    """A copy, unless the heads of a place lie side by side."""
    return 0 if x.transpose(1, 2).is_contiguous() else nbytes(x)


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
