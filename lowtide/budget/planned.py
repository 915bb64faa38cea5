"""A Driver that looks for a plan at the first call with some sizes, and keeps it for later ones.

In: a Function. Out: a callable like a Driver. A plan is kept for sizes, strides, dtypes, devices,
wanted gradients, the numbers and strings among the arguments, and, where the function writes, for
which arguments share memory.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

import torch

from lowtide.execute.backend import Tiles
from lowtide.execute.driver import Driver
from lowtide.ir.aliases import may_change
from lowtide.ir.core import Function
from lowtide.specialise.signature import exact_key, form_key
from lowtide.torch_private import torch_state
from lowtide.torch_private.autograd import without_saved_hooks
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

Found = TypeVar("Found")
_MOST_PLANS: Final = 256


class PlannedDriver(Driver, Generic[Found]):
    """See the module's text. `_plain`: the driver of the function as it is. `_reads_floats`: a plan
    depends on floats among the arguments."""

    _reads_floats = True

    def __init__(self, function: Function, *, tiles: Tiles = "usual") -> None:
        super().__init__(function, tiles=tiles)
        self._plain = Driver(function, tiles=tiles)
        self._plans: dict[Any, Found] = {}
        self._writes = bool(may_change(function))
        self._searching = threading.Lock()

    @abstractmethod
    def _search(self, args: Sequence[Any]) -> Found:
        """Return the plan for these arguments."""

    def _plan_of(self, args: Sequence[Any]) -> Found:
        """Return the plan for these arguments, an earlier one if there is one."""
        key = call_key(args, self._reads_floats), _sharing(args) if self._writes else ()
        found = self._plans.get(key)
        if found is None:
            with self._searching, without_saved_hooks():
                found = self._plans.get(key) or self._search(args)
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = found
        return found


def call_key(args: Sequence[Any], reads_floats: bool) -> Any:
    """Return a key that is equal for calls with the same plan. `reads_floats`: the plan depends on
    floats among the arguments."""
    # On GPUs the kernels of a backward pass depend on it.
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    state = torch.is_grad_enabled(), torch.get_num_threads(), is_deterministic
    known = [*state, torch_state.surroundings()]
    return tuple(exact_key(args, known, reads_floats, tensor_key=_tensor_key))


def _tensor_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return what a plan depends on, of any tensor. Where there is a gradient, a backward pass adds
    to it instead of making one."""
    if tensor.layout is not torch.strided:
        return tensor.layout, tensor.dtype, tensor.shape, tensor.requires_grad
    return *form_key(tensor), tensor.is_leaf and tensor.grad is not None


def _sharing(args: Sequence[Any]) -> tuple[int, ...]:
    """Return, for each tensor, the first one with the same storage: a write into one of them is
    seen in the others. Empty if none share."""
    storages = [storage_of(x) for x in tensors_in(args)]
    return tuple(map(storages.index, storages)) if len({*storages}) < len(storages) else ()
