"""PyTorch's road on GPUs, where it takes another one on meta tensors.

Entered while a call is rehearsed.

    nn.LSTM, nn.GRU, nn.RNN    see `memory/recurrent_cuda` and `memory/cudnn`
    dropout                    one kernel, which keeps a mask of bools
    attention                  one kernel, or in parts: see `memory/attention_cuda`
    x[mask] = 0                the number stays on the CPU, and the mask is filled as it is
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lowtide.memory import casts, cudnn
from lowtide.memory.attention import ENCODER_LAYER, encoder_layer
from lowtide.memory.attention_cuda import attended
from lowtide.memory.like_cpu import ATTENTION, without_asking
from lowtide.memory.linear import linear
from lowtide.memory.recurrent_cuda import dropout, fused_layers

UNASKED: Final = (
    "what cuDNN keeps of recurrent layers is only known where it can be asked: counted as what "
    "PyTorch's own kernels keep, which may be less"
)


class LikeCuda(TorchFunctionMode):
    """See the module's text. `places`: of the caller's tensors; `notes`: where it says what is not
    known."""

    def __init__(self, device: torch.device, places: cudnn.Places, notes: dict[str, None]) -> None:
        super().__init__()
        self._device = device
        self._places = places
        self._notes = notes
        is_there = device.type == "cuda" and torch.cuda.is_available()
        self._on: Any = torch.cuda.device(device) if is_there else contextlib.nullcontext()

    def __enter__(self) -> LikeCuda:
        """Makes the device PyTorch's current one, which cuDNN is asked of."""
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
        if func is F.dropout or func is torch.dropout:
            return _dropout(*args, **(kwargs or {}))
        if func is ENCODER_LAYER:
            return encoder_layer(*args, **(kwargs or {}))
        if func is F.linear:
            return linear(*args, **(kwargs or {}))
        if func is F.multi_head_attention_forward:
            with self:
                return without_asking(func)(*args, **(kwargs or {}))
        if func is F.scaled_dot_product_attention:
            with casts.within(ATTENTION, args, kwargs or {}) as (args, given):
                found = attended(self._device, *args, **given)
                return func(*args, **given) if found is None else found
        if func is torch.Tensor.__setitem__ and isinstance(args[2], int | float):
            return func(*args[:2], torch.tensor(args[2], dtype=args[0].dtype, device="cpu"))
        if kwargs or func not in cudnn.MODES:
            return func(*args, **(kwargs or {}))
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        is_cudnns = args[0].is_meta and cudnn.takes(args[0])
        found = cudnn.layers(func, args, self._places, half) if is_cudnns else None
        if found is None:
            found = fused_layers(func, args)
            if found is not None and is_cudnns:
                self._notes[UNASKED] = None
        return func(*args) if found is None else found


def _dropout(
    input: torch.Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> torch.Tensor:
    """`train`: what torch.dropout calls `training`."""
    if inplace:
        return F.dropout(input, p, training, True)
    return dropout(input, p, training if train is None else train)
