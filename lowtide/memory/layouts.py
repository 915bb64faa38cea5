"""How results of PyTorch's ops lie on the CPU, where they lie otherwise on the meta device.

In: an op, its arguments, and its results on the meta device. Out: the same in the CPU's order of
dims, which decides what the next op copies.

    x channels_last, pixel_shuffle(x, 2)     the CPU: channels_last, meta: contiguous

Found by comparing, PyTorch 2.13: `tests/memory/test_layouts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.memory import convolution
from lowtide.memory.convolution import LAYOUTS, lies_last

Tensor = torch.Tensor
aten = torch.ops.aten

# Those that are channels_last where this argument is, by its place; contiguous where it is not.
_AS_ARGUMENT: Final[dict[Any, int]] = {
    aten.pixel_shuffle.default: 0,
    aten.pixel_unshuffle.default: 0,
    aten.channel_shuffle.default: 0,
    aten.native_channel_shuffle.default: 0,
    aten.reflection_pad2d.default: 0,
    aten.reflection_pad3d.default: 0,
    aten.replication_pad2d.default: 0,
    aten.replication_pad3d.default: 0,
    aten.max_unpool2d.default: 0,
    aten.roll.default: 0,
    aten.reflection_pad2d_backward.default: 1,
    aten.reflection_pad3d_backward.default: 1,
    aten.replication_pad2d_backward.default: 1,
    aten.replication_pad3d_backward.default: 1,
}
_CONTIGUOUS: Final = frozenset({
    aten.log_sigmoid_forward.default, aten.rrelu_with_noise.default, aten.glu_backward.default,
})  # fmt: skip


def as_it_lies(func: Any, args: Sequence[Any], result: Any) -> Any:
    """See the module's text; results of other ops as they are."""
    place = _AS_ARGUMENT.get(func)
    if place is not None:
        layout = LAYOUTS[result.dim()] if lies_last(args[place]) else torch.contiguous_format
        return _in_order(result, layout)
    if func in _CONTIGUOUS:
        if isinstance(result, Tensor):
            return _in_order(result, torch.contiguous_format)
        return tuple(_in_order(r, torch.contiguous_format) for r in result)
    return convolution.as_it_lies(func, args, result)


def _in_order(x: Tensor, layout: torch.memory_format) -> Tensor:
    if x.is_contiguous(memory_format=layout):
        return x
    return torch.empty_like(x, memory_format=layout)


def is_packed(x: Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order of dims."""
    step = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
