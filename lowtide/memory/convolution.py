"""PyTorch's convolutions on the CPU: what they allocate inside themselves, an upper bound, and how
their results lie.

In: the arguments of `aten.convolution` or its gradient, on meta tensors. Out: bytes beyond results.

    oneDNN     float32, bfloat16: copies in its blocked layout, channels padded to 16, of weights
               those of each group; none of images where the tensors are channels_last, or of an
               input of few channels (but for the gradient of weights of 1x1). Groups that no
               kernel of its own takes: the columns of a group and an image for each thread, and
               results twice. The gradient of bfloat16 weights: images turned once more,
               at most of as many as there are threads
    PyTorch    other dtypes, and a single small image: columns of all windows (im2col), of all
               images or of one

Found by measuring, PyTorch 2.13 on x86: `tests/memory/test_prediction`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.memory import onednn
from lowtide.memory.convolution_columns import (
    Windows,
    forward_columns,
    input_columns,
    weight_columns,
)

Tensor = torch.Tensor
# By their names, for that of a transposed convolution by oneDNN has none in Python.
_SLOW: Final = ("Slow2d", "Slow3d", "SlowDilated2d", "SlowDilated3d",
                "SlowTranspose2d", "SlowTranspose3d")  # fmt: skip
_PYTORCHS: Final[list[Any]] = [getattr(torch._C._ConvBackend, name) for name in _SLOW]  # pyright: ignore
_BLOCK_BYTES: Final = 1 << 20  # of columns that a thread has at a time, forward
_CONVOLUTION: Final[Any] = torch.ops.aten.convolution.default
_CHANNELS: Final = 16
_FEW: Final = 4
_COLOURS: Final = 3
_BOTH_AT_ONCE: Final = 3  # the largest depthwise kernel of which both gradients are there at once
_LARGEST_DEPTHWISE: Final = 5  # kernel whose gradient is not by columns
_MANY: Final = 256  # channels
_SINGLE: Final = 4  # bytes
_LEAST_GROUP: Final = 8
_VOLUMES: Final = 5  # dims of images of three
LAYOUTS: Final = {4: torch.channels_last, _VOLUMES: torch.channels_last_3d}


def forward_scratch(args: Sequence[Any], result: Tensor) -> int:
    """Of `aten.convolution`."""
    x, w, bias, stride, padding, dilation, is_transposed, _, groups, *_ = args
    copied = 0 if is_dense(x) else nbytes(x)
    if not is_onednns(args):
        columns = _columns(x, w, result, stride, padding, dilation, is_transposed)
        copied += _made_plain(x, groups) if _is_channels_last(x, w) else 0
        single = 2 * _of_threads(columns, x) if is_transposed and x.itemsize < 4 else 0
        return copied + _by_groups(columns + single, (x,), result, groups)
    weights = _blocked_weights(w, groups)
    if _has_choice(x, w, groups):
        windows, is_last = _windows(w, args[3:6]), _is_channels_last(x, w)
        if is_transposed:
            columns = input_columns(result, x, windows, is_last)
        else:
            columns = None if is_last else forward_columns(x, result, windows)
        if columns is not None:
            if is_transposed and max(stride) > 1 and not is_last:
                columns = max(columns, 2 * nbytes(result) + nbytes(x))
            return copied + columns + (_turned(x) + _turned(w) if is_last else 0)
    # sums of bfloat16 are kept in single precision, those by groups and in blocks even where the
    # processor multiplies it, and a result by groups is made beside its place
    sums = 4 * result.numel() if is_transposed and _sums_aside(x) else 0
    is_half = is_transposed and x.itemsize < 4 and max(stride) == 1
    if _is_channels_last(x, w):
        is_even = all(k % s == 0 for k, s in zip(w.shape[2:], stride, strict=True))
        padded = 0 if is_even or not is_transposed else _of_threads(nbytes(x), x) + nbytes(w)
        if is_transposed and groups > 1:
            sums = max(sums, 4 * result.numel() if is_half else nbytes(result))
        return _turned(x) + _turned(w) + padded + weights + sums
    if is_transposed:
        if _is_by_columns(x, result, groups):
            given = nbytes(x) if (x.shape[1] // groups) % _LEAST_GROUP == 0 else 0
            return copied + nbytes(result) + max(_columns_at_once(x, w, result, x, groups), given)
        if max(stride) > 1:  # in the order of channels_last, which pads nothing
            first = (
                nbytes(x) if has_wide_vectors() else _blocked(x, groups) + _blocked(result, groups)
            )
            return copied + max(2 * nbytes(result), first, sums + nbytes(x)) + weights
        made = _blocked(result, groups)
        times = 2 if has_wide_vectors() or bias is not None else 1
        first = _blocked(x, groups) + times * made - nbytes(result)
        return copied + max(first, times * made) + weights + is_half * made
    if _is_by_columns(x, result, groups) and (x.shape[1] // groups) % _LEAST_GROUP:
        columns = _columns_at_once(x, w, result, result, groups, _BLOCK_BYTES)
        return copied + nbytes(result) + columns
    if _is_depthwise(x, result, groups) and x.dim() == _VOLUMES:  # as channels_last
        return copied + nbytes(x) + nbytes(result) + weights
    together = 1 if _is_depthwise(x, result, groups) else groups  # a vector is of channels
    is_point = max(w.shape[2:]) == 1
    is_plain = groups == 1 and not is_point
    given = _given(x) if is_plain else _blocked(x, together)
    if is_point and max(stride) > 1:
        copied += _places_read(x, result)
    first = given + _blocked(result, together) + weights - nbytes(result)
    if is_point and x.itemsize < _SINGLE and x.shape[1] >= _MANY:  # sums of parts of the channels
        copied += _of_threads(_SINGLE * result.numel(), x)
    return copied + max(first, _blocked(result, together))


def as_it_lies(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of `aten.convolution`, on the meta device, as it lies on others; any other op's
    as it is. Where one operand is channels_last so is it, but for PyTorch's own of volumes; on meta
    tensors it is contiguous."""
    if func is not _CONVOLUTION or not _is_channels_last(args[0], args[1]):
        return result
    if result.dim() == _VOLUMES and not is_onednns(args):
        return result
    return torch.empty_like(result, memory_format=LAYOUTS[result.dim()])


def backward_scratch(args: Sequence[Any], _: object) -> int:
    """Of `aten.convolution_backward`."""
    g, x, w, _, stride, padding, dilation, is_transposed, _, groups, wanted = args
    copied = sum(nbytes(v) for v in (g, x) if not is_dense(v))
    if not _is_onednns(x, w, *args[4:10]):
        columns = _columns(x, w, g, stride, padding, dilation, is_transposed)
        columns = columns or _of_threads(nbytes(x), x)  # of a point: images as they are
        if _is_channels_last(x, w):
            copied += _made_plain(g) + _made_plain(x, groups)
        if is_transposed:
            return copied + columns // max(x.shape[0], 1)  # image by image
        if x.itemsize < 4:  # an image's, and those in single precision
            columns = max(columns, 3 * _of_threads(columns, x))
        return copied + _by_groups(columns, (x, g), x, groups)
    blocked_weights = _blocked_weights(w, groups)
    is_last = _is_channels_last(x, w)
    at_once = 1 if groups == 1 and not is_transposed else torch.get_num_threads()
    if groups == 1 or is_last:
        turned = _turned_again(g, x, groups, at_once)
    else:
        turned = _turned_groups(g, x, groups)
    fills_vectors = is_last and groups >= _LEAST_GROUP
    by_channels = _is_depthwise(x, g, groups) and x.dim() < _VOLUMES and not fills_vectors
    if _has_choice(x, w, 1 if by_channels else groups):
        windows = _windows(w, args[4:7])
        return copied + _chosen(g, x, w, windows, is_transposed, wanted[0])
    if is_last:
        is_spread = max(dilation) > 1 and max(w.shape[2:]) > 1
        spread = nbytes(g) + nbytes(x) if is_spread else 0
        if _is_depthwise(x, g, groups) and max(w.shape[2:]) > _BOTH_AT_ONCE:
            in_groups = groups * _CHANNELS**2 * math.prod(w.shape[2:])
            blocked_weights = max(blocked_weights, in_groups * w.itemsize // 2)
            if x.itemsize < _SINGLE:  # sums, and padded channels of an image
                images = max(x.shape[0], 1)
                turned += in_groups * 5 + _CHANNELS * (nbytes(g) + nbytes(x)) // images
        is_at_places = max(stride) > 1 and max(w.shape[2:]) == 1 and not is_transposed
        spread += _places_read(x, g) if is_at_places else 0
        weights = max(2 * blocked_weights, _weight_sums(g, x, blocked_weights))
        return _turned(g) + _turned(x) + _turned(w) + weights + spread + turned
    copied += 0 if g.is_contiguous() or not is_dense(g) else nbytes(g)
    if groups > 1:
        columns = _columns_at_once(x, w, g, x if is_transposed else g, groups)
        if x.itemsize < _SINGLE and columns:
            columns += nbytes(x) // max(x.shape[0], 1)  # an image's gradient beside its place
        if not is_transposed:
            made = _grouped(g, x, w, groups, wanted, columns)
            if max(stride) > 1 and wanted[0]:
                made = max(made, 2 * nbytes(x))
            sums = _weight_sums(g, x, blocked_weights, at_once)
            return copied + made + turned + max(nbytes(w), sums)
        copied += columns if _is_by_columns(x, g, groups) else 0
    if is_transposed:
        g, x = x, g  # the result plays the part of the input
    channels = x.shape[1]
    is_strided = any(s > 1 for s in stride)
    of_x = _for_weights(x, w) if groups == 1 else _blocked(x, groups)
    if is_strided and max(w.shape[2:]) == 1 and not is_transposed:
        copied += _places_read(x, g)
    weights = blocked_weights * (2 if max(dilation) > 1 else 1)
    sums = max(weights, _weight_sums(g, x, blocked_weights))
    for_weights = _blocked(g, groups) + of_x + sums
    if not wanted[0]:
        return copied + for_weights + turned
    if is_strided and channels <= _FEW:
        for_input = _blocked(g, groups) + weights
    else:
        for_input = _blocked(g, groups) + _blocked(x, groups) + weights - nbytes(x)
    twice = 2 * nbytes(x) if is_strided and not is_transposed else 0
    return copied + max(for_weights, for_input, of_x, twice) + turned


def _has_choice(x: Tensor, w: Tensor, groups: int) -> bool:
    """Whether oneDNN may take a convolution by columns that others take in blocks."""
    is_narrow = groups == 1 and x.dtype is torch.float32 and not has_wide_vectors()
    return is_narrow and max(w.shape[2:]) > 1


def _chosen(
    g: Tensor, x: Tensor, w: Tensor, windows: Windows, is_transposed: bool, wants_input: bool
) -> int:
    """Both gradients, one after the other, each by columns or in blocks."""
    is_last = _is_channels_last(x, w)
    given, made = (g, x) if is_transposed else (x, g)
    groups = x.shape[1] if _is_depthwise(x, g, x.shape[1]) and w.shape[1] == 1 else 1
    weights = 2 * _blocked_weights(w, groups)
    columns = weight_columns(given, made, nbytes(w), windows, is_last, groups)
    if columns is None and not is_last:
        is_read = given.shape[1] == _COLOURS and groups == 1
        columns = (0 if is_read else _blocked(given)) + _blocked(made)
    most = weights if columns is None else columns
    if wants_input:
        columns = None
        if groups == 1 and not is_transposed:
            columns = input_columns(x, g, windows, is_last)
        elif groups == 1 and not is_last:
            columns = forward_columns(g, x, windows)
        if columns is None and not is_last:
            read = _given(g) if is_transposed and groups == 1 else _blocked(g)
            columns = max(read + _blocked(x) + weights - nbytes(x), _blocked(x))
        is_strided = max(windows.stride) > 1 and not is_transposed and not is_last
        most = max(most, columns or 0, 2 * nbytes(x) if is_strided else 0)
    return most + (_turned(g) + _turned(x) + _turned(w) if is_last else 0)


def _given(x: Tensor) -> int:
    """The copy in blocks of images that a convolution reads, which of few channels there is none
    of."""
    return 0 if x.shape[1] <= _few() else _blocked(x)


def _windows(w: Tensor, options: Sequence[Sequence[int]]) -> Windows:
    stride, padding, dilation = options
    return Windows(kernel=w.shape[2:], stride=stride, padding=padding, dilation=dilation)


def _for_weights(x: Tensor, w: Tensor) -> int:
    """The copy of the input that the gradient of the weights reads; a point is read in blocks."""
    channels = x.shape[1]
    if channels > _LEAST_GROUP or max(w.shape[2:]) == 1 or not has_wide_vectors():
        return _blocked(x)
    return nbytes(x) // channels * _LEAST_GROUP if channels >= _FEW else 0


def _places_read(x: Tensor, result: Tensor) -> int:
    """Those of an image per thread that a strided point reads."""
    images = min(torch.get_num_threads(), x.shape[0])
    return images * _padded(x.shape[1]) * math.prod(result.shape[2:]) * x.itemsize


def _weight_sums(g: Tensor, x: Tensor, blocked_weights: int, least: int = 1) -> int:
    """What the gradient of the weights is summed in: in single precision, and by each thread where
    the images are more than that, `least` times, whatever there are; 0 where that is the gradient
    itself."""
    if x.itemsize == _SINGLE:
        return 0
    sums = blocked_weights * _SINGLE // x.itemsize
    is_of_images = nbytes(g) + nbytes(x) > sums
    images = max(min(torch.get_num_threads(), x.shape[0]), least)
    return sums * (images if is_of_images else 1)


def _grouped(
    g: Tensor, x: Tensor, w: Tensor, groups: int, wanted: Sequence[bool], columns: int
) -> int:
    """In the blocked layout, if oneDNN has a kernel for such groups; else by columns, and one of
    both is copied."""
    both = _blocked(g, groups) + _blocked(x, groups)
    if _is_depthwise(x, g, groups):
        is_large = max(w.shape[2:]) > _BOTH_AT_ONCE
        blocked = max(both - (nbytes(x) if is_large and wanted[0] else 0), _blocked(x, groups))
        return max(blocked, _columns_of_one(g, w) if wanted[1] else 0)
    if not _is_by_columns(x, g, groups):
        return both
    if (x.shape[1] // groups) % _LEAST_GROUP == 0:  # some of these have a kernel
        return max(both, columns)
    if x.dim() == _VOLUMES:
        return max(nbytes(g), nbytes(x)) + columns + 2 * _blocked_weights(w, groups)
    return max(nbytes(g), nbytes(x), columns)


def _columns_of_one(g: Tensor, w: Tensor) -> int:
    """Those of one channel of an image, for the gradient of a large depthwise kernel."""
    if max(w.shape[2:]) <= _LARGEST_DEPTHWISE:
        return 0
    return math.prod(w.shape[2:]) * math.prod(g.shape[2:]) * g.itemsize


def _is_depthwise(x: Tensor, y: Tensor, groups: int) -> bool:
    """A channel from each, by itself."""
    return groups == x.shape[1] == y.shape[1] and groups > 1


def _is_by_columns(x: Tensor, y: Tensor, groups: int) -> bool:
    """Whether a vector is not filled by the channels of a group, of which oneDNN's own kernels want
    whole ones."""
    if groups == 1 or _is_depthwise(x, y, groups):
        return False
    return any(v.shape[1] // groups % _LEAST_GROUP for v in (x, y))


def _columns_at_once(
    x: Tensor, w: Tensor, y: Tensor, places: Tensor, groups: int, most: int | None = None
) -> int:
    """Of a group of an image, or of a slice of a volume, for each thread, in single precision;
    `most` for each."""
    if max(w.shape[2:]) == 1 and x.shape[2:] == y.shape[2:]:
        return 0
    slice_dim = 3 if x.dim() == _VOLUMES else 2
    each = 4 * math.prod(w.shape[1:]) * math.prod(places.shape[slice_dim:])
    each = each if most is None else min(each, most)
    return each * min(torch.get_num_threads(), x.shape[0] * groups)


def _turned_again(g: Tensor, x: Tensor, groups: int, least: int) -> int:
    """What the gradient of weights in half precision reads: an image for each thread, channels of
    each group padded; `least` images, whatever there are."""
    if x.itemsize == 4 or _is_depthwise(x, g, groups):
        return 0
    images = max(min(torch.get_num_threads(), x.shape[0]), least)
    rows = (math.prod(v.shape[2:]) * _padded(v.shape[1] // groups) * v.itemsize for v in (g, x))
    return images * groups * sum(rows)


def _turned_groups(g: Tensor, x: Tensor, groups: int) -> int:
    """The same of groups that fill vectors, in images that lie in blocks: one image, whatever
    threads there are."""
    if x.itemsize == _SINGLE or any(v.shape[1] // groups % _CHANNELS for v in (g, x)):
        return 0
    return (nbytes(g) + nbytes(x)) // max(x.shape[0], 1)


def _sums_aside(x: Tensor) -> bool:
    """Whether sums in half precision are made beside the result."""
    return x.itemsize < 4 and not (x.dtype is torch.bfloat16 and onednn.multiplies_bfloat16())


def _of_threads(columns: int, x: Tensor) -> int:
    """Of the columns of all images, those of one for each thread."""
    return columns // max(x.shape[0], 1) * min(x.shape[0], torch.get_num_threads())


def _by_groups(columns: int, given: Sequence[Tensor], made: Tensor, groups: int) -> int:
    """A group after the other, of copied operands; then the results are joined."""
    if groups == 1:
        return columns
    return max(columns + sum(nbytes(v) for v in given) // groups, nbytes(made))


def nbytes(x: Tensor) -> int:
    """Of the elements, not of what they lie in."""
    return x.numel() * x.itemsize


def is_onednns(args: Sequence[Any]) -> bool:
    """Whose `aten.convolution` it is."""
    return _is_onednns(args[0], args[1], *args[3:9])


def _is_onednns(x: Tensor, w: Tensor, *options: Any) -> bool:
    """Whose it is, PyTorch knows: it is asked with tensors of the CPU that have one element."""
    images, weights = (torch.empty(1, dtype=v.dtype, device="cpu").expand(v.shape) for v in (x, w))
    select: Any = torch._C._select_conv_backend  # pyright: ignore
    chosen = select(images, weights, None, *options, None)
    return chosen not in _PYTORCHS


def _blocked(x: Tensor, groups: int = 1) -> int:
    """Bytes of x: [N, C, ...] in the layout that oneDNN computes in."""
    channels = max(x.shape[1], 1)
    lanes = _CHANNELS if groups > 1 or has_wide_vectors() else _LEAST_GROUP
    return nbytes(x) // channels * _padded(channels, lanes)


def _blocked_weights(w: Tensor, groups: int) -> int:
    """The same of weights, both of whose channels are padded in each group, unless it has one."""
    first, second = w.shape[:2]
    if groups > 1 and first == groups and second == 1:
        return _padded(first) * math.prod(w.shape[2:]) * w.itemsize
    padded = groups * _padded(first // groups) * _padded(second)
    return padded * math.prod(w.shape[2:]) * w.itemsize


def _few() -> int:
    """Images of so many channels are read as they lie."""
    return (_CHANNELS if has_wide_vectors() else _LEAST_GROUP) - 1


@functools.cache
def has_wide_vectors() -> bool:
    """Those of 16 floats, which oneDNN uses where PyTorch finds them."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _padded(channels: int, lanes: int = _CHANNELS) -> int:
    return -(-channels // lanes) * lanes


def is_dense(x: Tensor) -> bool:
    """Does it lie as PyTorch's own kernels read it, contiguous or channels_last?"""
    last = LAYOUTS.get(x.dim())
    return x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last))


def lies_last(x: Tensor) -> bool:
    """Whether PyTorch takes x: [N, C, ...] for channels_last: by the strides alone, which of a dim
    of size 1 may be anything. Those of contiguous images of one element are not."""
    if x.dim() not in LAYOUTS or not x.stride(1):
        return False
    least = 0
    for d in (1, *range(x.dim() - 1, 1, -1), 0):
        if not x.shape[d] or x.stride(d) < least or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * x.shape[d]
    return True


def _is_channels_last(*tensors: Tensor) -> bool:
    """Whether one of them asks for it."""
    return any(map(lies_last, tensors))


def _turned(x: Tensor) -> int:
    """A copy in the order that is asked for, where another operand asks."""
    return 0 if x.is_contiguous(memory_format=LAYOUTS[x.dim()]) else nbytes(x)


def _made_plain(x: Tensor, groups: int = 1) -> int:
    """The copy that PyTorch's own convolution reads: of images with channels_last, unless each
    group has its own; of volumes as they are without."""
    if x.dim() == _VOLUMES or groups > 1:
        return 0 if x.is_contiguous() else nbytes(x)
    return _turned(x)


def _columns(
    x: Tensor,
    w: Tensor,
    result: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
) -> int:
    """A row for each element of a window, a column for each place, of all images; where the
    windows have holes, of one image."""
    kernel = w.shape[2:]
    is_plain = all(k == 1 for k in kernel) and all(s == 1 for s in stride) and not any(padding)
    if is_plain:
        return 0
    images = 1 if any(d > 1 for d in dilation) else x.shape[0]
    places = x.shape[2:] if is_transposed else result.shape[2:]
    # a group has its share of the rows, and is computed by itself
    rows = w.shape[1] * math.prod(kernel)
    return images * rows * math.prod(places) * x.itemsize
