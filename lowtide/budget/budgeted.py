"""A Driver that keeps to a budget.

In: a Function, a number of bytes. Out: a callable like a Driver. The first call with some sizes,
dtypes and wanted gradients searches for a plan; later calls look it up.

    f = lt.script(ranked, budget="4MB")
    f(x)                searches, runs the plan
    f(y)                the same sizes: runs the plan

Invariant: if no plan fits, BudgetError is raised before anything is run or allocated.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from lowtide.budget.planned import PlannedDriver
from lowtide.budget.search import Plan, search
from lowtide.diagnostics.warned import warn
from lowtide.errors import BudgetError
from lowtide.execute.backend import Tiles
from lowtide.execute.driver import Driver
from lowtide.ir.core import Function
from lowtide.memory import watching
from lowtide.runtime import arena
from lowtide.specialise.signature import Ineligible
from lowtide.torch_private.pytree import tensors_in


class BudgetedDriver(PlannedDriver[Plan | BudgetError]):
    """See the module's text."""

    def __init__(
        self, function: Function, budget_bytes: int, tiles: Tiles = "usual", name: str = ""
    ) -> None:
        """`name`: what the user calls the function, for errors and warnings."""
        super().__init__(function, tiles=tiles)
        self.budget_bytes = budget_bytes
        self.name = name or function.name
        self._has_warned = False

    def __call__(self, args: Sequence[Any]) -> Any:
        """Run the function within the budget. Raises BudgetError, and what a Driver raises."""
        if self.demands is not None and (why := self.demands.unmet(args)):
            raise Ineligible(why)
        return self._fitting(args).driver(args)

    def planned(self, args: Sequence[Any]) -> Driver:
        """Return the driver for these arguments. Raises BudgetError."""
        return self._fitting(args).driver

    def _fitting(self, args: Sequence[Any]) -> Plan:
        """Return the plan for these arguments. Raises BudgetError."""
        found = self._plan_of(args)
        if isinstance(found, BudgetError):
            raise copy.copy(found)  # its traceback's frames hold the arguments
        return found

    def _tell(self, why: str) -> None:
        """Warn once that a call is run without its budget."""
        if not self._has_warned:
            self._has_warned = True
            warn(f"{self.name}: the budget is not enforced: {why}")

    def _search(self, args: Sequence[Any]) -> Plan | BudgetError:
        if any(x.layout is not torch.strided for x in tensors_in(args)):
            raise Ineligible("a tensor that is not dense")  # as an unbudgeted call does
        try:
            self._plain.computed = self.computed
            with watching.aside():
                plan = search(self._plain, args, self.budget_bytes, self.name)
            arena.keep_tight()
            if plan.ends:
                self._tell(f"{plan.ends}; it is enforced up to there")
            return plan
        except BudgetError as refused:
            return copy.copy(refused)
