"""Autocast in dry runs: makes PyTorch cast meta tensors as it casts tensors of a device.

In: the device that the meta tensors stand for. Out: a context in which ops receive their operands
cast as by PyTorch's autocast kernels, while autocast is on for that device.

    casts = Casts("cpu")
    with casts.on(), torch.autocast("cpu"):
        F.linear(x, w)             # x, w: float32, on meta   ──►  linear(x as bf16, w as bf16)

Invariant: as in PyTorch, the cast of a leaf that requires grad is cached until autocast ends,
unless `cache_enabled=False`. The context is off in functions that Dynamo compiles, since its guards
see such keys and it would recompile.

It uses a dispatch key (`memory/spare_key`) that comes before the device's own, which then finds
nothing to cast. PyTorch tells which ops have autocast kernels; what each casts follows ATen's
`autocast_mode.h` and, for the CPU, `autocast_mode.cpp`.
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
_TOLD_OF_CUDA: Final = (
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm "
    "linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList"
)
# By device: what runs in the lower dtype, …
_LOWER: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(f"{_BOTH} {_OF_CPU}".split()),
    "cuda": frozenset(f"{_BOTH} {_OF_CUDA}".split()),
}
# … in the widest dtype that an operand has, …
_WIDEST: Final[Mapping[str, frozenset[str]]] = {
    "cpu": frozenset(("cat", "stack", "index_copy")),
    "cuda": frozenset(_WIDEST_OF_CUDA.split()),
}
# … in float32 by an argument of their own; all others with a kernel take operands in float32.
_TOLD: Final = frozenset(_TOLD_OF_CUDA.split())
_TOLD_ON: Final = "cuda"
_WITH_DTYPE: Final = {  # those whose form with a dtype is another op
    "norm.Scalar": aten.norm.ScalarOpt_dtype,
    "norm.ScalarOpt_dim": aten.norm.ScalarOpt_dim_dtype,
}
# On GPUs: what PyTorch refuses, and what `memory/recurrent` stands for.
_LEFT: Final = frozenset({"binary_cross_entropy", "_cudnn_rnn"})


class Casts:
    """See the module's text."""

    def __init__(self, device_type: str) -> None:
        self._type = device_type
        self._weights: Any = WeakIdKeyDictionary()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}  # by the id of each one, which it holds

    @contextlib.contextmanager
    def on(self) -> Generator[None]:
        """Inside, on this thread."""
        before, _now.casts = _now.casts, self
        try:
            with _key(self._type).on():
                yield
        finally:
            _now.casts = before

    def off(self) -> contextlib.AbstractContextManager[None]:
        """Inside, ops get what they are given."""
        return _key(self._type).off()

    def add(self, meta: Tensor, real: Tensor) -> None:
        """`meta` stands for `real`, and its cast is kept if that one's is."""
        if _is_weight(real):
            self._weights[meta] = True

    def look(self) -> None:
        """Forgets what was kept, if autocast has ended meanwhile."""
        if self._kept and not _nesting():
            self._kept.clear()

    @contextlib.contextmanager
    def ended(self) -> Generator[None]:
        """Inside, autocast has ended, as it has where a backward pass begins."""
        self._kept.clear()
        before = [(kind, torch.is_autocast_enabled(kind)) for kind in _LOWER]
        try:
            for kind, _ in before:
                torch.set_autocast_enabled(kind, False)
            yield
        finally:
            for kind, is_on in before:
                torch.set_autocast_enabled(kind, is_on)

    def given(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Given]:
        """The op that PyTorch calls for this one, and its arguments."""
        same = tuple(args), dict(kwargs)
        name = _name(op)
        if name not in _kernels(self._type) or not torch.is_autocast_enabled(self._type):
            return op, same
        is_gpu = self._type == _TOLD_ON
        if is_gpu and name in _LEFT:
            return op, same
        if is_gpu and (name in _TOLD or name in _WITH_DTYPE):
            return _told(op, *same) if self._is_cast(args[0]) else (op, same)
        lower = torch.get_autocast_dtype(self._type)
        if name in _LOWER[self._type]:
            dtype = lower
        elif name in _WIDEST[self._type]:
            found = _tensors([*args, *kwargs.values()])
            is_wide = any(self._is_cast(x) and x.dtype is torch.float32 for x in found)
            dtype = torch.float32 if is_wide else lower
        else:
            dtype = torch.float32

        def change(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return self._cast(x, dtype, is_kept=dtype is lower)
            if type(x) in (list, tuple):
                return type(x)(map(change, cast("Sequence[Any]", x)))
            return x

        return op, (tuple(map(change, args)), {k: change(v) for k, v in kwargs.items()})

    def _is_cast(self, x: Any) -> bool:
        if not isinstance(x, torch.Tensor) or not (x.is_meta or x.device.type == self._type):
            return False
        return x.is_floating_point() and x.dtype is not torch.float64

    def _cast(self, x: Tensor, dtype: torch.dtype, is_kept: bool) -> Tensor:
        if not self._is_cast(x) or x.dtype is dtype:
            return x
        is_kept = is_kept and x.dtype is torch.float32 and torch.is_autocast_cache_enabled()
        if not (is_kept and (x in self._weights or _is_weight(x))):
            return x.to(dtype)
        found = self._kept.get(id(x))
        if found is None:
            with torch.enable_grad():  # as PyTorch: it may be needed where gradients are recorded
                found = self._kept[id(x)] = x, x.to(dtype)
        return found[1]


def _is_weight(x: Tensor) -> bool:
    """Whether PyTorch would keep its cast."""
    return x.requires_grad and x.is_leaf and not is_view(x)


def _nesting() -> int:
    """How many blocks of autocast this thread is in."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class _Now(threading.local):
    casts: Casts | None = None


_now = _Now()


@contextlib.contextmanager
def within(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Generator[Given]:
    """The arguments of an op as it gets them from autocast, for who stands for the op inside; there
    nothing else is cast, as in PyTorch."""
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
    """The ops that PyTorch has a kernel of autocast for."""
    found = ops_with_kernel(f"Autocast{device_type.upper()}")
    return frozenset(name.removeprefix("aten::") for name in found if name.startswith("aten::"))


def _told(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Given]:
    """With float32 as the dtype, unless another one was asked for."""
    other = _WITH_DTYPE.get(_name(op))
    if other is not None:
        return other, (args, kwargs | {"dtype": torch.float32})
    place = [a.name for a in schema_of(op).arguments].index("dtype")
    if place < len(args):
        told = args[place] or torch.float32
        return op, ((*args[:place], told, *args[place + 1 :]), kwargs)
    return op, (args, kwargs | {"dtype": kwargs.get("dtype") or torch.float32})


def _name(op: Any) -> str:
    """As the dispatcher calls it: `mm`, `sum.dim_IntList`."""
    name: str = schema_of(op).name.removeprefix("aten::")
    overload: str = schema_of(op).overload_name
    return f"{name}.{overload}" if overload else name


def _tensors(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for x in values:
        found += _tensors(cast("Sequence[Any]", x)) if type(x) in (list, tuple) else [x]
    return found
