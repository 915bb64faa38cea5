"""Autocast in dry runs: makes PyTorch cast meta tensors as it casts tensors of a device.

In: the device that the meta tensors stand for. Out: a context in which ops receive their operands
cast as by PyTorch's autocast kernels, while autocast is on for that device.

    casts = Casts("cpu")
    with casts.on(), torch.autocast("cpu"):
        F.linear(x, w)             # x, w: float32, on meta   ──►  linear(x as bf16, w as bf16)

Invariant: as in PyTorch, the cast of a leaf that requires grad is cached until autocast ends,
unless `cache_enabled=False`. The context is off in functions that Dynamo compiles: Dynamo's guards
include dispatch keys, and a changed key makes it recompile.

`Casts` uses a dispatch key (`memory/spare_key`) that precedes the device's own. PyTorch's
dispatcher lists the ops that have autocast kernels. The tables follow ATen's `autocast_mode.h` and
`autocast_mode.cpp`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary

from lowtide.memory.spare_key import SpareKey
from lowtide.torch_private.dispatch import ops_with_kernel, schema_of
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import is_view

Tensor = torch.Tensor
Given = tuple[tuple[Any, ...], dict[str, Any]]
aten = torch.ops.aten
_KEYS: Final = {
    "cpu": ("AutocastIPU", "AutocastHPU"),
    "cuda": ("AutocastPrivateUse1", "AutocastIPU"),
}
_CONVOLUTIONS: Final = (
    "_convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d.input conv_transpose3d.input"
)
_PRODUCTS: Final = "addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu"
_BOTH: Final = f"{_CONVOLUTIONS} {_PRODUCTS} scaled_dot_product_attention"
_OF_CPU: Final = (
    "conv1d.padding conv2d.padding conv3d.padding _addmm_activation mkldnn_rnn_layer "
    "_native_multi_head_attention"
)
_OF_CUDA: Final = (
    "_convolution convolution cudnn_convolution cudnn_convolution_transpose addmv addr einsum mv "
    "chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell "
    "rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention"
)
_WIDEST_OF_CUDA: Final = (
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add"
)
_DTYPE_OF_CUDA: Final = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
# By device: the ops that run in the lower dtype.
_LOWER: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(f"{_BOTH} {_OF_CPU}".split()),
    "cuda": frozenset(f"{_BOTH} {_OF_CUDA}".split()),
}
# By device: the ops that run in the widest dtype of their operands.
_WIDEST: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(("cat", "stack", "index_copy")),
    "cuda": frozenset(_WIDEST_OF_CUDA.split()),
}
# CUDA's ops that get float32 as their `dtype`. All other ops with an autocast kernel get operands
# in float32.
_BY_DTYPE: Final = frozenset(_DTYPE_OF_CUDA.split())
_WITH_DTYPE: Final = {  # ops whose overload with a `dtype` is another op
    "norm.Scalar": aten.norm.ScalarOpt_dtype,
    "norm.ScalarOpt_dim": aten.norm.ScalarOpt_dim_dtype,
}
# CUDA's ops that are not cast: PyTorch refuses the first, `memory/recurrent` replaces the second.
_NOT_CAST: Final = frozenset({"binary_cross_entropy", "_cudnn_rnn"})


class Casts:
    """See the module's text."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type
        self._weights: Any = WeakIdKeyDictionary()
        self._cache: dict[
            int, tuple[Tensor, Tensor]
        ] = {}  # by id; the first tensor of an entry keeps its id in use

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Inside, this thread's ops on meta tensors get their operands cast."""
        before, _now.casts = _now.casts, self
        try:
            with _key(self._type).on():
                yield
        finally:
            _now.casts = before

    def off(self) -> contextlib.AbstractContextManager[None]:
        """Inside, operands are not cast."""
        return _key(self._type).off()

    def add(self, meta: Tensor, real: Tensor) -> None:
        """Notes that `meta` stands for `real`: its cast is cached if that of `real` is."""
        if _is_weight(real):
            self._weights[meta] = True

    def look(self) -> None:
        """Empties the cache if autocast has ended."""
        if self._cache and not _nesting():
            self._cache.clear()

    @contextlib.contextmanager
    def ended(self) -> Generator[None]:
        """Inside, autocast is off and the cache empty, as in a backward pass."""
        self._cache.clear()
        before = [(kind, torch.is_autocast_enabled(kind)) for kind in _LOWER]
        try:
            for kind, _ in before:
                torch.set_autocast_enabled(kind, False)
            yield
        finally:
            for kind, is_on in before:
                torch.set_autocast_enabled(kind, is_on)

    def given(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Given]:
        """Return the op that autocast calls for `op`, and its arguments."""
        same = tuple(args), dict(kwargs)
        name = _name(op)
        if name not in _kernels(self._type) or not torch.is_autocast_enabled(self._type):
            return op, same
        is_gpu = self._type == "cuda"
        if is_gpu and name in _NOT_CAST:
            return op, same
        if is_gpu and (name in _BY_DTYPE or name in _WITH_DTYPE):
            return _with_float32(op, *same) if self._is_cast(args[0]) else (op, same)
        lower = torch.get_autocast_dtype(self._type)
        if name in _LOWER[self._type]:
            dtype = lower
        elif name in _WIDEST[self._type]:
            found = tensors_in([*args, *kwargs.values()])
            is_wide = any(self._is_cast(x) and x.dtype is torch.float32 for x in found)
            dtype = torch.float32 if is_wide else lower
        else:
            dtype = torch.float32

        def change(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return self._cast(x, dtype, is_cached=dtype is lower)
            if type(x) in (list, tuple):
                return type(x)(map(change, cast("Sequence[Any]", x)))
            return x

        return op, (tuple(map(change, args)), {k: change(v) for k, v in kwargs.items()})

    def _is_cast(self, x: Any) -> bool:
        if not isinstance(x, torch.Tensor) or not (x.is_meta or x.device.type == self._type):
            return False
        return x.is_floating_point() and x.dtype is not torch.float64

    def _cast(self, x: Tensor, dtype: torch.dtype, is_cached: bool) -> Tensor:
        if not self._is_cast(x) or x.dtype is dtype:
            return x
        is_cached = is_cached and x.dtype is torch.float32 and torch.is_autocast_cache_enabled()
        if not (is_cached and (x in self._weights or _is_weight(x))):
            return x.to(dtype)
        found = self._cache.get(id(x))
        if found is None:
            with torch.enable_grad():  # as in PyTorch: a later use may record gradients
                found = self._cache[id(x)] = x, x.to(dtype)
        return found[1]


def _is_weight(x: Tensor) -> bool:
    """Return True if PyTorch caches the cast of `x`."""
    return x.requires_grad and x.is_leaf and not is_view(x)


def _nesting() -> int:
    """Return the number of autocast blocks that this thread is in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class _Now(threading.local):
    casts: Casts | None = None


_now = _Now()


@contextlib.contextmanager
def within(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[Given]:
    """Yields the arguments of `op` as autocast casts them, for code that replaces the op. Nothing
    else is cast inside, as in PyTorch's own kernels."""
    casts = _now.casts
    if casts is None:
        yield tuple(args), dict(kwargs)
        return
    with casts.off():
        yield casts.given(op, args, kwargs)[1]


@functools.cache
def _key(device_type: str) -> SpareKey:
    key = SpareKey(*_KEYS[device_type])
    for name in sorted(_kernels(device_type)):
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        if op is not None:
            key.add(op, _run)
    return key


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    if _now.casts is None:
        return op(*args, **kwargs)
    to_call, (args, kwargs) = _now.casts.given(op, args, kwargs)
    return to_call(*args, **kwargs)


@functools.cache
def _kernels(device_type: str) -> frozenset[str]:
    """Return the names of the ops that have an autocast kernel."""
    found = ops_with_kernel(f"Autocast{device_type.upper()}")
    return frozenset(name.removeprefix("aten::") for name in found if name.startswith("aten::"))


def _with_float32(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Given]:
    """Return the op and its arguments with `dtype=float32`, unless they name another dtype."""
    other = _WITH_DTYPE.get(_name(op))
    if other is not None:
        return other, (args, kwargs | {"dtype": torch.float32})
    place = [a.name for a in schema_of(op).arguments].index("dtype")
    if place < len(args):
        dtype = args[place] or torch.float32
        return op, ((*args[:place], dtype, *args[place + 1 :]), kwargs)
    return op, (args, kwargs | {"dtype": kwargs.get("dtype") or torch.float32})


def _name(op: Any) -> str:
    """Return the dispatcher's name of the op: `mm`, `sum.dim_IntList`."""
    name: str = schema_of(op).name.removeprefix("aten::")
    overload: str = schema_of(op).overload_name
    return f"{name}.{overload}" if overload else name
