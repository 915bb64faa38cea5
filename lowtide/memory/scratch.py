"""What PyTorch's own CPU kernels allocate inside themselves: an upper bound.

In: an ATen op, its arguments and its result. Out: bytes beyond the result. An op that is not in the
table allocates nothing worth counting. The bounds are those of PyTorch 2.11 to 2.13 on x86, found
by measuring: `tests/memory/test_prediction.py` compares them with what is resident.

    kthvalue(x, k)     a copy of x, and the indices of all
    x.t().clone()      a square of 60 by 60, through which it is turned
    median(x, dim)     a copy, unless `dim` is the last
    conv2d(x, w)       see `memory/convolution`
    svd(x), inv(x)     see `memory/linalg`
    huber_loss(x, y)   see `memory/losses`
    fft(x)             see `memory/transforms`
    abs(z)             of complex numbers, as complex numbers
    x + y              of different dtypes: those of another than the result's, converted
    sum(x, dtype)      x, converted
    x @ y              what BLAS cannot read as it lies
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide.memory import attention, convolution, linalg, losses, onednn, transforms

aten = torch.ops.aten
Bound = Callable[[Sequence[Any], Any], int]


def scratch_bytes(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """See the module's text."""
    bound = _bound(func)
    if bound is not None:
        return bound([*args, *kwargs.values()], result)
    if _is_pointwise(func):
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        if func.overloadpacket in _MASKED:
            given = [x for x in given if x.dtype is not torch.bool]
        return _converted(given, result)
    if func.overloadpacket in _SOFTMAX:
        return max(_converted_first(args, result), _made_contiguous(args, result))
    return _converted_first(args, result) if func.overloadpacket in _CONVERT else 0


@functools.cache
def _bound(func: Any) -> Bound | None:
    return _BOUNDS.get(func) or _BY_NAME.get(str(func))


@functools.cache
def runs_twice(func: Any) -> bool:
    """Whether it leaves a hole like its result before it begins."""
    return str(func) in _TWICE


@functools.cache
def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags


def _converted(given: Sequence[torch.Tensor], result: Any) -> int:
    """What is not of the dtype that is computed in: operands, and a result that is rounded."""
    if not isinstance(result, torch.Tensor) or all(x.dtype is result.dtype for x in given):
        return 0
    whole = [x for x in given if x.dim()] or given  # of mere numbers only the kind counts
    numbers = [x for x in whole if x.dtype is not torch.bool] or whole
    common = functools.reduce(torch.promote_types, (x.dtype for x in numbers))
    if result.dtype.is_floating_point and not (common.is_floating_point or common.is_complex):
        common = result.dtype
    converted = [x for x in given if x.dim() and x.dtype is not common]
    if result.dtype not in (common, torch.bool):
        converted.append(result)
    return sum(x.numel() for x in converted) * common.itemsize


def _converted_first(args: Sequence[Any], result: Any) -> int:
    x = args[0]
    if result.dtype is x.dtype:
        return 0
    return x.numel() * result.itemsize


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.itemsize
    if isinstance(value, list | tuple):
        return sum(map(_bytes, cast("Sequence[Any]", value)))
    return 0


def _sum(args: Sequence[Any], result: Any) -> int:
    """In the gradient of an extreme or a median, equal ones are counted when the zeros that they
    are written onto are there already."""
    node: Any = torch._C._current_autograd_node()  # pyright: ignore
    x = getattr(node, "_saved_self", None) if args[0].dtype is torch.bool else None
    zeros = x.itemsize * args[0].numel() if isinstance(x, torch.Tensor) else 0
    return _converted_first(args, result) + zeros


def _copy(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0])


def _turned(args: Sequence[Any], result: Any) -> int:
    """A whole matrix that is copied into rows from columns goes through a square of its own."""
    x = args[1] if len(args) > 1 and isinstance(args[1], torch.Tensor) else args[0]
    is_whole = x.dim() == 2 and x.shape == result.shape and x.stride() == (1, x.shape[0])
    if not (is_whole and x.dtype is result.dtype and result.is_contiguous()):
        return 0
    side = 60 if x.dtype is not torch.uint8 else 120
    return side * side * x.itemsize if x.numel() >= 60 * 60 else 0


def _copy_and_indices(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0]) + 8 * args[0].numel()


def _sampled(args: Sequence[Any], result: Any) -> int:
    """Without replacement, the largest quotients are kept beside their places."""
    replaces = len(args) > 2 and args[2] is True
    return _bytes(args[0]) + (0 if replaces else args[0].itemsize * result.numel())


def _copy_unless_last(args: Sequence[Any], result: Any) -> int:
    dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
    return 0 if dim in (-1, args[0].dim() - 1) else _copy(args, result)


def _mean(args: Sequence[Any], result: Any) -> int:
    """Half precision is summed in single."""
    return 4 * args[0].numel() if args[0].itemsize < 4 else _converted_first(args, result)


def _select_by_mask(args: Sequence[Any], result: Any) -> int:
    """Where threads share the work: a number for each element, and a sum of those before it. One
    alone counts them first, as numbers, which are gone before there is a result."""
    count = max(args[0].numel(), args[1].numel())
    return 16 * count if torch.get_num_threads() > 1 else max(8 * count - _bytes(result), 0)


def _source_copy(args: Sequence[Any], _: Any) -> int:
    source = args[2]
    return 0 if source.is_contiguous() else _bytes(source)


def _sorted(args: Sequence[Any], result: Any) -> int:
    """Integers of one dim by digits, from one memory to another; else a merge of each row."""
    x = args[0]
    if _has_digits(x) and x.dim() == 1:
        return _bytes(result)
    dims = [a for a in args[1:] if type(a) is int]
    return 8 * _rows_at_once(x, dims[0] if dims else -1)


def _best(args: Sequence[Any], _: Any) -> int:
    """Pairs of a value and its place, of a row per thread."""
    x = args[0]
    return 16 * _rows_at_once(x, args[2] if len(args) > 2 else -1)


def _rows_at_once(x: torch.Tensor, dim: int) -> int:
    """Elements along `dim` that the threads have at a time."""
    length = x.shape[dim] if x.dim() else 1
    return min(torch.get_num_threads() * length, x.numel())


def _has_digits(x: torch.Tensor) -> bool:
    return not x.is_floating_point() and x.dtype is not torch.bool


def _distinct(args: Sequence[Any], result: Any) -> int:
    """Sorted values, their places, and marks of where a new one begins; integers are sorted before
    anything of the result is there."""
    x = args[0]
    values, inverse, counts = (v.numel() > 0 for v in result)
    each = x.itemsize * (1 + (inverse or counts)) + 16 + 8 * counts * (1 + inverse)
    sorted_first = 2 * (x.itemsize + 8) if _has_digits(x) else 0
    return max(max(each, sorted_first) * x.numel() - _bytes(result), 0) if values else 0


def _distinct_rows(args: Sequence[Any], _: Any) -> int:
    """A copy, and a tensor for each row."""
    x, dim = args[:2]
    return _bytes(x) + _TENSOR_BYTES * x.shape[dim]


def _contained(args: Sequence[Any], _: Any) -> int:
    """Both are sorted together, unless they are few to look for."""
    given = [x for x in args if isinstance(x, torch.Tensor)]
    return 32 * sum(x.numel() for x in given)


_PACKED_BYTES = 1_300_000  # of a product in bfloat16 whose first matrix is turned


def _for_blas(args: Sequence[Any], result: torch.Tensor) -> int:
    """Copies of matrices of which neither rows nor columns lie side by side, and of rows that are
    to be conjugated. Of turned ones in half precision, in single precision: what is turned, of
    float16 alone, of bfloat16 blocks for each thread; without vectors of 16 floats, for which
    oneDNN has no such products, the sums."""
    matrices = [x for x in args if isinstance(x, torch.Tensor)][-2:]
    copied = sum(_bytes(x) for x in matrices if not _reads_as_it_lies(x))
    first, second = matrices
    is_half = first.dtype in (torch.float16, torch.bfloat16) and first.dim() == 2
    if not is_half or first.stride(-1) == 1 or second.stride(-1) != 1:
        return copied
    if not convolution.has_wide_vectors():
        return copied + 4 * result.numel()
    if first.dtype is torch.float16:
        return copied + 4 * first.numel()
    packed = sum(_bytes(x) for x in matrices)
    return copied + min(packed, _PACKED_BYTES * torch.get_num_threads())


def _reads_as_it_lies(x: torch.Tensor) -> bool:
    return 1 in x.stride()[-2:] and not (x.is_conj() and x.stride(-1) == 1)


def _in_single(args: Sequence[Any], _: Any) -> int:
    """What half precision is written onto."""
    x = args[0]
    return 4 * x.numel() if x.is_floating_point() and x.itemsize < 4 else 0


def _added(args: Sequence[Any], _: Any) -> int:
    """Rows that are sorted by where they go; else see `_in_single`."""
    x, dim, index, source = args[:4]
    is_rows = dim == 0 and source.dim() > 1 and source.numel() > source.shape[0]
    is_same_along = index.dim() == 1 or not any(index.stride()[1:])
    if is_rows and is_same_along:
        return 32 * index.shape[0] + 8 * x.shape[0]
    return 0 if index.dim() == 1 else _in_single(args, None)


def _reduced_onto(args: Sequence[Any], _: Any) -> int:
    """The mean counts what came to each place."""
    x, source, how = args[0], args[3], args[4]
    counts = _bytes(x) + _bytes(source) + (x.numel() if x.itemsize >= 4 else 0)
    return _added(args, None) + (counts if how == "mean" else 0)


def _sorted_bags(args: Sequence[Any], _: Any) -> int:
    """Indices sorted beside the bags that they are in, which may have to be found first."""
    indices, bags = args[1], args[3]
    return (32 if bags.numel() else 40) * indices.numel()


def _bags(args: Sequence[Any], _: Any) -> int:
    return 16 * args[2].numel()


def _places_along(args: Sequence[Any], _: Any) -> int:
    """A number for each place of the dim that was unfolded."""
    return 8 * args[1][args[2]]


def _one_dim_less(args: Sequence[Any], result: torch.Tensor) -> int:
    """Rows are made narrower or wider, then columns."""
    x = args[0]
    return x.numel() // max(x.shape[-1], 1) * result.shape[-1] * x.itemsize


def _line_weights(_: Sequence[Any], result: torch.Tensor) -> int:
    """Two neighbours of each place, and their weights."""
    return 24 * result.shape[-1]


def _homogeneous(_: Sequence[Any], result: torch.Tensor) -> int:
    """Each place, and a one."""
    dims = result.shape[-1]
    return _bytes(result) // max(dims, 1) * (dims + 1)


def of_complex(args: Sequence[Any], _: Any) -> int:
    return _bytes(args[0]) if args[0].is_complex() else 0


def _made_contiguous(args: Sequence[Any], _: Any) -> int:
    """Copies of what does not lie in the order that the op reads."""
    given = [x for x in args if isinstance(x, torch.Tensor) and x.dim() > 1]
    return sum(_bytes(x) for x in given if not convolution.is_dense(x))


def _trilinear(args: Sequence[Any], _: Any) -> int:
    """The first two multiplied, at one place of the dim that is gone through one by one."""
    first, second, _third, lacks_first, lacks_second, lacks_third, summed, *rest = args
    dims = range(first.dim() + len(lacks_first))
    one_by_one = rest[0] if rest else 1
    gone = {one_by_one, *(d for d in summed if d in lacks_third)}

    def sizes(x: torch.Tensor, lacks: Sequence[int]) -> list[int]:
        own = iter(x.shape)
        return [1 if d in lacks else next(own) for d in dims]

    wide = map(max, sizes(first, lacks_first), sizes(second, lacks_second))
    return math.prod(n for d, n in enumerate(wide) if d not in gone) * first.itemsize


def _second_made_contiguous(args: Sequence[Any], _: Any) -> int:
    return _made_contiguous(args[1:2], None)


def _flags(args: Sequence[Any], _: Any) -> int:
    """A flag for each element."""
    return args[0].numel()


def _copies_between(args: Sequence[Any], _: Any) -> int:
    """One dim after the other."""
    dims = args[2] if len(args) > 2 else ()
    return _bytes(args[0]) if len(dims) > 1 else 0


def mask_indices(args: Sequence[Any], _: Any) -> int:
    """A mask becomes the indices of all its dims."""
    items = [x for x in args[1] if x is not None and x.dtype in (torch.bool, torch.uint8)]
    return sum(8 * x.numel() * x.dim() for x in items)


def _mask_written(args: Sequence[Any], result: Any) -> int:
    """But for one number that is filled in where a mask is true."""
    adds = len(args) > 3 and args[3]
    given = [x for x in args[1] if x is not None]
    if args[2].numel() == 1 and not adds and len(given) == 1:
        return 0
    return mask_indices(args, result)


_TENSOR_BYTES: Final = 240  # of a tensor, besides its elements
_CONVERT = {aten.sum, aten.prod, aten.cumsum, aten.cumprod, aten.linalg_vector_norm}
_SOFTMAX = {aten._softmax, aten._log_softmax}

_MASKED = {aten.where, aten.masked_fill, aten.masked_fill_}  # masks are read as they are

_BY_NAME: dict[str, Bound] = {  # of what PyTorch has where its compiler was imported
    "prims.fma.default": lambda _, result: _bytes(result),  # a product, and then a sum
}
_TWICE: Final = {"prims.fma.default"}  # computes all once before, for the form of its result
_BOUNDS: dict[Any, Bound] = {
    aten.clone.default: _turned,
    aten.copy_.default: _turned,
    aten._to_copy.default: _turned,
    aten.kthvalue.default: _copy_and_indices,
    aten.median.default: _copy,
    aten.nanmedian.default: _copy,
    aten.median.dim: _copy_unless_last,
    aten.nanmedian.dim: _copy_unless_last,
    aten.convolution.default: convolution.forward_scratch,
    aten.convolution_backward.default: convolution.backward_scratch,
    aten.mkldnn_rnn_layer.default: onednn.layer_scratch,
    aten.mkldnn_rnn_layer_backward.default: onednn.layer_backward_scratch,
    aten._scaled_dot_product_flash_attention_for_cpu.default: attention.scratch,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: attention.backward_scratch,
    aten._native_multi_head_attention.default: attention.native_scratch,
    aten.abs.default: of_complex,
    **dict.fromkeys(
        (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default), _for_blas
    ),
    aten.native_batch_norm_backward.default: _second_made_contiguous,
    aten._trilinear.default: _trilinear,
    aten.sum.default: _sum,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.logsumexp.default: _copy,
    aten.multinomial.default: _sampled,
    aten.roll.default: _copies_between,
    aten._safe_softmax.default: _flags,
    **dict.fromkeys(
        (
            aten.native_layer_norm.default,
            aten.native_layer_norm_backward.default,
            aten.native_group_norm.default,
            aten.native_group_norm_backward.default,
            aten.avg_pool2d.default,
            aten.avg_pool3d.default,
            aten.max_pool2d_with_indices.default,
            aten.max_pool3d_with_indices.default,
            aten.im2col.default,
            aten._softmax_backward_data.default,
            aten._log_softmax_backward_data.default,
            aten.col2im.default,
        ),
        _made_contiguous,
    ),
    **losses.BOUNDS,
    aten.masked_select.default: _select_by_mask,
    aten.masked_scatter.default: _source_copy,
    aten.masked_scatter_.default: _source_copy,
    aten.masked_scatter_backward.default: _select_by_mask,
    aten.sort.default: _sorted,
    aten.sort.stable: _sorted,
    aten.topk.default: _best,
    aten._unique2.default: _distinct,
    aten.unique_dim.default: _distinct_rows,
    aten.isin.Tensor_Tensor: _contained,
    aten.index.Tensor: mask_indices,
    aten.index_put.default: _mask_written,
    aten.index_put_.default: _mask_written,
    aten._index_put_impl_.default: _mask_written,
    **dict.fromkeys((aten.scatter.src, aten.scatter_.src), _in_single),
    **dict.fromkeys(
        (
            aten.scatter_add.default,
            aten.scatter_add_.default,
            aten.index_add.default,
            aten.index_add_.default,
        ),
        _added,
    ),
    **dict.fromkeys((aten.scatter_reduce.two, aten.scatter_reduce_.two), _reduced_onto),
    aten._embedding_bag_backward.default: _sorted_bags,
    aten._embedding_bag_per_sample_weights_backward.default: _bags,
    **transforms.BOUNDS,
    aten.unfold_backward.default: _places_along,
    aten._upsample_bilinear2d_aa.default: _one_dim_less,
    aten._upsample_bicubic2d_aa.default: _one_dim_less,
    aten.upsample_linear1d.default: _line_weights,
    aten.affine_grid_generator.default: _homogeneous,
    **linalg.BOUNDS,
}
