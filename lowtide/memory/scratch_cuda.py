"""What PyTorch's kernels for GPUs allocate inside themselves: an upper bound.

In: an ATen op, its arguments and its result. Out: bytes of PyTorch's allocator beyond the result.
An op that is not in the tables allocates nothing worth counting: operands of other dtypes are read
as they are, where a kernel of the CPU would have them converted. What is not bounded: what cuDNN
takes for convolutions and attention, cuSOLVER and cuFFT for themselves.

    sort(x, dim)              rows of over 4096: values and places, twice
    topk(x, k, dim)           counts of digits, of each part of a row
    index_put_(x, i, v, True) places, sorted beside their order, twice
    masked_scatter(x, m, y)   a number for each element
    softmax(x, dim)           a copy, of what does not lie as its dims are counted
    sum(x, 0)                 parts of each column: see reductions_cuda
    conv2d(x, w)              without cuDNN the columns of one image
    inv(x), fft(x)            copies, as on the CPU

Read from what the allocator was asked for by PyTorch 2.11 built with CUDA 13; the simulated GPU of
`tests/simulated` measures it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.memory import (
    attention,
    attention_cuda,
    cudnn,
    linalg,
    losses,
    reductions_cuda,
    transforms,
)
from lowtide.memory.convolution import nbytes
from lowtide.memory.scratch import mask_indices, of_complex

aten = torch.ops.aten
Bound = Callable[[Sequence[Any], Any], int]

BLOCK_BYTES: Final = 512  # to whose multiples PyTorch's allocator rounds
_SMALL_ROW: Final = 4096  # elements that are sorted in place by one block of threads
_FEW_ROWS: Final = 128  # fewer are sorted together, beside the number of their row
_LONG_ROW: Final = 1_000_000  # elements, from which on rows are sorted one after the other
_AT_ONCE: Final = 1 << 31  # elements
_PART: Final = 1024  # the fewest elements of a row that one block of threads counts the digits of
_PART_BYTES, _ROW_BYTES = 512, 1100  # for each of these, and for each row
_WORK_BYTES: Final = 1 << 16
_PLACES_BYTES: Final = 48  # of each index that is sorted, with all that sorting takes


def scratch_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """See the module's text."""
    given = [*args, *kwargs.values()]
    bound = _BOUNDS.get(func)
    inside = 0 if bound is None else bound(given, result)
    if func.overloadpacket in _READ_IN_ORDER:
        operands = (x for x in given if isinstance(x, torch.Tensor))
        inside += sum(nbytes(x) for x in operands if not x.is_contiguous())
    return rounded(inside)


def rounded(asked_bytes: int) -> int:
    """The least block that PyTorch's allocator hands out for a tensor."""
    return -(-asked_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _sorting(rows: int, length: int, itemsize: int) -> int:
    if length <= _SMALL_ROW:
        return 8 * (rows + length)
    pairs = itemsize + 8  # a value and its place
    if rows == 1 or length >= _LONG_ROW:
        count, each = length, pairs + 8
    elif rows < _FEW_ROWS:
        count, each = rows * length, 2 * pairs + 8
    else:
        count, each = rows * length, pairs + 8
    count = min(count, _AT_ONCE)
    return count * each + count // 4 + _WORK_BYTES


def _rows_of(x: torch.Tensor, dim: int) -> tuple[int, int]:
    length = x.shape[dim] if x.dim() else 1
    return x.numel() // max(length, 1), length


def _sorted(args: Sequence[Any], _: Any) -> int:
    """Long rows are sorted where they lie in order; else values are copied there, and sorted values
    and places from there."""
    x = args[0]
    dims = [a for a in args[1:] if type(a) is int]
    dim = dims[0] if dims else -1
    rows, length = _rows_of(x, dim)
    is_turned = length > _SMALL_ROW and (x.stride(dim) != 1 or not x.is_contiguous())
    turned = x.numel() * (2 * x.itemsize + 8) if is_turned else 0
    return _sorting(rows, length, x.itemsize) + turned


def _middle(args: Sequence[Any], _: Any) -> int:
    """All are sorted, in one row."""
    x = args[0]
    return _sorting(1, x.numel(), x.itemsize) + x.numel() * (x.itemsize + 8)


def _best(args: Sequence[Any], _: Any) -> int:
    """The best of a row are found, then sorted."""
    x, k = args[:2]
    rows, length = _rows_of(x, args[2] if len(args) > 2 else -1)
    counts = rows * (_ROW_BYTES + -(-length // _PART) * _PART_BYTES)
    if k <= _SMALL_ROW:
        return counts
    return counts + _sorting(rows, k, x.itemsize) + rows * k * (2 * x.itemsize + 24)


def _distinct(args: Sequence[Any], result: Any) -> int:
    """Sorted values; their places, and marks of where a new one begins, if these are asked for."""
    x = args[0]
    each = 2 * x.itemsize + (16 if any(found.numel() for found in result[1:]) else 0)
    taken = x.numel() * each + x.numel() // 4 + _WORK_BYTES
    return max(taken - sum(map(nbytes, result)), 0)


def _numbered(args: Sequence[Any], _: Any) -> int:
    """A number for each element: what came before it in a mask."""
    count = max(args[0].numel(), args[1].numel())
    return 8 * count + count // 4


def _put(args: Sequence[Any], result: Any) -> int:
    """What is added is sorted by where it goes; so it is where the same has to come out each
    time. A number of the CPU's is filled in where a mask is true."""
    adds = len(args) > 3 and args[3]
    given = [x for x in args[1] if x is not None]
    if not adds and not args[2].is_meta and [x.dtype for x in given] == [torch.bool]:
        return 0
    found = mask_indices(args, result)
    if not adds and not torch.are_deterministic_algorithms_enabled():
        return found
    places = max((x.numel() for x in given), default=0)
    return found + _places(places) + nbytes(args[2])


def _added(args: Sequence[Any], _: Any) -> int:
    """By atomic additions, unless the same has to come out each time."""
    if not torch.are_deterministic_algorithms_enabled():
        return 0
    index, source = args[2:4]
    return _places(index.numel()) + nbytes(source) + 8 * index.dim() * index.numel()


def _reduced_onto(args: Sequence[Any], result: Any) -> int:
    """The mean counts what came to each place."""
    x, source, how = args[0], args[3], args[4]
    counts = nbytes(x) + nbytes(source) + x.numel() if how == "mean" else 0
    return _added(args, result) + counts


def _reduced_along(args: Sequence[Any], _: Any) -> int:
    """The same, by index_reduce."""
    counts = nbytes(args[0]) + nbytes(args[3]) + args[0].numel()
    return counts if args[4] == "mean" else 0


def _copy_in_order(args: Sequence[Any], _: Any) -> int:
    """Beside the operand, its results."""
    return 0 if args[0].is_contiguous() else nbytes(args[0])


def _places(count: int) -> int:
    return count * _PLACES_BYTES + count // 4 + _WORK_BYTES


def _rows_gathered(args: Sequence[Any], result: torch.Tensor) -> int:
    """Indices are sorted; runs of one index are summed in parts of ten."""
    if result.layout is not torch.strided:
        return 0
    count = args[1].numel()
    rows, width = result.shape
    return _places(count) + 4 * width * (-(-count // 10) + min(count, rows))


def _sampled(args: Sequence[Any], result: Any) -> int:
    """Quotients, of which the largest are kept; or sums of the weights before each."""
    x = args[0]
    return 2 * nbytes(x) + _best((x, result.shape[-1]), None)


def _in_order(args: Sequence[Any], _: Any) -> int:
    """Numbers that are sorted, and their order."""
    return args[0] * 40 + args[0] // 4 + _WORK_BYTES


def _summed(args: Sequence[Any], result: Any) -> int:
    """Converted before, unless halves become single."""
    x = args[0]
    is_read = result.dtype is x.dtype or (result.dtype is torch.float32 and x.itemsize == 2)
    return 0 if is_read else x.numel() * result.itemsize


def _reduced(args: Sequence[Any], result: Any) -> int:
    return _summed(args, result) + reductions_cuda.sums(args, result)


def _scanned(args: Sequence[Any], result: Any) -> int:
    """Of one row, sums of its parts."""
    x = args[0]
    is_one_row = x.numel() == max(x.shape, default=1)
    return _summed(args, result) + (x.numel() // 32 + 8192 if is_one_row else 0)


def _for_blas(args: Sequence[Any], _: Any) -> int:
    """Copies of matrices whose rows, or columns, do not lie side by side one after the other, and
    of rows that are to be conjugated."""
    matrices = [x for x in args if isinstance(x, torch.Tensor)][-2:]
    return sum(nbytes(x) for x in matrices if x.dim() > 1 and not _reads_as_it_lies(x))


def _reads_as_it_lies(x: torch.Tensor) -> bool:
    (rows, columns), (across, along) = x.shape[-2:], x.stride()[-2:]
    by_rows = along == 1 and across >= max(columns, 1) and not x.is_conj()
    return by_rows or (across == 1 and along >= max(rows, 1))


def _infinite(args: Sequence[Any], _: Any) -> int:
    """Whether a number is minus infinity, and whether all of a row are."""
    x, dim = args[:2]
    return x.numel() + x.numel() // max(x.shape[dim], 1)


def _softmax_back(args: Sequence[Any], _: Any) -> int:
    """The cotangent times the result."""
    return max(nbytes(args[0]), nbytes(args[1]))


def _columns(args: Sequence[Any], result: torch.Tensor) -> int:
    x, groups = args[0], args[8]
    inside = _of_one_image(x, args[1], result, args[6], groups)
    return _by_groups(inside, x, result, groups)


def _columns_back(args: Sequence[Any], result: Any) -> int:
    cotangent, x, w = args[:3]
    inside = _of_one_image(x, w, cotangent, args[7], args[9])
    made = result[0] if result[0] is not None else result[1]
    return inside if made is None else _by_groups(inside, cotangent, made, args[9])


def _by_groups(inside: int, x: torch.Tensor, made: torch.Tensor, groups: int) -> int:
    """Without cuDNN one group after the other, whose results are joined."""
    if groups == 1 or not inside or torch.backends.cudnn.enabled:
        return inside
    one = nbytes(made) // (made.shape[0] * groups)
    return max(nbytes(made) + one, inside + nbytes(x) // groups)


def _of_one_image(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, transposed: bool, groups: int
) -> int:
    """A column for each place of the smaller side, as large as a filter; none by channels."""
    if not transposed and groups == x.shape[1] > 1:
        return 0
    small = x if transposed else y
    places = small[0, 0].numel() if small.dim() > 2 and small.numel() else 0
    return math.prod(w.shape[1:]) * places * x.itemsize


def _matrices(args: Sequence[Any], _: Any) -> int:
    """Copies of the operands."""
    return sum(nbytes(x) for x in args if isinstance(x, torch.Tensor))


_SOLVED: Final = (
    aten._linalg_solve_ex.default,
    aten.linalg_solve_triangular.default,
    aten.linalg_cholesky_ex.default,
    aten.linalg_lu_factor_ex.default,
    aten.linalg_lu_solve.default,
    aten.linalg_householder_product.default,
)

_READ_IN_ORDER: Final = {
    aten.topk, aten.kthvalue, aten.median, aten.nanmedian, aten.cumsum, aten.cumprod, aten.cummax,
    aten.cummin, aten.logcumsumexp, aten._softmax, aten._log_softmax, aten._softmax_backward_data,
    aten._log_softmax_backward_data, aten.native_layer_norm, aten.native_layer_norm_backward,
    aten.native_group_norm, aten.native_group_norm_backward, aten.nll_loss_forward,
    aten.nll_loss_backward, aten.searchsorted, aten.bucketize, aten.roll, aten.histc, aten._unique2,
    aten.max_pool2d_with_indices, aten.max_pool3d_with_indices, aten.avg_pool2d, aten.avg_pool3d,
    aten.upsample_nearest2d, aten.upsample_bilinear2d, aten._adaptive_avg_pool2d, aten.convolution,
    aten.convolution_backward, aten.im2col, aten.col2im, aten.embedding_dense_backward,
    aten._cdist_forward, aten.multinomial, aten.masked_select, aten.native_batch_norm,
    aten.native_batch_norm_backward,
}  # fmt: skip

_BOUNDS: dict[Any, Bound] = {
    **losses.BOUNDS,
    **transforms.BOUNDS,
    **linalg.BOUNDS,
    **dict.fromkeys(_SOLVED, _matrices),
    aten.sort.default: _sorted,
    aten.sort.stable: _sorted,
    aten.topk.default: _best,
    aten.median.default: _middle,
    aten.nanmedian.default: _middle,
    aten.mode.default: linalg.copied,
    aten.native_batch_norm.default: _copy_in_order,
    **dict.fromkeys(
        (aten.cumsum.default, aten.cumprod.default, aten.logcumsumexp.default), _scanned
    ),
    aten.index_reduce.default: _reduced_along,
    aten.abs.default: of_complex,
    **dict.fromkeys((aten.scatter_reduce.two, aten.scatter_reduce_.two), _reduced_onto),
    aten._unique2.default: _distinct,
    aten.masked_scatter.default: _numbered,
    aten.masked_scatter_.default: _numbered,
    aten.masked_select.default: _numbered,
    aten.masked_scatter_backward.default: _numbered,
    aten.index.Tensor: mask_indices,
    aten.index_put.default: _put,
    aten.index_put_.default: _put,
    aten._index_put_impl_.default: _put,
    **dict.fromkeys(
        (
            aten.scatter_add.default,
            aten.scatter_add_.default,
            aten.index_add.default,
            aten.index_add_.default,
        ),
        _added,
    ),
    aten.embedding_dense_backward.default: _rows_gathered,
    aten._embedding_bag_backward.default: _rows_gathered,
    aten._native_multi_head_attention.default: attention.native_scratch,
    aten.multinomial.default: _sampled,
    aten.randperm.default: _in_order,
    **dict.fromkeys(
        (
            aten.sum.default,
            aten.sum.dim_IntList,
            aten.mean.default,
            aten.mean.dim,
            aten.prod.default,
            aten.prod.dim_int,
            aten.linalg_vector_norm.default,
        ),
        _reduced,
    ),
    **dict.fromkeys((aten.amax.default, aten.amin.default), reductions_cuda.extremes),
    **dict.fromkeys(
        (
            aten.var.correction,
            aten.std.correction,
            aten.var_mean.correction,
            aten.std_mean.correction,
        ),
        reductions_cuda.variances,
    ),
    aten.logsumexp.default: linalg.copied,
    aten.im2col.default: linalg.copied,
    **dict.fromkeys(
        (
            aten.mm.default,
            aten.addmm.default,
            aten.bmm.default,
            aten.baddbmm.default,
            aten.mv.default,
            aten.addmv.default,
        ),
        _for_blas,
    ),
    aten._cudnn_rnn.default: cudnn.rnn_scratch,
    aten._cudnn_rnn_backward.default: cudnn.rnn_backward_scratch,
    aten._softmax_backward_data.default: _softmax_back,
    aten._safe_softmax.default: _infinite,
    aten._scaled_dot_product_flash_attention.default: attention_cuda.flash_scratch,
    aten._scaled_dot_product_flash_attention_backward.default: (
        attention_cuda.flash_backward_scratch
    ),
    aten._scaled_dot_product_efficient_attention.default: attention_cuda.efficient_scratch,
    aten._scaled_dot_product_efficient_attention_backward.default: (
        attention_cuda.efficient_backward_scratch
    ),
    aten.convolution.default: _columns,
    aten.convolution_backward.default: _columns_back,
}
