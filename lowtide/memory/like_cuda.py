"""Makes PyTorch decompose ops on meta tensors as on a GPU, where it would do otherwise.

Entered during a dry run.

    nn.LSTM, nn.GRU, nn.RNN    see `memory/recurrent`
    dropout                    one kernel, which keeps a mask of bools
    attention                  the kernel that PyTorch chooses, if the machine has a GPU;
                               else in parts, with the matrix of all weights
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from lowtide.memory import casts
from lowtide.memory.like_cpu import ATTENTION, without_asking
from lowtide.memory.recurrent import layers
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.memory.stand_ins import over_nothing

Tensor = torch.Tensor
aten = torch.ops.aten


class LikeCuda(TorchFunctionMode):
    """See the module's text."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        is_there = device.type == "cuda" and torch.cuda.is_available()
        self._on: Any = torch.cuda.device(device) if is_there else contextlib.nullcontext()

    def __enter__(self) -> LikeCuda:
        """Makes the device PyTorch's current one, which attention is asked about."""
        self._on.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exit: Any) -> None:
        """Puts that back."""
        super().__exit__(*exit)
        self._on.__exit__(*exit)

    def __torch_function__(
        self,
        func: Any,
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls the function, or what stands for it."""
        named = dict(kwargs or {})
        if func is F.dropout or func is torch.dropout:
            return _dropout(*args, **named)
        if func is F.multi_head_attention_forward:
            with self:
                return without_asking(func)(*args, **named)
        if func is F.scaled_dot_product_attention:
            with casts.within(ATTENTION, args, named) as (args, named):
                found = _attended(self._device, *args, **named)
                return func(*args, **named) if found is None else found
        found = None if named else layers(func, args, "cuda")
        return func(*args, **named) if found is None else found


def _dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: bool
) -> Tensor:
    training = named.get("train", training)  # as torch.dropout calls it
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _attended(
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
    """None where the road is the one of meta tensors."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    how = dropout_p, is_causal
    with outside_dispatch_modes():
        given = [None if x is None else over_nothing(x, device) for x in (q, k, v, attn_mask)]
        for made, x in zip(given[:3], (q, k, v), strict=True):
            cast("Tensor", made).requires_grad_(x.requires_grad)
        kernel = aten._fused_sdp_choice(*given, *how, scale=scale, enable_gqa=enable_gqa)
    if kernel == SDPBackend.FLASH_ATTENTION.value:
        return aten._scaled_dot_product_flash_attention(q, k, v, *how, False, scale=scale)[0]
    keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    bias = attn_mask
    if bias is not None:
        bias = bias.new_empty(bias.shape, dtype=q.dtype) if bias.dtype is torch.bool else bias
        bias = bias.expand(*q.shape[:3], k.shape[2])
    if kernel == SDPBackend.EFFICIENT_ATTENTION.value:
        op = aten._scaled_dot_product_efficient_attention
        return op(q, k, v, bias, keeps, *how, scale=scale)[0]
    if kernel == SDPBackend.CUDNN_ATTENTION.value:
        op = aten._scaled_dot_product_cudnn_attention
        return op(q, k, v, bias, keeps, *how, False, scale=scale)[0]
    return None
