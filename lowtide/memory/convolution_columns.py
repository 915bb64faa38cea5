"""The convolutions of oneDNN that a processor with vectors of eight floats computes by columns.

In: the operands of a convolution in float32, of one group or channel by channel, on meta tensors,
and how its windows lie. Out: bytes of the columns, or None where oneDNN has a kernel of its own, in
blocks of channels.
Those with vectors of eight ask more than those with sixteen:

    forward    no more than three places of padding before a row; a window of over seven places has
               no padding or no stride
    input      its gradient: the same stride in all dims, one in depth; no stride with holes; few
               channels, long windows and a stride not together
    weights    their gradient: no padding in front of a volume, no holes, a window within the image
               and of at most thirteen places, of three channel by channel

By columns nothing is copied in blocks. Which, and how many threads have columns of their own, is
oneDNN's choice (3.x, `gemm_convolution_utils`); measured with PyTorch 2.13 on AMD EPYC (Zen 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

Tensor = torch.Tensor
_BYTES: Final = 4  # of a float
_LANES: Final = 8
_VOLUMES: Final = 5  # dims of images of three
_FRONT: Final = 3
_LONG_FORWARD: Final = 7
_LONG_INPUT: Final = 3
_LONG_WEIGHTS: Final = 13
_LONG_CHANNEL: Final = 3
_BLOCK_BYTES: Final = 1 << 20  # of columns that a thread has at a time, forward in two dims
_MOST_BYTES: Final = 1 << 30
_TIMES: Final = 15  # so many times the operands for each thread, columns may take; else a part
_SMALL: Final = 64 * 1024  # products for a thread


@dataclass(frozen=True)
class Windows:
    """Of a convolution: a number for each dim of the images."""

    kernel: Sequence[int]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    @property
    def are_beside(self) -> bool:
        """Does one see padding alone?"""
        spread = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))
        return any(p >= k for p, k in zip(self.padding, spread, strict=True))


def forward_columns(x: Tensor, result: Tensor, windows: Windows) -> int | None:
    """Of x: [N, C, ...] -> result: [N, K, ...]; none where they are channels_last."""
    kernel, padding = windows.kernel, windows.padding
    is_long = kernel[-1] > _LONG_FORWARD and any(padding[-2:]) and max(windows.stride[-2:]) > 1
    if not is_long and padding[-1] <= _FRONT:
        return None
    columns = _columns(x, result, kernel)
    threads = torch.get_num_threads()
    if x.dim() < _VOLUMES:
        taken = min(columns, _BLOCK_BYTES) * threads
    else:
        taken = columns * (threads if _places_each(result) < 512 else 1)
    return max(taken, result.numel() * result.itemsize)


def input_columns(x: Tensor, g: Tensor, windows: Windows, is_last: bool) -> int | None:
    """Of the gradient of x: [N, C, ...], from that of the result g: [N, K, ...]; `is_last`: they
    are channels_last."""
    kernel, stride = windows.kernel, windows.stride
    is_strided, threads = max(stride) > 1, torch.get_num_threads()
    across = (1, *stride)[-2:]  # PyTorch gives oneDNN a row as an image
    is_even = across[0] == across[1] and (len(stride) < 3 or stride[0] == 1)
    has_holes = is_strided and max(windows.dilation) > 1
    is_long = x.shape[1] < _LANES and kernel[-1] > _LONG_INPUT and stride[-1] > 1
    if not (has_holes or (not is_last and (not is_even or is_long or windows.are_beside))):
        return None
    columns, size = _columns(x, g, kernel), _slice(x)
    if is_last:
        depth = g.shape[2] if g.dim() == _VOLUMES else 1
        is_small = g.dim() < _VOLUMES and size // threads < 64 and x.shape[0] > 1
        return columns * depth * (threads if is_small else 1)
    shares = -(-size // _LANES) * -(-x.shape[1] // _LANES)
    at_once = x.shape[0] > 1 and (_places_each(g) < 512 or math.prod(kernel) < 64)
    at_once = at_once and (
        _evenly(x.shape[0]) >= _evenly(shares) or size * x.shape[1] * g.shape[1] // threads < _SMALL
    )
    return _within(columns, threads if at_once else 1, (x, g), 0, 0.1)


def weight_columns(
    x: Tensor, g: Tensor, weight_bytes: int, windows: Windows, is_last: bool, groups: int = 1
) -> int | None:
    """Of the gradient of weights; groups of a channel each, or one."""
    kernel, padding, dilation = windows.kernel, windows.padding, windows.dilation
    is_volume = x.dim() == _VOLUMES
    if not (
        (is_volume and padding[0] > 0)
        or max(dilation) > 1
        or kernel[-1] > (_LONG_WEIGHTS if groups == 1 else _LONG_CHANNEL)
        or windows.are_beside
        or any(k > size for k, size in zip(kernel, x.shape[2:], strict=True))
    ):
        return None
    at_once = (x.shape[0] > 1 or groups > 2) and _places_each(g) < 256
    threads = torch.get_num_threads() if at_once else 1
    columns = _columns(x, g, kernel) // groups
    if not is_last:
        return _within(columns, threads, (x, g), weight_bytes, 0.05)
    is_turned = is_volume or max(*windows.stride, *dilation) == 1
    image = x.numel() * x.itemsize // max(x.shape[0], 1) if is_turned else 0
    return threads * (columns + image + weight_bytes)


def _within(
    columns: int, threads: int, operands: Sequence[Tensor], weight_bytes: int, part: float
) -> int:
    """The columns of threads, or a part of what is left if they were more."""
    given = sum(v.numel() * v.itemsize for v in operands) + weight_bytes
    most = min(_MOST_BYTES, _TIMES * torch.get_num_threads() * given) - threads * weight_bytes
    taken = threads * columns
    return threads * weight_bytes + (taken if taken <= most else int(part * most))


def _columns(x: Tensor, places: Tensor, kernel: Sequence[int]) -> int:
    """A row for each element of a window, a column for each place of an image, or of a slice of a
    volume."""
    return _BYTES * x.shape[1] * math.prod(kernel) * _slice(places)


def _slice(places: Tensor) -> int:
    return math.prod(places.shape[-2 if places.dim() == _VOLUMES else 2 :])


def _places_each(places: Tensor) -> int:
    return _slice(places) // torch.get_num_threads()


def _evenly(parts: int) -> float:
    """How much of the threads' time is work."""
    threads = torch.get_num_threads()
    return parts / max(-(-parts // threads) * threads, 1)
