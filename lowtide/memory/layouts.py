"""Memory formats of results that differ between the CPU and the meta device.

In: an op, its arguments, and its results on the meta device. Out: the results with the strides that
they have on the CPU. Whether the next op copies its operand depends on them.

    pixel_shuffle(x, 2), x channels-last     on the CPU channels-last, on meta contiguous

The table was found by running each op on both devices; `tests/memory/test_layouts` compares again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.torch_private.dispatch import is_slow_convolution

Tensor = torch.Tensor
aten = torch.ops.aten
VOLUMES: Final = 5  # dims of images of three
LAYOUTS: Final = {4: torch.channels_last, VOLUMES: torch.channels_last_3d}

# The result is channels-last if the argument at this position is, else contiguous.
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
    aten.reflection_pad2d_backward.default: 1,
    aten.reflection_pad3d_backward.default: 1,
    aten.replication_pad2d_backward.default: 1,
    aten.replication_pad3d_backward.default: 1,
}
_CONTIGUOUS: Final = frozenset({
    aten.log_sigmoid_forward.default, aten.rrelu_with_noise.default, aten.glu_backward.default,
    aten.pow.Scalar,
})  # fmt: skip
# The first result is channels-last if the first argument is, else contiguous.
_BATCH_NORMS: Final = frozenset({
    aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_no_training.default,
})  # fmt: skip
# The result lies as the sum of the two operands does. On meta it is PyTorch's decomposition that
# chooses the order of dims, by other operands than the kernels do.
_AS_SUM: Final = frozenset({
    aten.floor_divide.default, aten.div.Tensor_mode, aten.copysign.Tensor, aten.xlogy.Tensor,
    aten.special_xlog1py.default, aten.logaddexp.default, aten.logaddexp2.default,
    aten.heaviside.default, aten.logical_and.default, aten.logical_or.default,
    aten.logical_xor.default, aten.complex.default, aten.polar.default,
})  # fmt: skip


def with_eager_layout(func: Any, args: Sequence[Any], result: Any) -> Any:
    """Return the result with the strides that it has on the CPU; most are unchanged."""
    place = _AS_ARGUMENT.get(func)
    if place is not None:
        layout = LAYOUTS[result.dim()] if is_channels_last(args[place]) else torch.contiguous_format
        return _in_order(result, layout)
    if func in _CONTIGUOUS:
        if isinstance(result, Tensor):
            return _in_order(result, torch.contiguous_format)
        return tuple(_in_order(r, torch.contiguous_format) for r in result)
    if func is aten.convolution.default:
        return _convolved(args, result)
    if func is aten.roll.default:
        return _rolled(result, *args)
    if func in _BATCH_NORMS:
        layout = LAYOUTS[args[0].dim()] if is_channels_last(args[0]) else torch.contiguous_format
        return _in_order(result[0], layout), *result[1:]
    if func in _AS_SUM:
        return _as_sum(result, *args[:2])
    if func is aten.binary_cross_entropy.default and result.shape == args[0].shape:
        return torch.empty_like(args[0], dtype=result.dtype)
    return result


def _as_sum(result: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return the result with the strides of x + y; a reduction of it, or of a number, as it is."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        return result
    plain = (
        torch.empty_strided(v.shape, v.stride(), dtype=torch.float32, device="meta") for v in (x, y)
    )
    wanted = aten.add.Tensor(*plain)
    if wanted.shape != result.shape or wanted.stride() == result.stride():
        return result
    return torch.empty_strided(
        wanted.shape, wanted.stride(), dtype=result.dtype, device=result.device
    )


def _rolled(result: Tensor, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Return the result of `roll` with its strides on the CPU. `roll` concatenates two parts along
    each dim; it is contiguous if one of them is empty."""
    pairs = list(zip(shifts, dims, strict=False))
    is_last = bool(pairs) and is_channels_last(x) and all(n % x.shape[d] for n, d in pairs)
    return _in_order(result, LAYOUTS[x.dim()] if is_last else torch.contiguous_format)


def _convolved(args: Sequence[Any], result: Tensor) -> Tensor:
    """Return the result of a convolution with its strides on the CPU: channels-last if one operand
    is, except for PyTorch's own 3-D kernels. On meta tensors it is always contiguous."""
    x, w = args[:2]
    if not (is_channels_last(x) or is_channels_last(w)):
        return result
    if result.dim() == VOLUMES and not is_onednns(x, w, *args[3:9]):
        return result
    return torch.empty_like(result, memory_format=LAYOUTS[result.dim()])


def is_onednns(x: Tensor, w: Tensor, *options: Any) -> bool:
    """Return whether oneDNN runs this convolution on the CPU, as PyTorch decides it.

    `options`: stride, padding, dilation, transposed, output_padding, groups.
    """
    # PyTorch decides by CPU tensors: here of one element, expanded.
    images, weights = (torch.empty(1, dtype=v.dtype, device="cpu").expand(v.shape) for v in (x, w))
    return not is_slow_convolution(images, weights, *options)


def is_dense(x: Tensor) -> bool:
    """Return whether PyTorch's kernels read the tensor as it is: contiguous or channels-last."""
    last = LAYOUTS.get(x.dim())
    return x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))


def is_channels_last(x: Tensor) -> bool:
    """Return whether PyTorch treats x: [N, C, ...] as channels-last. That depends on strides alone,
    which are arbitrary for dims of size 1; contiguous images of one pixel do not count."""
    if x.dim() not in LAYOUTS or not x.stride(1):
        return False
    least = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if not x.shape[d] or x.stride(d) < least or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * x.shape[d]
    return True


def _in_order(x: Tensor, layout: torch.memory_format) -> Tensor:
    if x.is_contiguous(memory_format=layout):
        return x
    return torch.empty_like(x, memory_format=layout)


def is_packed(x: Tensor) -> bool:
    """Return whether the elements of x fill memory without gaps, in any order of dims."""
    step = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
