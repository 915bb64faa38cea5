"""Properties of a tensor that the signature determines: sizes, rank, dtype, device.

x.shape   →   (N, 4)        x.numel()   →   4*N        len(x)   →   N
"""

from __future__ import annotations

from typing import Any

import torch

from lowtide.ir.effects import Effects
from lowtide.ops.operands import Size, broadcast, dim_of, is_list, numel
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, Val


@op("shape", "(self: Tensor) -> int[]", "Tensor.shape", kind="size", effects=Effects.NONE)
def lower_shape(b: Builder, x: Val) -> tuple[Size, ...]:
    """All sizes."""
    del b
    return x.shape


@op("size", "(self: Tensor) -> int[]", "Tensor.size", kind="size", effects=Effects.NONE)
def lower_size(b: Builder, x: Val) -> tuple[Size, ...]:
    """All sizes."""
    del b
    return x.shape


@op("size.dim", "(self: Tensor, dim: int) -> int", "Tensor.size", kind="size", effects=Effects.NONE)
def lower_size_dim(b: Builder, x: Val, dim: Any) -> Size:
    """One size."""
    if not x.ndim:
        raise b.error("size of a 0-dim tensor")
    return x.shape[dim_of(b, dim, x.ndim)]


@op("dim", "(self: Tensor) -> int", "Tensor.dim Tensor.ndim Tensor.ndimension", kind="size",
    effects=Effects.NONE, eager=lambda x: x.dim())  # fmt: skip
def lower_dim(b: Builder, x: Val) -> int:
    """The number of dims."""
    del b
    return x.ndim


@op(
    "numel",
    "(self: Tensor) -> int",
    "torch.numel Tensor.numel Tensor.nelement",
    kind="size",
    effects=Effects.NONE,
)
def lower_numel(b: Builder, x: Val) -> Size:
    """The number of elements."""
    del b
    return numel(x)


@op("len", "(self: Tensor) -> int", "Tensor.__len__", kind="size", effects=Effects.NONE)
def lower_len(b: Builder, x: Val) -> Size:
    """The first size."""
    if not x.ndim:
        raise b.error("len() of a 0-dim tensor")
    return x.shape[0]


@op(
    "dtype",
    "(self: Tensor) -> dtype",
    "Tensor.dtype",
    kind="size",
    effects=Effects.NONE,
    eager=lambda x: x.dtype,
)
def lower_dtype(b: Builder, x: Val) -> torch.dtype:
    """The element type."""
    del b
    return x.dtype.torch


@op(
    "device",
    "(self: Tensor) -> device",
    "Tensor.device",
    kind="size",
    effects=Effects.NONE,
    eager=lambda x: x.device,
)
def lower_device(b: Builder, x: Val) -> torch.device:
    """The device."""
    del x
    return b.device


@op(
    "is_floating_point",
    "(self: Tensor) -> bool",
    "torch.is_floating_point Tensor.is_floating_point",
    kind="size",
    effects=Effects.NONE,
)
def lower_is_floating_point(b: Builder, x: Val) -> bool:
    """True if the dtype is one of floats."""
    del b
    return x.dtype.is_float


@op(
    "is_complex",
    "(self: Tensor) -> bool",
    "torch.is_complex Tensor.is_complex",
    kind="size",
    effects=Effects.NONE,
)
def lower_is_complex(b: Builder, x: Val) -> bool:
    """Never: complex tensors are left to PyTorch."""
    del b, x
    return False


@op("element_size", "(self: Tensor) -> int", "Tensor.element_size Tensor.itemsize", kind="size",
    effects=Effects.NONE, eager=lambda x: x.element_size())  # fmt: skip
def lower_element_size(b: Builder, x: Val) -> int:
    """Bytes of one element."""
    del b
    return x.dtype.itemsize


@op(
    "broadcast_shapes",
    "(*shapes: any[]) -> int[]",
    "torch.broadcast_shapes",
    kind="size",
    effects=Effects.NONE,
    eager=lambda shapes: torch.broadcast_shapes(*shapes),
)
def lower_broadcast_shapes(b: Builder, shapes: Any) -> tuple[Size, ...]:
    """The common shape."""
    return broadcast(b, *(s if is_list(s) else (s,) for s in shapes))
