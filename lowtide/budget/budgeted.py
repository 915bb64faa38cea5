"""A Driver that keeps to a budget.

In: a Function, a number of bytes. Out: a callable like a Driver. The first call with some sizes,
dtypes and wanted gradients searches for a plan; later calls look it up.

Invariant: if no plan fits, BudgetError is raised before anything is run or allocated.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import torch

from lowtide import compiler
from lowtide.budget.search import Plan, search
from lowtide.diagnostics.warned import warn
from lowtide.errors import BudgetError
from lowtide.execute.backend import Tiles
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.ir.aliases import may_change
from lowtide.ir.core import Function
from lowtide.memory import watching
from lowtide.runtime import arena
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private import torch_state
from lowtide.torch_private.pytree import tensors_in
from lowtide.torch_private.tensors import storage_of

_Key = tuple[Any, Any]  # forms, what shares memory
_MOST_PLANS: Final = 256


class BudgetedDriver(Driver):
    """See the module's text."""

    def __init__(
        self, function: Function, budget_bytes: int, tiles: Tiles = "usual", name: str = ""
    ) -> None:
        """`name`: what the user calls the function, for errors and warnings."""
        super().__init__(function, tiles=tiles)
        self.budget_bytes = budget_bytes
        self.name = name or function.name
        self._plain = Driver(function, tiles=tiles)
        self._plans: dict[_Key, Plan | BudgetError] = {}
        self._writes = bool(may_change(function))
        self._searching = threading.Lock()
        self._has_told = False

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run the function within the budget. Raises BudgetError, and what a Driver raises."""
        if self.demands is not None and (why := self.demands.unmet(args)):
            raise Ineligible(why)
        return self._plan_of(args).driver(args)

    def planned(self, args: Sequence[Any]) -> Driver:
        """Return the driver for these arguments. Raises BudgetError."""
        return self._plan_of(args).driver

    def _plan_of(self, args: Sequence[Any]) -> Plan:
        """Return the plan for these arguments. Raises BudgetError."""
        key = _key(args), _sharing(args) if self._writes else ()
        found = self._plans.get(key)
        if found is None:
            with self._searching:
                found = self._plans.get(key) or self._found(args)
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = found
        if isinstance(found, BudgetError):
            raise copy.copy(found)  # its traceback's frames hold the arguments
        return found

    def _tell(self, why: str) -> None:
        """Warn once that a call is run without its budget."""
        if not self._has_told:
            self._has_told = True
            warn(f"{self.name}: the budget is not enforced: {why}")

    def _found(self, args: Sequence[Any]) -> Plan | BudgetError:
        if any(x.layout is not torch.strided for x in tensors_in(args)):
            raise Ineligible("a tensor that is not dense")  # as an unbudgeted call does
        try:
            with watching.aside():
                plan = search(self._plain, args, self.budget_bytes, self.name)
            arena.keep_tight()
            if plan.ends:
                self._tell(f"{plan.ends}; it is enforced up to there")
            return plan
        except BudgetError as refused:
            return copy.copy(refused)


def _key(args: Sequence[Any]) -> Any:
    # On GPUs the kernels of a backward pass depend on it.
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    forms = tuple(map(_form, args))
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
        return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad, has_grad)
    if isinstance(value, tuple | list):
        return tuple(map(_form, cast("Sequence[Any]", value)))
    if type(value) is dict:
        rows = cast("Mapping[Any, Any]", value).items()
        return tuple((_form(k), _form(v)) for k, v in rows)
    is_plain = value is None or isinstance(value, int | float | str)
    # By text: `1`, `1.0` and `True` are equal, and so are 0.0 and -0.0; NaN is not equal to itself.
    return (type(value), repr(value)) if is_plain else id(cast("object", type(value)))


def make_driver(function: Function, options: Options, name: str = "") -> Driver:
    """Return a driver for a function, within the budget of the options if there is one. `name`:
    what the user calls the function, if not by its own name."""
    function = compiler.prepared(function, in_chunks=options.budget_bytes is not None)
    if options.budget_bytes is None:
        return Driver(function, tiles=options.tiles)
    return BudgetedDriver(function, options.budget_bytes, options.tiles, name)
