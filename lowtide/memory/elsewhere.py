"""Finds the CPU tensors of a GPU program: they do not count as the GPU's memory.

In a dry run all tensors are meta tensors, so their device says nothing. x: a GPU's tensor.

    y = x.cpu()        a CPU tensor, by the argument `device`
    y.sort()           a CPU tensor, because its operand is one
    y.cuda()           a GPU tensor
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Tensor = torch.Tensor
Storage = torch.UntypedStorage


class Elsewhere:
    """Storages of meta tensors that stand for CPU tensors."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Storage]] = {}

    def makes(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether the op's results are CPU tensors: by its argument `device`, else by the
        first operand that is not a scalar."""
        device = kwargs.get("device")
        if device is not None:
            return torch.device(device).type == "cpu"
        if not self._known:
            return False
        found = tensors_in(list(args))
        first = next((x for x in found if x.dim()), found[0] if found else None)
        return first is not None and self._has(first)

    def holds(self, values: Sequence[Any]) -> bool:
        """Return whether one of the tensors is a CPU tensor."""
        return bool(self._known) and any(map(self._has, tensors_in(list(values))))

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Note that these are CPU tensors."""
        for x in tensors:
            storage = x.untyped_storage()
            self._known[storage_of(x)] = weakref.ref(storage)

    def _has(self, x: Tensor) -> bool:
        found = self._known.get(storage_of(x))
        return found is not None and found() is not None
