"""The functions of PyTorch that a saved program may call: a positive list, by target.

In: nothing. Out: `may_call`, whether a file may have a target in `call_torch` and `mutate`;
`TARGETS`, the targets outside `torch.ops.aten`; `TENSOR_METHODS`, for `py.call_method`.

    may_call("torch.relu")  may_call("torch.ops.aten.relu.default")  not may_call("torch.load")

Invariant: no listed function touches files, processes, the network, pickles, raw addresses, memory
of other objects or settings of the process. A function that is not listed, such as a new one of a
later PyTorch, is refused. Methods that are pure by their schemas need no entry.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

import torch

from lowtide.ir import recomputed
from lowtide.torch_private import torch_jit
from lowtide.torch_private.private_names import FAST_PATHS
from lowtide.torch_private.private_names import NN as NN_PATH


def names_in(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


TENSOR_METHODS: Final = names_in(
    """
    abs abs_ absolute absolute_ acos acos_ acosh acosh_ add add_ addbmm addbmm_ addcdiv addcdiv_
    addcmul addcmul_ addmm addmm_ addmv addmv_ addr addr_ adjoint all allclose amax amin aminmax
    angle any arccos arccos_ arccosh arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2
    arctan2_ arctan_ arctanh arctanh_ argmax argmin argsort argwhere as_strided as_strided_
    as_strided_scatter asin asin_ asinh asinh_ atan atan2 atan2_ atan_ atanh atanh_ backward
    baddbmm baddbmm_ bernoulli bernoulli_ bfloat16 bincount bitwise_and bitwise_and_
    bitwise_left_shift bitwise_left_shift_ bitwise_not bitwise_not_ bitwise_or bitwise_or_
    bitwise_right_shift bitwise_right_shift_ bitwise_xor bitwise_xor_ bmm bool broadcast_to byte
    cauchy_ cdouble ceil ceil_ cfloat chalf char cholesky cholesky_inverse cholesky_solve chunk
    clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ clone coalesce conj
    conj_physical conj_physical_ contiguous copy_ copysign copysign_ corrcoef cos cos_ cosh
    cosh_ count_nonzero cov cpu cross cuda cummax cummin cumprod cumprod_ cumsum cumsum_ deg2rad
    deg2rad_ dense_dim det detach detach_ diag diag_embed diagflat diagonal diagonal_scatter
    diff digamma digamma_ dim dim_order dist div div_ divide divide_ dot double dsplit
    element_size eq eq_ equal erf erf_ erfc erfc_ erfinv erfinv_ exp exp2 exp2_ exp_ expand
    expand_as expm1 expm1_ exponential_ fill_ fill_diagonal_ fix fix_ flatten flip fliplr flipud
    float float_power float_power_ floor floor_ floor_divide floor_divide_ fmax fmin fmod fmod_
    frac frac_ frexp gather gcd gcd_ ge ge_ geometric_ ger get_device greater greater_
    greater_equal greater_equal_ gt gt_ half hardshrink heaviside heaviside_ histc histogram
    hsplit hypot hypot_ i0 i0_ igamma igamma_ igammac igammac_ index index_add index_add_
    index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_reduce
    index_reduce_ index_select indices inner int inverse is_coalesced is_complex is_conj
    is_contiguous is_floating_point is_neg is_nonzero is_same_size is_shared is_signed isclose
    isfinite isinf isnan isneginf isposinf isreal istft item kron kthvalue lcm lcm_ ldexp ldexp_
    le le_ lerp lerp_ less less_ less_equal less_equal_ lgamma lgamma_ log log10 log10_ log1p
    log1p_ log2 log2_ log_ log_normal_ log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_and_ logical_not logical_not_ logical_or logical_or_ logical_xor
    logical_xor_ logit logit_ logsumexp long lt lt_ lu_solve masked_fill masked_fill_
    masked_scatter masked_scatter_ masked_select matmul matrix_exp matrix_power max maximum mean
    median min minimum mm mode moveaxis movedim msort mul mul_ multinomial multiply multiply_ mv
    mvlgamma mvlgamma_ nan_to_num nan_to_num_ nanmean nanmedian nanquantile nansum narrow
    narrow_copy ndimension ne ne_ neg neg_ negative negative_ nelement new_empty
    new_empty_strided new_full new_ones new_tensor new_zeros nextafter nextafter_ nonzero
    nonzero_static norm normal_ not_equal not_equal_ numel orgqr ormqr outer permute
    pinverse polygamma polygamma_ positive pow pow_ prelu prod put put_ qr quantile rad2deg
    rad2deg_ random_ ravel reciprocal reciprocal_ relu relu_ remainder remainder_ renorm renorm_
    repeat repeat_interleave requires_grad_ reshape reshape_as resize resize_ resize_as
    resize_as_ resolve_conj resolve_neg retain_grad roll rot90 round round_ rsqrt rsqrt_ scatter
    scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ select select_scatter sgn
    sgn_ short sigmoid sigmoid_ sign sign_ signbit sin sin_ sinc sinc_ sinh sinh_ size
    slice_scatter slogdet softmax sort sparse_dim sparse_mask split split_with_sizes sqrt sqrt_
    square square_ squeeze squeeze_ std stft storage_offset stride sub sub_ subtract subtract_
    sum sum_to_size svd swapaxes swapaxes_ swapdims swapdims_ t t_ take take_along_dim tan tan_
    tanh tanh_ tensor_split tile to to_dense to_sparse tolist topk trace transpose transpose_
    tril tril_ triu triu_ true_divide true_divide_ trunc trunc_ type type_as unbind unflatten
    unfold uniform_ unique unique_consecutive unsqueeze unsqueeze_ values var vdot view view_as
    vsplit where xlogy xlogy_ zero_
    """
)

TENSOR_ATTRIBUTES: Final = names_in(
    """
    H T data device dtype grad imag is_cpu is_cuda is_leaf is_meta is_mkldnn is_mps is_nested
    is_quantized is_sparse is_sparse_csr is_xla is_xpu itemsize layout mH mT name nbytes ndim
    real requires_grad retains_grad shape
    """
)

TORCH_FUNCTIONS: Final = names_in(
    """
    abs abs_ absolute acos acos_ acosh acosh_ adaptive_avg_pool1d adaptive_max_pool1d add addbmm
    addcdiv addcmul addmm addmv addmv_ addr adjoint affine_grid_generator all allclose
    alpha_dropout alpha_dropout_ amax amin aminmax angle any arange arccos arccos_ arccosh
    arccosh_ arcsin arcsin_ arcsinh arcsinh_ arctan arctan2 arctan_ arctanh arctanh_
    are_deterministic_algorithms_enabled argmax argmin argsort argwhere as_strided as_strided_
    as_strided_scatter as_tensor asarray asin asin_ asinh asinh_ atan atan2 atan_ atanh atanh_
    atleast_1d atleast_2d atleast_3d avg_pool1d baddbmm bartlett_window batch_norm bernoulli
    bilinear binary_cross_entropy_with_logits bincount binomial bitwise_and bitwise_left_shift
    bitwise_not bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bmm
    broadcast_shapes broadcast_tensors broadcast_to bucketize can_cast cartesian_prod cat cdist
    ceil ceil_ celu celu_ chain_matmul channel_shuffle cholesky cholesky_inverse cholesky_solve
    chunk clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ clone column_stack
    combinations complex concat concatenate conj conj_physical conj_physical_ constant_pad_nd
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d copysign
    corrcoef cos cos_ cosh cosh_ cosine_embedding_loss cosine_similarity count_nonzero cov cross
    ctc_loss cummax cummin cumprod cumsum cumulative_trapezoid deg2rad deg2rad_ det detach
    detach_ diag diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot
    dropout dropout_ dsplit dstack einsum embedding embedding_bag empty empty_like
    empty_permuted empty_strided eq equal erf erf_ erfc erfc_ erfinv exp exp2 exp2_ exp_ expm1
    expm1_ eye fake_quantize_per_channel_affine fake_quantize_per_tensor_affine
    feature_alpha_dropout feature_alpha_dropout_ feature_dropout feature_dropout_ fill fill_ fix
    fix_ flatten flip fliplr flipud float_power floor floor_ floor_divide fmax fmin fmod frac
    frac_ frexp frobenius_norm full full_like gather gcd gcd_ ge ger get_autocast_dtype
    get_default_dtype get_device get_rng_state gradient greater greater_equal grid_sampler
    grid_sampler_2d grid_sampler_3d group_norm gru gru_cell gt hamming_window hann_window
    hardshrink heaviside hinge_embedding_loss histc histogram histogramdd hsplit hstack hypot i0
    i0_ igamma igammac imag index_add index_copy index_fill index_put index_put_ index_reduce
    index_select initial_seed inner instance_norm inverse is_autocast_cpu_enabled
    is_autocast_enabled is_complex is_conj is_floating_point is_grad_enabled
    is_inference_mode_enabled is_neg is_nonzero is_same_size is_signed is_tensor isclose
    isfinite isin isinf isnan isneginf isposinf isreal istft kaiser_window kl_div kron kthvalue
    layer_norm lcm lcm_ ldexp ldexp_ le lerp less less_equal lgamma linspace lobpcg log log10
    log10_ log1p log1p_ log2 log2_ log_ log_softmax logaddexp logaddexp2 logcumsumexp logdet
    logical_and logical_not logical_or logical_xor logit logit_ logspace logsumexp lstm
    lstm_cell lt lu_solve lu_unpack manual_seed margin_ranking_loss masked_fill masked_scatter
    masked_select matmul matrix_exp matrix_power max max_pool1d max_pool1d_with_indices
    max_pool2d max_pool3d maximum mean median meshgrid min minimum mm mode moveaxis movedim
    msort mul multinomial multiply mv mvlgamma nan_to_num nan_to_num_ nanmean nanmedian
    nanquantile nansum narrow narrow_copy native_batch_norm native_channel_shuffle
    native_dropout native_group_norm native_layer_norm ne neg neg_ negative negative_ nextafter
    nonzero nonzero_static norm norm_except_dim normal not_equal nuclear_norm numel ones
    ones_like orgqr ormqr outer pairwise_distance pca_lowrank pdist permute pinverse
    pixel_shuffle pixel_unshuffle poisson poisson_nll_loss polar polygamma positive pow prelu
    prod promote_types put qr quantile rad2deg rad2deg_ rand rand_like randint randint_like
    randn randn_like randperm ravel real reciprocal reciprocal_ relu relu_ remainder renorm
    repeat_interleave reshape resize_as_ resolve_conj resolve_neg result_type rms_norm rnn_relu
    rnn_relu_cell rnn_tanh rnn_tanh_cell roll rot90 round round_ row_stack rrelu rrelu_ rsqrt
    rsqrt_ rsub scalar_tensor scatter scatter_add scatter_reduce searchsorted select
    select_scatter selu selu_ sgn sigmoid sigmoid_ sign signbit sin sin_ sinc sinc_ sinh sinh_
    slice_scatter slogdet softmax sort split split_with_sizes sqrt sqrt_
    square square_ squeeze stack std std_mean stft sub subtract sum svd svd_lowrank swapaxes
    swapdims t take take_along_dim tan tan_ tanh tanh_ tensor tensor_split tensordot threshold
    threshold_ tile topk trace transpose trapezoid trapz tril tril_indices triplet_margin_loss
    triu triu_indices true_divide trunc trunc_ typename unbind unflatten unique
    unique_consecutive unravel_index unsqueeze vander var var_mean vdot view_as_complex
    view_as_real vsplit vstack where xlogy xlogy_ zero_ zeros zeros_like
    """
)

FUNCTIONAL: Final = names_in(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    adaptive_max_pool1d_with_indices adaptive_max_pool2d adaptive_max_pool2d_with_indices
    adaptive_max_pool3d adaptive_max_pool3d_with_indices affine_grid alpha_dropout avg_pool1d
    avg_pool2d avg_pool3d batch_norm bilinear binary_cross_entropy
    binary_cross_entropy_with_logits celu celu_ channel_shuffle conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d cosine_embedding_loss cosine_similarity
    cross_entropy ctc_loss dropout dropout1d dropout2d dropout3d elu elu_ embedding
    embedding_bag feature_alpha_dropout fold fractional_max_pool2d
    fractional_max_pool2d_with_indices fractional_max_pool3d fractional_max_pool3d_with_indices
    gaussian_nll_loss gelu glu grid_sample group_norm gumbel_softmax hardshrink hardsigmoid
    hardswish hardtanh hardtanh_ has_torch_function has_torch_function_unary
    has_torch_function_variadic hinge_embedding_loss huber_loss instance_norm interpolate kl_div
    l1_loss layer_norm leaky_relu leaky_relu_ linear local_response_norm log_softmax logsigmoid
    lp_pool1d lp_pool2d lp_pool3d margin_ranking_loss max_pool1d max_pool1d_with_indices
    max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d
    max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss native_channel_shuffle nll_loss normalize
    one_hot pad pairwise_distance pdist pixel_shuffle pixel_unshuffle poisson_nll_loss prelu
    relu relu6 relu_ rms_norm rrelu rrelu_ scaled_dot_product_attention selu selu_ sigmoid silu
    smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink softsign tanh tanhshrink
    threshold threshold_ triplet_margin_loss unfold upsample upsample_bilinear upsample_nearest
    """
)

LINALG: Final = names_in(
    """
    cholesky cholesky_ex cond cross det diagonal eig eigh eigvals eigvalsh householder_product
    inv inv_ex ldl_factor ldl_factor_ex ldl_solve lstsq lu lu_factor lu_factor_ex lu_solve
    matmul matrix_exp matrix_norm matrix_power matrix_rank multi_dot norm pinv qr slogdet solve
    solve_ex solve_triangular svd svdvals tensorinv tensorsolve vander vecdot vector_norm
    """
)

FFT: Final = names_in(
    """
    fft fft2 fftfreq fftn fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2
    ihfftn irfft irfft2 irfftn rfft rfft2 rfftfreq rfftn
    """
)

SPECIAL: Final = names_in(
    """
    airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t
    chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w digamma entr erf erfc
    erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln hermite_polynomial_h
    hermite_polynomial_he i0 i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log1p
    log_ndtr log_softmax logit logsumexp modified_bessel_i0 modified_bessel_i1
    modified_bessel_k0 modified_bessel_k1 multigammaln ndtr ndtri polygamma psi round
    scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t
    shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
    sinc softmax spherical_bessel_j0 xlog1py xlogy zeta
    """
)

# `torch._softmax`, `torch.ops.aten._softmax`: private functions that check their arguments as the
# public ones do. Functions that trust their caller with shapes or indices are not listed.
PRIVATE: Final = names_in(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d _aminmax _assert_async _cast_Byte _cast_Char
    _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long _cast_Short _conj _conj_physical
    _convolution _convolution_mode _dim_arange _euclidean_dist
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_tensor_affine
    _is_all_true _is_any_true _log_softmax _logcumsumexp _neg_view _pack_padded_sequence
    _pad_packed_sequence _prelu_kernel _reshape_from_tensor _safe_softmax _sample_dirichlet
    _scaled_dot_product_attention_math _shape_as_tensor _softmax _stack _standard_gamma _unique
    _unique2
    """
)

# `torch._C._nn.gelu`, `torch.ops.aten.gelu`: what F calls.
NN: Final = names_in(
    """
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d binary_cross_entropy col2im
    cross_entropy_loss elu elu_ flatten_dense_tensors fractional_max_pool2d fractional_max_pool3d
    gelu gelu_ glu hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh hardtanh_ huber_loss
    im2col l1_loss leaky_relu leaky_relu_ linear log_sigmoid max_pool2d_with_indices
    max_pool3d_with_indices max_unpool2d max_unpool3d mish mish_ mse_loss multi_margin_loss
    multilabel_margin_loss nll_loss nll_loss2d nll_loss_nd one_hot pad pad_sequence
    reflection_pad1d reflection_pad2d reflection_pad3d relu6 relu6_ replication_pad1d
    replication_pad2d replication_pad3d scaled_dot_product_attention silu silu_ smooth_l1_loss
    soft_margin_loss softplus softshrink
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d
    """
)

# Ops that have no other public name.
_ATEN_ONLY: Final = names_in(
    """
    _to_copy alias convolution lift_fresh lift_fresh_copy slice sym_numel sym_size sym_stride
    """
)

OPERATORS: Final = names_in(
    """
    abs add and_ contains eq floordiv ge getitem gt index invert is_ is_not le lshift lt matmul mod
    mul ne neg not_ or_ pos pow rshift sub truediv truth xor iadd iand ifloordiv ilshift imatmul
    imod imul ior ipow irshift isub itruediv ixor
    """
)

# Context managers, the only ones that `with` takes in a file.
MODES: Final = frozenset(
    (
        *(f"torch.{name}" for name in ("no_grad", "enable_grad", "set_grad_enabled")),
        *("torch.inference_mode", "torch.autocast", "torch.profiler.record_function"),
        recomputed.TARGET,
    )
)

_OTHERS: Final = (
    *("torch.Size", "torch.finfo", "torch.iinfo", "Tensor.__setitem__", "Tensor.__getitem__"),
    *("torch.backends.mha.get_fastpath_enabled", *FAST_PATHS),
    *("torch.autograd.grad", "torch.autograd.backward"),
    *("Tensor.to_padded_tensor", "Tensor.__ilshift__", "Tensor.__irshift__"),
    *("torch.jit.is_tracing", "torch.jit.is_scripting"),
)

TARGETS: Final = frozenset(
    (
        *(f"Tensor.{name}" for name in TENSOR_METHODS | TENSOR_ATTRIBUTES),
        *(f"Tensor.{name}.__set__" for name in ("data", "grad", "imag", "real", "requires_grad")),
        *(f"torch.{name}" for name in TORCH_FUNCTIONS | PRIVATE),
        *(f"{NN_PATH}{name}" for name in NN),
        *(f"F.{name}" for name in FUNCTIONAL),
        *(f"torch.linalg.{name}" for name in LINALG),
        *(f"torch.fft.{name}" for name in FFT),
        *(f"torch.special.{name}" for name in SPECIAL),
        *(f"operator.{name}" for name in OPERATORS),
        *MODES,
        *_OTHERS,
    )
)

# The ops that the functions and methods above call; the names are the same.
ATEN: Final = frozenset(
    (
        *(TORCH_FUNCTIONS | TENSOR_METHODS | FUNCTIONAL | PRIVATE | NN | _ATEN_ONLY),
        *(f"linalg_{name}" for name in LINALG),
        *(f"fft_{name}" for name in FFT),
        *(f"special_{name}" for name in SPECIAL),
    )
)
_ATEN_PATH: Final = "torch.ops.aten."


# The types in the schema of a pure method: no streams, storages, generators or names.
_PURE_TYPES: Final = ("Tensor", "int", "float", "bool", "Scalar", "number", "SymInt")
_NOT_CHECKED: Final = ("_", "unsafe", "data")  # prefixes of methods that trust their caller


@functools.cache
def is_pure_method(name: str) -> bool:
    """Return whether a method of tensors, by its schemas, only computes from tensors and numbers,
    as `to_sparse_csr` and `crow_indices` do. Such a method needs no entry in a list."""
    if name.startswith(_NOT_CHECKED) or not hasattr(torch.Tensor, name):
        return False
    of_tensors = [
        s for s in torch_jit.schemas(f"aten::{name}") if "out" not in {a.name for a in s.arguments}
    ]
    return bool(of_tensors) and all(map(_is_pure, of_tensors))


def _is_pure(schema: Any) -> bool:
    rows = [*schema.arguments, *schema.returns]
    writes = any(row.alias_info is not None and row.alias_info.is_write for row in rows)
    types = (re.sub(r"Optional|List|[\[\]()?]|\d", " ", str(row.type)).split() for row in rows)
    given = bool(schema.returns) and str(schema.arguments[0].type) == "Tensor"
    return given and not writes and all(x in _PURE_TYPES for words in types for x in words)


def may_call(target: str) -> bool:
    """Return whether a file may call a target: a name of `TARGETS`, a pure method of tensors, an op
    of `ATEN` or an overload of it."""
    if target.startswith("Tensor.") and is_pure_method(target.removeprefix("Tensor.")):
        return True
    if not target.startswith(_ATEN_PATH):
        return target in TARGETS
    name, dot, overload = target.removeprefix(_ATEN_PATH).partition(".")
    if name not in ATEN:
        return False
    packet: Any = getattr(torch.ops.aten, name, None)
    return packet is not None and (not dot or overload in packet.overloads())


# Prefixes of targets that a file may not call, and what to write instead.
_BEFORE: Final = (
    "in Python, and its result as an argument or an attribute: a file calls only what "
    "docs/save-format.md allows"
)
_REMEDIES: Final = (
    (_ATEN_PATH, "the function of torch or F that calls this op"),
    ("torch.ops.", "an op of PyTorch itself: a file contains no ops of extensions"),
    ("torch._", "the public function of torch or F that does this"),
    ("torch.", f"a call of it {_BEFORE}"),
    ("Tensor.", f"the same {_BEFORE}"),
)


def remedy_for(target: str) -> str:
    """Return what to write instead of a call that no file may contain."""
    found = (remedy for path, remedy in _REMEDIES if target.startswith(path))
    return next(found, "a function of torch or F, or of yours")
