"""Makes PyTorch decompose ops on meta tensors as on the CPU, where it would do otherwise.

Entered during a dry run, so that saved tensors are those of the CPU.

    nn.LSTM, nn.GRU, nn.RNN    see `memory/recurrent`
    attention                  one op, which makes no matrix of all weights
    group_norm                 its result lies as its operand does
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lowtide.memory import casts
from lowtide.memory.layouts import LAYOUTS
from lowtide.memory.recurrent import layers

Tensor = torch.Tensor
aten = torch.ops.aten
ATTENTION: Final = aten.scaled_dot_product_attention.default


class LikeTheCpu(TorchFunctionMode):
    """See the module's text."""

    def __torch_function__(
        self,
        func: Any,
        kinds: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls the function, or what stands for it."""
        named = dict(kwargs or {})
        if func is F.multi_head_attention_forward:
            with self:
                return without_asking(func)(*args, **named)
        if func is F.scaled_dot_product_attention:
            with casts.within(ATTENTION, args, named) as (args, named):
                found = _attended(*args, **named)
                return func(*args, **named) if found is None else found
        if func is F.group_norm or func is torch.group_norm:
            return _lying_as_given(func(*args, **named), *args, **named)
        found = None if named else layers(func, args, "cpu")
        return func(*args, **named) if found is None else found


def _attended(
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
    """By the CPU's op; None where the CPU takes the other road, too."""
    given = (q, k, v)
    alike = all(x.dim() == 4 and x.shape[-1] == q.shape[-1] and x.numel() for x in given)
    if dropout_p or not alike or not all(x.is_meta and x.stride(-1) == 1 for x in given):
        return None
    has_heads = q.shape[1] % k.shape[1] == 0 if enable_gqa else q.shape[1] == k.shape[1]
    is_batch = q.shape[0] == k.shape[0] and k.shape[:2] == v.shape[:2]
    if not (has_heads and is_batch and q.is_floating_point()):
        return None
    if attn_mask is not None:
        if attn_mask.requires_grad:
            return None
        if attn_mask.dtype is torch.bool:
            attn_mask = attn_mask.new_empty(attn_mask.shape, dtype=q.dtype)
    op = aten._scaled_dot_product_flash_attention_for_cpu
    return op(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _lying_as_given(made: Tensor, input: Tensor, *_: Any, **__: Any) -> Tensor:
    """Where the channels lie last, on meta tensors they do no longer."""
    last = LAYOUTS.get(input.dim(), torch.contiguous_format)
    is_last = torch.empty_like(input).is_contiguous(memory_format=last)
    return made.contiguous(memory_format=last) if is_last else made


@functools.cache
def without_asking(func: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask for modes itself: what it calls does."""
    no = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda *_: False)  # pyright: ignore
    made = types.FunctionType(func.__code__, func.__globals__ | no, func.__name__)
    made.__defaults__, made.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    return made
