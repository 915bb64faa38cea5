"""A Driver that looks for a plan at the first call with some sizes, and keeps it for later ones.

In: a Function. Out: a callable like a Driver. A plan is kept for sizes, strides, dtypes, devices,
wanted gradients, the numbers and strings among the arguments, and, where the function writes, for
which arguments share memory.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast

import torch

from lowtide.execute.backend import Tiles
from lowtide.execute.driver import Driver
from lowtide.ir.aliases import may_change
from lowtide.ir.core import Function
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
    forms = tuple(float if type(x) is float and not reads_floats else _form(x) for x in args)
    state = torch.is_grad_enabled(), torch.get_num_threads(), is_deterministic
    return *state, torch_state.surroundings(), forms


def _sharing(args: Sequence[Any]) -> tuple[int, ...]:
    """Return, for each tensor, the first one with the same storage: a write into one of them is
    seen in the others. Empty if none share."""
    storages = [storage_of(x) for x in tensors_in(args)]
    return tuple(map(storages.index, storages)) if len({*storages}) < len(storages) else ()


def _form(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        has_grad = value.is_leaf and value.grad is not None
        device = None if value.is_cpu or value.is_meta else value.device  # dry runs are the CPU's
        form = (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        return (*form, has_grad, device)
    if isinstance(value, tuple | list):
        return tuple(map(_form, cast("Sequence[Any]", value)))
    if type(value) is dict:
        rows = cast("Mapping[Any, Any]", value).items()
        return tuple((_form(k), _form(v)) for k, v in rows)
    is_plain = value is None or isinstance(value, int | float | str)
    # By text: `1`, `1.0` and `True` are equal, and so are 0.0 and -0.0; NaN is not equal to itself.
    return (type(value), repr(value)) if is_plain else id(cast("object", type(value)))
