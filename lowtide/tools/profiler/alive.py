"""The Python tensors that lie in allocations which are alive, and their shapes.

In: allocations that nobody has freed. Out: for each the tensors in it, as weak references, since
the profiler must keep nothing alive. A tensor that only autograd or C++ holds has no Python object.
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
    """All tensors that Python knows now, by where they lie."""
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
    """By `born` of each allocation that nobody freed: the tensors in it that are alive still. Fills
    in shapes that are not known yet. `tensors`: those at the time at which they were alive; later
    ones may lie in memory that was freed since."""
    found: Found = {}
    for allocation in allocations:
        for ref, shape, dtype in tensors.get((allocation.device, allocation.address), ()):
            found.setdefault(allocation.born, []).append(ref)
            if allocation.shape is None:
                allocation.shape, allocation.dtype = shape, dtype
    return found


def live_tensors() -> list[torch.Tensor]:
    """Every tensor that Python knows."""
    # By type, since isinstance() would ask objects that answer with code of their own.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


def place_of(tensor: Any) -> tuple[str, int] | None:
    """(device, address of the storage); None for a tensor without one: sparse, meta, fake, …"""
    if type(tensor).__module__.startswith("torch._"):  # fake tensors and the like
        return None
    try:
        storage = tensor.untyped_storage()
        return str(tensor.device), storage.data_ptr()
    except Exception:
        return None
