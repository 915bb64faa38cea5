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

# The number of writes in place.
version: Final[Callable[[torch.Tensor], int]] = operator.attrgetter("_version")
version_unseen: Final[Callable[[torch.Tensor], int]] = _Tensor._version.__get__  # calls no subclass
# The tensor that a view shows a part of; None if the tensor is no view.
base: Final[Callable[[torch.Tensor], torch.Tensor | None]] = operator.attrgetter("_base")
is_view: Final[Callable[[torch.Tensor], bool]] = _Tensor._is_view
# Whether it is one of autograd's zero tensors, which have no memory.
is_zero_tensor: Final[Callable[[torch.Tensor], bool]] = _Tensor._is_zerotensor
# A view whose elements are the negatives of the stored ones.
negative_view: Final[Callable[[torch.Tensor], torch.Tensor]] = _C._VariableFunctions._neg_view
# Marks a tensor's memory as conjugate or negative: {"conj": True, "neg": False}.
set_math_bits: Final[Callable[[torch.Tensor, object], None]] = _C._set_tensor_metadata
empty_quantized: Final[Any] = _C._VariableFunctions._empty_affine_quantized
empty_per_channel_quantized: Final[Any] = _C._VariableFunctions._empty_per_channel_affine_quantized
# Attributes whose value is an existing tensor, not a new one.
GETTERS_OF_OTHERS: Final[tuple[Any, ...]] = (
    *(_Tensor.grad.__get__, _Tensor._base.__get__, _Tensor._grad.__get__),
)

# The number of C++ references to a tensor. No dispatch mode sees the call.
use_count: Final[Callable[[torch.Tensor], int]] = _Tensor._use_count
has_storage: Final[Callable[[torch.Tensor], bool]] = getattr(_C, "_has_storage", lambda _: True)
# An identity of a storage while it lives; the number of references to a storage.
address: Final[Callable[[torch.UntypedStorage], int]] = operator.attrgetter("_cdata")
uses_of_storage: Final[Callable[[int], int]] = _C._storage_Use_Count

# Makes a tensor without data, of a subclass with its own dispatch; exchanges two tensors' contents.
make_wrapper: Final[Any] = _Tensor._make_wrapper_subclass
swap_contents: Final[Callable[[torch.Tensor, torch.Tensor], None]] = _C._swap_tensor_impl

_storage_at: Final[Any] = _C._construct_storage_from_data_pointer
# Afterwards `data_ptr()` of the storage for writing raises an error.
throw_on_data_pointer: Final[Callable[[torch.Tensor], None]] = _C._set_throw_on_mutable_data_ptr

# The class and method that return the tensors made by workers of a data loader.
NEXT_OF_WORKERS: Final[tuple[Any, str]] = (_loader._MultiProcessingDataLoaderIter, "_next_data")


def storage_of(x: torch.Tensor) -> int:
    """Return the address that identifies the tensor's storage while it lives."""
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def storage_nowhere(nbytes: int, device: torch.device) -> torch.UntypedStorage:
    """Return a storage at address 0."""
    return _storage_at(0, device, nbytes)
