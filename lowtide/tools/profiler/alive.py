"""Finds the Python tensors in live allocations, and their shapes.

In: allocations that are not freed. Out: for each the tensors in it, as weak references, since the
profiler must keep nothing alive. A tensor that only autograd or C++ holds has no Python object.

    find_tensors(allocations, snapshot())      {allocation.born: [ref to x, ref to x.t()]}
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from lowtide.tools.profiler.records import Allocation

# Device and address of a storage → its tensors, with shape and dtype.
Snapshot = dict[tuple[str, int], list[tuple["weakref.ref[torch.Tensor]", tuple[int, ...], str]]]
Found = dict[int, list["weakref.ref[torch.Tensor]"]]


def snapshot() -> Snapshot:
    """Return all tensors with a Python object now, by device and address."""
    found: Snapshot = {}
    for tensor in live_tensors():
        place = place_of(tensor)
        if place is not None:
            dtype = str(tensor.dtype).removeprefix("torch.")
            shape = () if tensor.is_nested else tuple(tensor.shape)  # a nested tensor has none
            seen = (weakref.ref(tensor), shape, dtype)
            found.setdefault(place, []).append(seen)
    return found


def find_tensors(allocations: Iterable[Allocation], tensors: Snapshot) -> Found:
    """Return the tensors in each allocation, by its `born`. Sets shapes that are not known yet.

    `tensors`: a snapshot from a time when the allocations were live. A later one may have other
    tensors at the same address."""
    found: Found = {}
    for allocation in allocations:
        for ref, shape, dtype in tensors.get((allocation.device, allocation.address), ()):
            found.setdefault(allocation.born, []).append(ref)
            if allocation.shape is None:
                allocation.shape, allocation.dtype = shape, dtype
    return found


def live_tensors() -> list[torch.Tensor]:
    """Return every tensor with a Python object."""
    # Not isinstance(), which reads `__class__` and so may run code of the object.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def place_of(tensor: Any) -> tuple[str, int] | None:
    """Return (device, address of the storage); None without one: sparse, meta, fake tensors, …"""
    if type(tensor).__module__.startswith("torch._"):  # fake tensors and the like
        return None
    try:
        storage = tensor.untyped_storage()
        return str(tensor.device), storage.data_ptr()
    except Exception:
        return None
