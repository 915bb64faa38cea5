"""What PyTorch's own CPU kernels allocate inside themselves: an upper bound.

In: an ATen op, its arguments and its result. Out: bytes beyond the result. An op that is not in the
table allocates nothing worth counting. The bounds are those of PyTorch 2.11 to 2.13 on x86, found
by measuring: `tests/memory/test_prediction.py` compares them with what is resident.

    kthvalue(x, k)     a copy of x, and the indices of all
    median(x, dim)     a copy, unless `dim` is the last
    conv2d(x, w)       x and the result in the blocked layout of oneDNN, channels padded to 16
    inv(x)             a copy for LAPACK
    abs(z)             of complex numbers, as complex numbers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from lowtide.memory import onednn

aten = torch.ops.aten
_CHANNELS = 16
Bound = Callable[[Sequence[Any], Any], int]


def scratch_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """See the module's text."""
    bound = _BOUNDS.get(func)
    return 0 if bound is None else bound([*args, *kwargs.values()], result)


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.itemsize
    if isinstance(value, list | tuple):
        return sum(map(_bytes, cast("Sequence[Any]", value)))
    return 0


def _copy(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0])


def _copy_and_indices(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0]) + 8 * args[0].numel()


def _copy_unless_last(args: Sequence[Any], result: Any) -> int:
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    return 0 if dim in (-1, args[0].dim() - 1) else _copy(args, result)


def _blocked(x: torch.Tensor) -> int:
    """Bytes of x: [N, C, ...] in the layout that oneDNN computes in."""
    channels = max(x.shape[1], 1)
    return _bytes(x) // channels * (-(-channels // _CHANNELS) * _CHANNELS)


def _convolution(args: Sequence[Any], result: Any) -> int:
    x, is_transposed = args[0], args[6]
    if is_transposed:
        return max(2 * _bytes(result), _bytes(x))
    return max(_blocked(x) + _blocked(result) - _bytes(result), _blocked(result))


def _convolution_backward(args: Sequence[Any], _: Any) -> int:
    return _blocked(args[0]) + _blocked(args[1])


def _complex(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0]) if args[0].is_complex() else 0


def _mask_indices(args: Sequence[Any], _: Any) -> int:
    """A mask becomes the indices of all its dims."""
    items = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
    return sum(8 * x.numel() * x.dim() for x in items)


_BOUNDS: dict[Any, Bound] = {
    aten.kthvalue.default: _copy_and_indices,
    aten.median.default: _copy,
    aten.nanmedian.default: _copy,
    aten.median.dim: _copy_unless_last,
    aten.nanmedian.dim: _copy_unless_last,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.mkldnn_rnn_layer.default: onednn.layer_scratch,
    aten.mkldnn_rnn_layer_backward.default: onednn.layer_backward_scratch,
    aten.abs.default: _complex,
    aten.index.Tensor: _mask_indices,
    aten.linalg_inv_ex.default: _copy,
    aten._linalg_svd.default: _copy,
    aten._linalg_eigh.default: _copy,
    aten.linalg_qr.default: _copy,
}
