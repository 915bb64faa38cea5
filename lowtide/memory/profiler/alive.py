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

from lowtide.memory.profiler.records import Allocation

Found = dict[int, list["weakref.ref[torch.Tensor]"]]


def find_tensors(allocations: Iterable[Allocation]) -> Found:
    """By `born` of each allocation: the tensors in it. Fills in shapes that are not known yet."""
    by_place = {(a.device, a.address): a for a in allocations}
    found: Found = {}
    if not by_place:
        return found
    for tensor in live_tensors():
        place = place_of(tensor)
        allocation = by_place.get(place) if place is not None else None
        if allocation is None:
            continue
        found.setdefault(allocation.born, []).append(weakref.ref(tensor))
        if allocation.shape is None:
            allocation.shape = tuple(tensor.shape)
            allocation.dtype = str(tensor.dtype).removeprefix("torch.")
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
