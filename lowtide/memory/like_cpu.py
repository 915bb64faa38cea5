"""PyTorch's road on the CPU, where it takes another one on meta tensors.

Entered while a call is rehearsed: recurrent layers and attention are then made of the ops that the
CPU would run, so that what these keep is seen. See `memory/recurrent` and `memory/attention`. Where
PyTorch makes what only a gradient would need, it does so under a mode without gradients, too.
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
from lowtide.memory.attention import ENCODER_LAYER, attended, encoder_layer
from lowtide.memory.convolution import LAYOUTS
from lowtide.memory.linear import linear
from lowtide.memory.recurrent import layers

ATTENTION: Final = torch.ops.aten.scaled_dot_product_attention.default


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
        if func is F.linear:
            return linear(*args, **named)
        if func is ENCODER_LAYER:
            return encoder_layer(*args, **named)
        if func is F.scaled_dot_product_attention:
            with casts.within(ATTENTION, args, named) as (args, named):
                found = attended(*args, **named)
                return func(*args, **named) if found is None else found
        if func in _WITHOUT_GRADIENTS and not torch.is_grad_enabled():
            found = _WITHOUT_GRADIENTS[func](*args, **named)
        elif func is F.group_norm or func is torch.group_norm:
            return _lying_as_given(func(*args, **named), *args, **named)
        else:
            found = None if named else layers(func, args)
        return func(*args, **named) if found is None else found


def _lying_as_given(made: torch.Tensor, input: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Where the channels lie last, on meta tensors they do no longer."""
    last = LAYOUTS.get(input.dim(), torch.contiguous_format)
    is_last = torch.empty_like(input).is_contiguous(memory_format=last)
    return made.contiguous(memory_format=last) if is_last else made


def _max_pool1d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> torch.Tensor | None:
    """Without places: as large as means are."""
    if dilation not in (1, (1,), [1]) or return_indices:
        return None
    return F.avg_pool1d(x, kernel_size, stride, padding, ceil_mode)


def _eigvalsh(x: torch.Tensor, UPLO: str = "L") -> torch.Tensor:
    return torch.ops.aten._linalg_eigh(x, UPLO, False)[0]


def _svdvals(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._linalg_svd(x, False, False)[1]


def _norm(x: torch.Tensor, ord: Any = None, *more: Any, **named: Any) -> torch.Tensor | None:
    """The one that is the sum of singular values."""
    is_plain = not any((*more, *named.values()))
    return _svdvals(x).sum(-1) if isinstance(ord, str) and ord == "nuc" and is_plain else None


def _old_norm(x: torch.Tensor, p: Any = "fro", *more: Any, **named: Any) -> torch.Tensor | None:
    return _norm(x, p, *more, **named)


_WITHOUT_GRADIENTS: Final[dict[Any, Callable[..., Any]]] = {
    F.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
    torch.linalg.eigvalsh: _eigvalsh,
    torch.linalg.svdvals: _svdvals,
    torch.linalg.matrix_norm: _norm,
    torch.linalg.norm: _norm,
    torch.norm: _old_norm,
    torch.Tensor.norm: _old_norm,
}


@functools.cache
def without_asking(func: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask for modes itself: what it calls does."""
    no = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda *_: False)  # pyright: ignore
    made = types.FunctionType(func.__code__, func.__globals__ | no, func.__name__)
    made.__defaults__, made.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    return made
