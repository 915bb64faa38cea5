"""Compares the memory of random calls with their predicted peaks and their budgets.

In: a `Program`, with its sizes scaled to some megabytes. Out: "" or what is wrong.

    check(program)     by lt.script and by lt.compile, as one graph;
                       with and without gradients;
                       by lt.compile also within budgets, with and without a `memory()` before

A call must keep the contract of `tests/memory/contract.py`, and may not request more than its
budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo

import lowtide as lt
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, python_function
from tests.fuzz.program import Program
from tests.memory.contract import requested_bytes, violation

TIMES = 9  # as large as in the other checks
LEAST_BYTES, MOST_BYTES = 3_000_000, 1_500_000_000
_REFUSED = (CompileError, RuntimeError, ValueError, IndexError)


def check(program: Program, tally: Tally | None = None) -> str:
    """In this process."""
    tally = tally or Tally()
    for row in _rows(program):
        tally.runs += 1
        if wrong := _wrong(row):
            return f"{row.way}: {wrong}"
    return ""


def failure(program: Program) -> str:
    return check(program)


def minimised(program: Program) -> Program:
    """As it is: a smaller program has another peak, and another reason to be wrong."""
    return program


@dataclass(frozen=True, kw_only=True)
class Row:
    """A way to run a program, in bytes. `predicted` is None where nobody asks; there is a `budget`
    then, as elsewhere within budgets."""

    way: str
    asked: int
    predicted: int | None
    budget: int | None = None


def _wrong(row: Row) -> str:
    if row.budget is not None and max(row.asked, row.predicted or 0) > row.budget:
        return f"the budget is not kept: {row}"
    if row.predicted is None:
        return ""
    return violation(row.asked, row.predicted, library_ops=False)


def _rows(program: Program) -> Iterator[Row]:
    sizes = {name: TIMES * size for name, size in program.runs[0].items()}
    forms = program.arguments(program.runs[0]).values()
    given_bytes = sum(
        torch.empty(i.shape(sizes), dtype=x.dtype, device="meta").nbytes
        for i, x in zip(program.inputs, forms, strict=True)
    )
    if given_bytes > MOST_BYTES:
        return
    for way, compile in ("script", lt.script), ("compile", lt.compile):
        function = python_function(program)
        for grad in (False, True):
            torch._dynamo.reset()
            args = list(program.arguments(sizes).values())
            for x in args:
                x.requires_grad_(grad and x.is_floating_point())
            kind = f"{way}, {'grad' if grad else 'plain'}"
            try:
                found = _free(compile(function), args, kind)
            except _REFUSED:
                continue  # `check` compares that with eager
            if found is None or found.predicted is None:
                continue
            yield found
            if way == "compile":
                yield from _within_budgets(function, args, kind, found.predicted)


def _within_budgets(function: Any, args: list[torch.Tensor], kind: str, most: int) -> Iterator[Row]:
    def fresh(budget: int) -> Any:
        for x in args:
            x.grad = None
        torch._dynamo.reset()
        return lt.compile(function, budget=budget)

    try:
        fresh(1).memory(*args)
    except lt.BudgetError as refused:
        least = refused.least_bytes
    else:
        return  # what it takes is not known
    for name, budget in ("least", least), ("half", (least + most) // 2):
        compiled = fresh(budget)
        predicted = compiled.memory(*args).peak_bytes
        asked = _asked(compiled, args)
        yield Row(way=f"{kind}, {name}", asked=asked, predicted=predicted, budget=budget)
    compiled = fresh(budget)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        asked = _asked(compiled, args)
    if not told:
        yield Row(way=f"{kind}, half, not asked", asked=asked, predicted=None, budget=budget)


def _free(compiled: Any, args: list[torch.Tensor], way: str) -> Row | None:
    """Without a budget. None where little is taken, too much, or what is not known."""
    plan = compiled.memory(*args)
    is_known = not any("nothing after it is counted" in note for note in plan.notes)
    if not (is_known and LEAST_BYTES < plan.peak_bytes < MOST_BYTES):
        return None
    return Row(way=way, asked=_asked(compiled, args), predicted=plan.peak_bytes)


def _asked(compiled: Any, args: list[torch.Tensor]) -> int:
    """By the second call: the first compiles."""

    def run() -> None:
        carrying = [x for x in compiled(*args) if x.requires_grad]
        if carrying:
            torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])

    for _ in range(2):
        for x in args:
            x.grad = None
        asked = requested_bytes(run)
    return asked
