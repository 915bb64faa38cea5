"""Casts the operands of an op as autocast does.

In: the name of a record, its operands, and in the builder the device and the dtype of autocast.
Out: the operands that PyTorch's kernel would get. Raises `Unsupported` if PyTorch casts inside the
op, which PyTorch then runs.

    matmul(x: f32, w: f32)     →   matmul(x as bf16, w as bf16)
    mse_loss(x: bf16, y: f32)  →   mse_loss(x as f32, y)

The rows follow ATen's `autocast_mode.h`; an op without a row takes its operands as they are.
`tests/ops/test_ops_autocast.py` compares all ops with PyTorch. Ops that promote to the widest dtype
need no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ops.operands import cast_to
from lowtide.texpr.build import Builder, Unsupported, Val

_LOWER: Final = (
    "prelu scaled_dot_product_attention matmul mm bmm linear addmm baddbmm conv1d conv2d conv3d"
)
_WIDE: Final = (
    "prod mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits kl_div "
    "nll_loss cross_entropy cdist"
)
_CELLS: Final = "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell"
_POOLS: Final = " ".join(
    f"{name}_pool{dims}d"
    for name in ("max", "avg", "adaptive_max", "adaptive_avg")
    for dims in (1, 2, 3)
)
# What kernels do only where PyTorch is not there.
_LIBRARY: Final = (
    "conv_transpose1d conv_transpose2d conv_transpose3d interpolate pixel_shuffle pixel_unshuffle "
    f"lstm gru rnn_tanh rnn_relu cumsum cumprod {_POOLS}"
)
_LEFT: Final = (
    f"inner tensordot binary_cross_entropy weight_norm multi_head_attention {_CELLS} {_LIBRARY}"
)

# By device: what runs in the lower dtype, …
LOWER: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(_LOWER.split()),
    "cuda": frozenset(f"{_LOWER} mv addmv einsum".split()),
}
# … in float32, …
WIDE: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(f"{_WIDE} trace".split()),
    "cuda": frozenset(
        f"{_WIDE} softplus pow softmax F.softmax log_softmax F.log_softmax softmin layer_norm "
        "rms_norm group_norm logsumexp cosine_similarity square exp expm1 log log2 log10 log1p "
        "rsqrt tan asin acos sinh cosh reciprocal sum linalg.vector_norm pdist".split()
    ),
}
# … and as PyTorch decides within them.
LEFT: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(f"{_LEFT} einsum".split()),
    "cuda": frozenset(f"{_LEFT} dot norm linalg.norm normalize pairwise_distance".split()),
}
# Ops exempt from casting when they fill with a number, and the position of their mode.
_MODE: Final[Mapping[str, int]] = {"pad": 2}


def under_autocast(b: Builder, name: str, args: list[Any]) -> list[Any]:
    """See the module's text."""
    device = b.device.type
    if name in LEFT[device] or (name in _MODE and args[_MODE[name]] != "constant"):
        raise Unsupported("autocast decides within it")
    dtype = operand_dtype(name, device, b.autocast)
    if dtype is None:
        return args
    op, b.op = b.op, "to.dtype"
    found = [_cast(b, x, dtype) for x in args]
    b.op = op
    return found


def operand_dtype(name: str, device: str, lower: DType | None) -> DType | None:
    """Return the dtype to which autocast converts floats other than double; None if it does not."""
    if lower is None:
        return None
    if name in LOWER[device]:
        return lower
    return dtypes.f32 if name in WIDE[device] else None


def _cast(b: Builder, x: Any, dtype: DType) -> Any:
    if isinstance(x, Val):
        return cast_to(b, x, dtype) if x.dtype.is_float and x.dtype is not dtypes.f64 else x
    if isinstance(x, list | tuple):
        return [_cast(b, item, dtype) for item in x]  # pyright: ignore[reportUnknownVariableType]
    return x
