"""Conversions of dtype, and operations that give the tensor itself.

    x.to(torch.float16)   →   t[i] = f16(x[i])          x.contiguous()   →   x

`kind` "view": where the dtype already fits, eager PyTorch gives the same tensor, not a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.factories import check_device
from lowtide.ops.operands import cast_to, from_torch
from lowtide.ops.registry import Lower, add_op, op
from lowtide.texpr.build import Builder, Unsupported, Val

_FORMAT: Final = ", *, memory_format: any? = None"
_FLAGS: Final = "non_blocking: bool = False, copy: bool = False, *, memory_format: any? = None"


@op(
    "to.dtype",
    f"(self: Tensor, dtype: dtype, {_FLAGS}) -> Tensor",
    "Tensor.to",
    kind="view",
)
def lower_to_dtype(b: Builder, x: Val, dtype: Any, _nb: Any, _copy: Any, _format: Any) -> Val:
    """Another dtype."""
    return cast_to(b, x, from_torch(dtype))


@op(
    "to.other",
    f"(self: Tensor, other: Tensor, {_FLAGS}) -> Tensor",
    "Tensor.to",
    kind="view",
)
def lower_to_other(b: Builder, x: Val, other: Val, _nb: Any, _copy: Any, _format: Any) -> Val:
    """The dtype of other."""
    return cast_to(b, x, other.dtype)


@op(
    "to.device",
    f"(self: Tensor, device: device? = None, dtype: dtype? = None, {_FLAGS}) -> Tensor",
    "Tensor.to",
    kind="view",
    eager=lambda x, device, dtype, nb, copy, fmt: x.to(
        device=device, dtype=dtype, non_blocking=nb, copy=copy, memory_format=fmt
    ),
)
def lower_to_device(
    b: Builder, x: Val, device: Any, dtype: Any, _nb: Any, _copy: Any, _format: Any
) -> Val:
    """Another dtype, and the same device."""
    if device is not None:
        check_device(b, device)
    return x if dtype is None else cast_to(b, x, from_torch(dtype))


@op(
    "type_as",
    "(self: Tensor, other: Tensor) -> Tensor",
    "Tensor.type_as",
    kind="view",
)
def lower_type_as(b: Builder, x: Val, other: Val) -> Val:
    """The dtype of other."""
    return cast_to(b, x, other.dtype)


@op("type", "(self: Tensor, dtype: dtype) -> Tensor", "Tensor.type", kind="view")
def lower_type(b: Builder, x: Val, dtype: Any) -> Val:
    """Another dtype."""
    return cast_to(b, x, from_torch(dtype))


# Tensor method · dtype
CASTS: Final[list[tuple[str, torch.dtype]]] = [
    ("float", torch.float32),
    ("double", torch.float64),
    ("half", torch.float16),
    ("bfloat16", torch.bfloat16),
    ("int", torch.int32),
    ("long", torch.int64),
    ("bool", torch.bool),
    ("byte", torch.uint8),
]


def _cast(dtype: torch.dtype) -> Lower:
    def lower(b: Builder, x: Val) -> Val:
        return cast_to(b, x, from_torch(dtype))

    return lower


# Names of ops that convert each element.
CONVERTING: Final = frozenset({"torch.to.dtype", *(f"torch.Tensor.{name}" for name, _ in CASTS)})

for _name, _dtype in CASTS:
    add_op(
        f"Tensor.{_name}",
        "(self: Tensor) -> Tensor",
        f"Tensor.{_name}",
        kind="view",
        lower=_cast(_dtype),
    )


# ---- the tensor itself ------------------------------------------------------------------------


def _same(b: Builder, x: Val, *_rest: Any) -> Val:
    del b
    return x


@op(
    "positive",
    "(self: Tensor) -> Tensor",
    "torch.positive Tensor.positive operator.pos",
    kind="view",
)
def lower_positive(b: Builder, x: Val) -> Val:
    """`+x`, which is x itself."""
    if x.dtype is dtypes.boolean:
        raise Unsupported("arithmetic on bools")
    return x


# name · operands after self · sources · kind · effects
IDENTITIES: Final[list[tuple[str, str, str, str, Effects]]] = [
    ("contiguous", _FORMAT, "Tensor.contiguous", "view", Effects.NONE),
    ("clone", _FORMAT, "torch.clone Tensor.clone", "copy", Effects.MAKES),
    ("detach", "", "torch.detach Tensor.detach", "view", Effects.NONE),
]


@op("cpu", "(self: Tensor) -> Tensor", "Tensor.cpu", kind="view")
def lower_cpu(b: Builder, x: Val) -> Val:
    """A tensor of the CPU as it is."""
    check_device(b, "cpu")
    return x


for _name, _more, _sources, _kind, _effects in IDENTITIES:
    add_op(
        _name,
        f"(self: Tensor{_more}) -> Tensor",
        _sources,
        kind=_kind,
        effects=_effects,
        lower=_same,
    )


def _of_dropout(operands: Sequence[object]) -> Effects:
    """It draws one mask for each call, unless it is known to drop nothing."""
    _, p, training, _ = operands
    drops_nothing = training is False or (isinstance(p, int | float) and p == 0)
    return Effects.RAISES if drops_nothing else Effects.RAISES | Effects.DRAWS


@op(
    "dropout",
    "(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor",
    "F.dropout",
    kind="view",
    effects=_of_dropout,
)
def lower_dropout(b: Builder, x: Val, p: Any, training: Any, _inplace: Any) -> Val:
    """Dropout that drops nothing; what is random stays PyTorch's."""
    del b
    if training and p != 0:
        raise Unsupported("dropout is random")
    return x
