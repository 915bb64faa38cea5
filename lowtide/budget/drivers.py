"""Chooses the driver of a function: as it is, in chunks, or within a budget.

In: a Function and the user's options. Out: a Driver.
"""

from __future__ import annotations

from lowtide import compiler
from lowtide.budget.budgeted import BudgetedDriver
from lowtide.budget.in_chunks import ChunkedDriver, reads_pairs
from lowtide.execute.driver import Driver
from lowtide.execute.options import Options
from lowtide.ir.core import Function


def make_driver(function: Function, options: Options, name: str = "") -> Driver:
    """Return a driver for a function, within the budget of the options if there is one. `name`:
    what the user calls the function, if not by its own name."""
    function = compiler.prepared(function, in_chunks=options.budget_bytes is not None)
    if options.budget_bytes is not None:
        return BudgetedDriver(function, options.budget_bytes, options.tiles, name)
    made = ChunkedDriver if reads_pairs(function) else Driver
    return made(function, tiles=options.tiles)
