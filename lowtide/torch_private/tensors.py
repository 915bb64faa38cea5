"""The private facts of a tensor: version, base, storage, references from C++."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils.data import dataloader

_C: Final[Any] = torch._C  # pyright: ignore[reportPrivateUsage]
_Tensor: Final[Any] = torch.Tensor
_loader: Final[Any] = dataloader

# How often it was changed in place.
version: Final[Callable[[torch.Tensor], int]] = operator.attrgetter("_version")
version_unseen: Final[Callable[[torch.Tensor], int]] = _Tensor._version.__get__  # asks no class
# What a view is one of; None for what is no view.
base: Final[Callable[[torch.Tensor], torch.Tensor | None]] = operator.attrgetter("_base")
is_view: Final[Callable[[torch.Tensor], bool]] = _Tensor._is_view
# All zeros, without memory.
is_zero_tensor: Final[Callable[[torch.Tensor], bool]] = _Tensor._is_zerotensor
# Stored with the other sign.
negative_view: Final[Callable[[torch.Tensor], torch.Tensor]] = _C._VariableFunctions._neg_view
# Says so of a tensor: {"conj": True, "neg": False}.
set_math_bits: Final[Callable[[torch.Tensor, object], None]] = _C._set_tensor_metadata
empty_quantized: Final[Any] = _C._VariableFunctions._empty_affine_quantized
empty_per_channel_quantized: Final[Any] = _C._VariableFunctions._empty_per_channel_affine_quantized
# They hand out a tensor that exists already.
GETTERS_OF_OTHERS: Final[tuple[Any, ...]] = (
    *(_Tensor.grad.__get__, _Tensor._base.__get__, _Tensor._grad.__get__),
)

# Holders in C++ of a tensor; asks no mode.
use_count: Final[Callable[[torch.Tensor], int]] = _Tensor._use_count
has_storage: Final[Callable[[torch.Tensor], bool]] = getattr(_C, "_has_storage", lambda _: True)
# What a storage is known by while it lives, and how many hold it.
address: Final[Callable[[torch.UntypedStorage], int]] = operator.attrgetter("_cdata")
uses_of_storage: Final[Callable[[int], int]] = _C._storage_Use_Count

# A tensor without data, of a class with a dispatch of its own; two handles change their contents.
make_wrapper: Final[Any] = _Tensor._make_wrapper_subclass
swap_contents: Final[Callable[[torch.Tensor, torch.Tensor], None]] = _C._swap_tensor_impl

_storage_at: Final[Any] = _C._construct_storage_from_data_pointer
# Whoever asks for its data pointer in order to write gets an error.
throw_on_data_pointer: Final[Callable[[torch.Tensor], None]] = _C._set_throw_on_mutable_data_ptr

# What hands out the tensors that the workers of a data loader made: a class and its method.
NEXT_OF_WORKERS: Final[tuple[Any, str]] = (_loader._MultiProcessingDataLoaderIter, "_next_data")


def storage_of(x: torch.Tensor) -> int:
    """Return the address that identifies the tensor's storage while it lives."""
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def storage_nowhere(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """Return a storage at address 0."""
    return _storage_at(0, device, nbytes)
