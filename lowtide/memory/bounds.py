"""Upper bounds of the scratch memory of PyTorch's ops: what they allocate besides their results.

In: an ATen op, its arguments and its result. Out: bytes, or None for an op that is not in the
table. For such an op the ledger counts the bytes of its largest operand, and names the op in a
note.

    sort(x, dim)       0: PyTorch sorts in the results
    kthvalue(x, k)     a copy of x, and an index of 8 bytes for each element
    conv2d(x, w)       copies of x, w and the result, in the layout of the library
    x + y              the operands whose dtype is not the result's, converted

Each bound is a function of sizes and dtypes only. It does not model a vendor's library or a
version, so a measured peak may exceed it by a factor of 1.25 plus 16 MB.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from lowtide.memory import layouts
from lowtide.torch_private.dispatch import schema_of
from lowtide.torch_private.pytree import tensors_in

Tensor = torch.Tensor
Bound = Callable[["Call"], int]

UNKNOWN: Final = (
    "the scratch memory of `{}` is not known: counted as the size of its largest operand"
)
_OURS: Final = ("aten", "prims")  # namespaces
_BLOCK_BYTES: Final = 512  # PyTorch's GPU allocator rounds up to multiples of this
_INDEX_BYTES, _SINGLE_BYTES = 8, 4  # of an int64 and of a float32
_SORTED_BYTES: Final = 48  # for each index that is sorted with its permutation
_PARTIAL_SUMS_BYTES: Final = 32_000_000  # the most that a GPU's reduction stores of partial sums
_ROW_BYTES: Final = 2048  # of a radix select's histograms, for each row on GPUs
_SHORT_ROW: Final = 4096  # elements
_QUERIES, _KEYS = 256, 512  # tile of the CPU's attention kernel, for each thread


class Call:
    """A call of an op. `given`: the tensors among its arguments. `made`: its results."""

    def __init__(self, args: Sequence[Any], result: Any, on_host: bool) -> None:
        self.args, self.on_host = args, on_host
        self.given, self.made = tensors_in(args), tensors_in(result)


def scratch(
    op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, on_host: bool
) -> int | None:
    """Return the bound in bytes, None for unknown ops. `on_host`: on the CPU, else on a GPU."""
    call = Call([*args, *kwargs.values()], result, on_host)
    bound = _bound(op)
    return 0 if not (call.given and call.made) else None if bound is None else bound(call)


def largest_operand(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the bytes of the largest operand."""
    return max(map(nbytes, tensors_in([*args, *kwargs.values()])), default=0)


def rounded(requested_bytes: int) -> int:
    """Return the block size that PyTorch's GPU allocator uses for these bytes."""
    return -(-requested_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


def nbytes(x: Tensor) -> int:
    """Return the bytes of the elements, not of the storage."""
    return x.numel() * x.itemsize


@functools.cache
def _bound(op: Any) -> Bound | None:
    """Look the op up by its name, then without the suffix of in-place and backward forms, then
    without the number of dims. Views allocate nothing; custom ops are unknown."""
    if op.namespace not in _OURS:
        return None
    name = op.overloadpacket.__name__
    plain = name.removesuffix("_").removesuffix("_backward")
    for key in (name, name.removesuffix("_"), plain, re.sub(r"\dd", "", plain)):
        if key in _BOUNDS:
            return _BOUNDS[key]
    if torch.Tag.pointwise in op.tags:
        return _converted
    return _nothing if any(r.alias_info is not None for r in schema_of(op).returns) else None


# -- bounds ----------------------------------------------------------------------------------------


def _nothing(_: Call) -> int:
    return 0


def _converted(call: Call) -> int:
    """Return the bytes of operands converted to the widest dtype."""
    wide = [x for x in call.given + call.made[:1] if x.dim() and x.dtype is not torch.bool]
    if not call.on_host or not wide:
        return 0
    common = functools.reduce(torch.promote_types, (x.dtype for x in wide))
    return sum(x.numel() for x in wide if x.dtype is not common) * common.itemsize


def _in_order(call: Call) -> int:
    """Return the bytes of copies of operands that are neither contiguous nor channels-last."""
    return sum(nbytes(x) for x in call.given if not layouts.is_dense(x))


def _copies(times: int, indices: int = 0) -> Bound:
    """Return the bound of `times` copies of the largest operand and `indices` for each element."""

    def bound(call: Call) -> int:
        x = max(call.given, key=nbytes)
        return times * nbytes(x) + indices * _INDEX_BYTES * x.numel()

    return bound


def _on(host: Bound, gpu: Bound) -> Bound:
    return lambda call: (host if call.on_host else gpu)(call)


def _halves(call: Call) -> int:
    """Return the bytes of half-precision operands in single precision."""
    halves = [x for x in call.given if x.is_floating_point() and x.itemsize < _SINGLE_BYTES]
    return sum(_SINGLE_BYTES * x.numel() for x in halves)


def _widened(call: Call) -> int:
    """Return the bytes of the operand in the accumulation dtype."""
    x, y = call.given[0], call.made[0]
    return max(_halves(call), x.numel() * y.itemsize * (x.dtype is not y.dtype))


def _partial_sums(call: Call) -> int:
    """Return the bytes of the partial sums of a GPU's blocks."""
    return min(2 * nbytes(call.given[0]), _PARTIAL_SUMS_BYTES) + _in_order(call)


def _sorted(call: Call) -> int:
    """Return the scratch of a sort. The CPU sorts each row in place, and a copy of a 1-d tensor; a
    GPU sorts short rows in place."""
    x, dims = call.given[0], [a for a in call.args if type(a) is int]
    if call.on_host:
        return _copies(1, 1)(call) if x.dim() == 1 else 0
    is_short = x.dim() == 0 or x.shape[dims[0] if dims else -1] <= _SHORT_ROW
    return 0 if is_short else _copies(1, 4)(call)


def _digits(call: Call) -> int:
    """A GPU counts the digits of each row (a radix select) and sorts the k best."""
    x = call.given[0]
    rows = x.numel() // max(x.shape[-1] if x.dim() else 1, 1)
    return nbytes(x) + 3 * sum(map(nbytes, call.made)) + _ROW_BYTES * rows


def _masks(call: Call) -> int:
    """A mask becomes indices along each of its dims."""
    found = [x for x in call.given[1:] if x.dtype in (torch.bool, torch.uint8)]
    return sum(_INDEX_BYTES * x.numel() * x.dim() for x in found)


def _put(call: Call) -> int:
    """Masks become indices, unless a single number is filled in. With `accumulate`, a GPU sorts the
    values by their index."""
    values, adds = call.given[-1], True in call.args[3:4]
    if values.numel() == 1 and not adds:
        return 0
    is_sorted = adds and not call.on_host
    return _masks(call) + is_sorted * (_SORTED_BYTES * values.numel() + nbytes(values))


def _added(call: Call) -> int:
    """Source rows are sorted by their index, on GPUs only if results must be deterministic; a mean
    needs counts."""
    x, source = call.given[0], call.given[-1]
    mean = 2 * nbytes(x) if "mean" in call.args else 0
    if not call.on_host:
        is_sorted = torch.are_deterministic_algorithms_enabled()
        return mean + is_sorted * (_SORTED_BYTES * source.numel() + nbytes(source))
    rows = x.shape[0] + source.shape[0] if source.dim() > 1 else 0
    return mean + _halves(call) + _SORTED_BYTES * rows


def _sorted_indices(call: Call) -> int:
    """Indices are sorted with their permutation; a GPU also stores partial sums of equal ones."""
    indices = max((x.numel() for x in call.given if not x.is_floating_point()), default=0)
    return _SORTED_BYTES * indices + (0 if call.on_host else nbytes(call.made[0]))


def _for_products(call: Call) -> int:
    """Copies of matrices without a dim of stride 1, and of conjugated ones."""
    matrices = [x for x in call.given if x.dim() > 1][-2:]
    return sum(nbytes(x) for x in matrices if 1 not in x.stride()[-2:] or x.is_conj())


def _convolution(call: Call) -> int:
    x, w = call.given[:2]
    return _windows(x, w, call.made[0], call.args[3:9], call.on_host)


def _convolution_backward(call: Call) -> int:
    cotangent, x, w = call.given[:3]
    return _windows(x, w, cotangent, call.args[4:10], call.on_host)


def _windows(x: Tensor, w: Tensor, y: Tensor, how: Sequence[Any], on_host: bool) -> int:
    """Return the scratch of a convolution. A library copies all operands into its own layout.
    PyTorch's own kernel makes the im2col matrix: a row for each element of a window, a column for
    each output position."""
    if not on_host or layouts.is_onednns(x, w, *how):
        return nbytes(x) + nbytes(w) + nbytes(y)
    _, _, dilation, is_transposed, *_ = how
    images = 0 if max(w.shape[2:]) == 1 else x.shape[0] if max(dilation) == 1 else 1
    positions = math.prod((x if is_transposed else y).shape[2:])
    columns = images * math.prod(w.shape[1:]) * positions * x.itemsize
    return columns + max(nbytes(x), nbytes(y))


def _scores(call: Call) -> int:
    """Return the scratch of the fused op of `nn.MultiheadAttention` or an encoder layer. It is
    twice the larger of the scores of all pairs and the feed-forward layer's values, plus queries,
    keys and values."""
    x, *weights = call.given
    heads = next(a for a in (*call.args[4:5], call.args[2]) if type(a) is int)
    batch, length, width = x.shape
    wide = max((w.shape[0] for w in weights if w.dim() == 2), default=width)
    numbers = batch * length * max(heads * length, wide)
    return 2 * numbers * x.itemsize + 5 * nbytes(x)


def _tiles(call: Call) -> int:
    """Return the bytes of the scores of a tile for each CPU thread, and of a contiguous copy of the
    queries."""
    q = call.given[0]
    each = min(_QUERIES, q.shape[2]) * (2 * _KEYS + q.shape[3]) * max(q.itemsize, _SINGLE_BYTES)
    return torch.get_num_threads() * each + nbytes(q)


_TABLE: Final[dict[str, Bound]] = {
    "bernoulli normal uniform random exponential rand_like randn_like randint_like empty_like "
    "zeros_like ones_like full_like new_empty new_zeros new_ones new_full new_empty_strided fill "
    "zero lift lift_fresh copy clone _to_copy _unsafe_view view_copy cat stack repeat flip tril "
    "rot90 triu trace diag_embed diagonal gather index_select index_copy index_fill embedding take "
    "put scatter slice select slice_scatter select_scatter diagonal_scatter as_strided_scatter "
    "unfold constant_pad_nd reflection_pad replication_pad pixel_shuffle pixel_unshuffle "
    "channel_shuffle native_channel_shuffle complex polar equal max min amax amin aminmax any all "
    "argmax argmin cummax cummin _cummax_helper _cummin_helper searchsorted bucketize histc "
    "bincount dot vdot native_dropout rrelu_with_noise nll_loss_forward nll_loss "
    "multi_margin_loss _ctc_loss multilabel_margin_loss_forward multilabel_margin_loss "
    "linalg_cross grid_sampler_ _cdist _pdist_forward _pdist _embedding_bag "
    "_embedding_bag_forward_only embedding_renorm glu unique_consecutive _local_scalar_dense "
    "_safe_softmax log_sigmoid_forward _prelu_kernel": _nothing,
    "hardswish hardtanh softplus elu log_sigmoid addr": _converted,
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training batch_norm cudnn_batch_norm _fused_rms_norm "
    "_weight_norm_interface avg_pool max_pool_with_indices _adaptive_avg_pool adaptive_max_pool "
    "fractional_max_pool max_unpool upsample_nearest _upsample_nearest_exact upsample_linear "
    "upsample_bilinear upsample_bicubic upsample_trilinear": _in_order,
    "sum mean prod nansum linalg_vector_norm norm var std var_mean std_mean count_nonzero":
        _on(_widened, _partial_sums),
    "cumsum cumprod logcumsumexp": _on(_widened, _in_order),
    "_softmax _log_softmax": _on(lambda call: _in_order(call) + _widened(call), _in_order),
    "_softmax_backward_data _log_softmax_backward_data": _on(_in_order, _copies(1)),
    "logsumexp roll renorm multinomial _cdist_forward affine_grid_generator unique_dim huber_loss "
    "fma _upsample_bilinear_aa _upsample_bicubic_aa binary_cross_entropy _ctc_loss_backward "
    "_fft_c2c _fft_r2c _fft_c2r": _copies(1),
    "median nanmedian mode": _on(_copies(1), _copies(0, 4)),
    "kthvalue": _copies(1, 1),
    "sort": _sorted,
    "topk": _on(_nothing, _digits),
    "_unique2 isin": _copies(1, 2),
    "masked_select masked_scatter_backward nonzero": _copies(0, 2),
    "masked_scatter": _on(_in_order, _copies(0, 2)),
    "index": _masks,
    "index_put _index_put_impl": _put,
    "scatter_add index_add scatter_reduce index_reduce": _added,
    "embedding_dense_backward _embedding_bag_backward _embedding_bag_per_sample_weights_backward":
        _sorted_indices,
    "mm addmm bmm baddbmm mv addmv _addmm_activation": _for_products,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "_native_multi_head_attention _transformer_encoder_layer_fwd": _scores,
    "_scaled_dot_product_flash_attention_for_cpu": _tiles,
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward": _copies(6),
    "mse_loss smooth_l1_loss soft_margin_loss": _halves,
    "linalg_pinv": _copies(3),
    "linalg_matrix_exp": _copies(16),
    "linalg_inv_ex _linalg_solve_ex linalg_solve_triangular linalg_cholesky_ex linalg_lu "
    "linalg_lu_factor_ex linalg_lu_solve linalg_householder_product linalg_lstsq cholesky_solve "
    "cholesky_inverse triangular_solve lu_unpack _linalg_det _linalg_slogdet _euclidean_dist "
    "_linalg_svd _linalg_eigh linalg_eig linalg_qr im2col col2im soft_margin_loss_backward "
    "binary_cross_entropy_with_logits _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention": _copies(2),
}  # fmt: skip
_BOUNDS: Final = {name: bound for names, bound in _TABLE.items() for name in names.split()}
