"""PyTorch's road on the CPU, where it takes another one on meta tensors.

Entered while a call is rehearsed: recurrent layers and attention are then made of the ops that the
CPU would run, so that what these keep is seen. See `memory/recurrent` and `memory/attention`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lowtide.memory.attention import attended
from lowtide.memory.recurrent import layers


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
                return _without_asking(func)(*args, **named)
        found = None
        if func is F.scaled_dot_product_attention:
            found = attended(*args, **named)
        elif not named:
            found = layers(func, args)
        return func(*args, **named) if found is None else found


@functools.cache
def _without_asking(func: Any) -> Callable[..., Any]:
    """A function of torch.nn.functional that does not ask for modes itself: what it calls does."""
    no = dict.fromkeys(("has_torch_function", "has_torch_function_unary"), lambda *_: False)  # pyright: ignore
    made = types.FunctionType(func.__code__, func.__globals__ | no, func.__name__)
    made.__defaults__, made.__kwdefaults__ = func.__defaults__, func.__kwdefaults__
    return made
