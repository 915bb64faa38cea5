"""Makes PyTorch decompose ops on meta tensors as on the CPU or a GPU, where it would do otherwise.

Entered during a dry run, so that allocations and saved tensors are those of the device.

    with LikeTheCpu():
        F.scaled_dot_product_attention(q, k, v)   # on meta: one op, without the matrix of weights

| function                     | on the CPU                    | on a GPU                        |
| ---------------------------- | ----------------------------- | ------------------------------- |
| nn.LSTM, nn.GRU, nn.RNN      | see `memory/recurrent`        | see `memory/recurrent`          |
| scaled_dot_product_attention | one op                        | the kernel that PyTorch chooses |
| dropout                      | as on meta                    | one op, which saves a bool mask |
| group_norm                   | in the memory format of input | as on meta                      |
| one_hot                      | contiguous                    | as on meta                      |

On a machine without a GPU, a GPU's attention is decomposed as on meta: with the matrix of weights.
"""

from __future__ import annotations

import contextlib
import functools
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from lowtide.memory import casts
from lowtide.memory.layouts import LAYOUTS, is_channels_last
from lowtide.memory.recurrent import layers
from lowtide.memory.scopes.disposed import outside_dispatch_modes
from lowtide.memory.stand_ins import over_nothing

Tensor = torch.Tensor
aten = torch.ops.aten
_ATTENTION: Final = aten.scaled_dot_product_attention.default


class _LikeDevice(TorchFunctionMode, ABC):
    """The base class for both devices. `type`: "cpu" or "cuda"."""

    type: str

    def __torch_function__(
        self,
        func: Any,
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function, or the op that replaces it."""
        named = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            with self:
                return _without_override_check(func)(*args, **named)
        if func is F.scaled_dot_product_attention:
            with casts.within(_ATTENTION, args, named) as (args, named):
                found = self.attention(*args, **named)
                return func(*args, **named) if found is None else found
        found = None if named else layers(func, args, self.type)
        return self.other(func, args, named) if found is None else found

    @abstractmethod
    def attention(self, *args: Any, **named: Any) -> Tensor | None:
        """Return the result of the device's fused op; None where the device decomposes attention as
        PyTorch does on meta tensors. Takes what scaled_dot_product_attention takes."""

    @abstractmethod
    def other(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Call any other function, or the op that replaces it."""


class LikeTheCpu(_LikeDevice):
    """Decomposes as the CPU; see the module's text."""

    type = "cpu"

    def other(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        made = func(*args, **named)
        if func is F.one_hot:
            return _in_format(made, torch.contiguous_format)
        is_norm = func is F.group_norm or func is torch.group_norm
        return _in_format_of_input(made, *args, **named) if is_norm else made

    def attention(
        self,
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
        given = (q, k, v)
        is_alike = all(x.dim() == 4 and x.shape[-1] == q.shape[-1] and x.numel() for x in given)
        if dropout_p or not is_alike or not all(x.is_meta and x.stride(-1) == 1 for x in given):
            return None
        has_heads = q.shape[1] % k.shape[1] == 0 if enable_gqa else q.shape[1] == k.shape[1]
        is_batch = q.shape[0] == k.shape[0] and k.shape[:2] == v.shape[:2]
        if not (has_heads and is_batch and q.is_floating_point()):
            return None
        if attn_mask is not None and attn_mask.requires_grad:
            return None
        op = aten._scaled_dot_product_flash_attention_for_cpu
        bias = _bias(attn_mask, q)
        return op(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)[0]


class LikeCuda(_LikeDevice):
    """Decomposes as `device`, a GPU; see the module's text."""

    type = "cuda"

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._has_gpu = device.type == "cuda" and torch.cuda.is_available()
        self._on: Any = torch.cuda.device(device) if self._has_gpu else contextlib.nullcontext()

    def __enter__(self) -> LikeCuda:
        """Make the device PyTorch's current one: its choice of attention kernel depends on that."""
        self._on.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exit: Any) -> None:
        """Restore the current device."""
        super().__exit__(*exit)
        self._on.__exit__(*exit)

    def other(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        is_dropout = func is F.dropout or func is torch.dropout
        return (_dropout if is_dropout else func)(*args, **named)

    def attention(
        self,
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
        if not self._has_gpu:
            return None
        how = dropout_p, is_causal
        with outside_dispatch_modes():
            given = [over_nothing(x, self._device) for x in (q, k, v)]
            for made, x in zip(given, (q, k, v), strict=True):
                made.requires_grad_(x.requires_grad)
            mask = None if attn_mask is None else over_nothing(attn_mask, self._device)
            kernel = aten._fused_sdp_choice(*given, mask, *how, scale=scale, enable_gqa=enable_gqa)
        if kernel == SDPBackend.FLASH_ATTENTION.value:
            return aten._scaled_dot_product_flash_attention(q, k, v, *how, False, scale=scale)[0]
        keeps = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        bias = _bias(attn_mask, q)
        bias = None if bias is None else bias.expand(*q.shape[:3], k.shape[2])
        if kernel == SDPBackend.EFFICIENT_ATTENTION.value:
            op = aten._scaled_dot_product_efficient_attention
            return op(q, k, v, bias, keeps, *how, scale=scale)[0]
        if kernel == SDPBackend.CUDNN_ATTENTION.value:
            op = aten._scaled_dot_product_cudnn_attention
            return op(q, k, v, bias, keeps, *how, False, scale=scale)[0]
        return None


def _bias(mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return what fused kernels add to the scores; a bool mask is converted to the dtype of `q`."""
    if mask is not None and mask.dtype is torch.bool:
        return mask.new_empty(mask.shape, dtype=q.dtype)
    return mask


def _dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: bool
) -> Tensor:
    training = named.get("train", training)  # as torch.dropout calls it
    if inplace or not training or not 0 < p < 1 or not input.numel():
        return F.dropout(input, p, training, inplace)
    return torch.native_dropout(input, p, True)[0]


def _in_format_of_input(made: Tensor, input: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return `made` channels-last if `input` is; on meta tensors group_norm is contiguous."""
    is_last = is_channels_last(input)
    return _in_format(made, LAYOUTS[input.dim()] if is_last else torch.contiguous_format)


def _in_format(x: Tensor, layout: torch.memory_format) -> Tensor:
    """Return x in this memory format; only the strides of dims of size 1 change without a copy."""
    if not x.is_contiguous(memory_format=layout):
        return x.contiguous(memory_format=layout)
    strides = torch.empty_like(x, memory_format=layout).stride()
    return x if strides == x.stride() else x.as_strided(x.shape, strides)


@functools.cache
def _without_override_check(func: Any) -> Callable[..., Any]:
    """Return a function of torch.nn.functional that does not call `has_torch_function` itself, so
    that modes see the functions that it calls."""
    no = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda *_: False)  # pyright: ignore
    made = types.FunctionType(func.__code__, func.__globals__ | no, func.__name__)
    made.__defaults__, made.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    return made
