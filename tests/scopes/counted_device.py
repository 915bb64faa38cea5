"""A device with an allocator of its own that counts bytes, as one that PyTorch does not know.

In: nothing; importing this makes the device, for the whole process. Out: `torch.ones(8,
device="counted")`, and how many bytes its allocator has handed out.

Its memory is the host's and comes to PyTorch through DLPack, whose deleter PyTorch calls when it
lets go of a storage: that is when a block is given back. Every operation runs on the CPU, on the
same memory, and its results are new blocks; so are those that elsewhere are views, but `detach` and
`alias`.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "counted"
_EXTENSION = 12  # DLPack's `kDLExtDev`
_DTYPES = {torch.float32: (2, 32), torch.int64: (0, 64), torch.uint8: (1, 8), torch.bool: (6, 8)}


class _Tensor(ctypes.Structure):
    """DLPack's `DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int),
        ("ndim", ctypes.c_int), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLPack's `DLManagedTensor`."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_capsule: Any = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_blocks: dict[int, tuple[Any, ...]] = {}  # by the address of their `DLManagedTensor`
_peak = 0


def allocated_bytes() -> int:
    """What the allocator has handed out and not got back."""
    return sum(memory.nbytes for memory, *_ in _blocks.values())


def peak_bytes() -> int:
    """The most since the last time that this was asked."""
    global _peak
    found, _peak = _peak, allocated_bytes()
    return found


@_Deleter
def _free(at: int) -> None:
    del _blocks[at]


def _empty(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    global _peak
    memory = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    managed = _Managed(
        _Tensor(
            *(memory.ctypes.data, _EXTENSION, 0, len(shape), *_DTYPES[dtype], 1),
            *(ctypes.addressof(sizes), None, 0),
        ),
        None,
        _free,
    )
    at = ctypes.addressof(managed)
    _blocks[at] = (memory, sizes, managed)
    _peak = max(_peak, allocated_bytes())
    return torch._C._from_dlpack(_capsule(at, b"dltensor", None))


def _on_host(value: Any) -> Any:
    """The same memory as a tensor of the CPU's; and the CPU for the device."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or value.device.type != NAME:
        return value
    if not value.numel():
        return torch.empty(value.shape, dtype=value.dtype)
    storage = value.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=value.dtype)
    return flat.as_strided(value.shape, value.stride(), value.storage_offset())


def _on_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    made = _empty(value.shape, value.dtype)
    _on_host(made).copy_(value)
    return made


def _by_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What the device does for every operation."""
    results = op(*pytree.tree_map(_on_host, args), **pytree.tree_map(_on_host, kwargs))
    given = dict(zip([argument.name for argument in op._schema.arguments], args, strict=False))
    given |= kwargs
    written = [given[a.name] for a in op._schema.arguments if a.is_write and a.name in given]
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    return pytree.tree_map(_on_device, results)


def _copy(source: torch.Tensor, to: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    _on_host(to).copy_(_on_host(source))
    return to


_setup_privateuseone_for_python_backend(NAME)
_all_ops = torch.library.Library("_", "IMPL")
_all_ops.fallback(_by_host, "PrivateUse1")
_aten_ops = torch.library.Library("aten", "IMPL")
_aten_ops.impl("_copy_from", _copy, "PrivateUse1")
