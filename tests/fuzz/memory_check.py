"""Predicted peaks of random programs against what PyTorch's allocator and the arena hand out.

In: a `Program`, run with and without gradients. Out: "" or what is wrong.

    measured <= predicted <= 1.1 * measured + 8 MB
"""

from __future__ import annotations

from typing import Any

import torch

import lowtide as lt
from lowtide.errors import CompileError
from lowtide.memory.measure import measure_peak
from lowtide.runtime import arena
from tests.fuzz.check import Tally, python_function
from tests.fuzz.program import Program


def check(program: Program, tally: Tally | None = None) -> str:
    """Runs a program at two sizes, then forward and backward."""
    tally = tally or Tally()
    return next((w for grad in (False, True) if (w := check_one(program, grad, tally))), "")


def check_one(program: Program, grad: bool, tally: Tally | None = None) -> str:
    """Only without gradients, or only with them."""
    tally = tally or Tally()
    try:
        compiled: Any = lt.script(python_function(program))
    except CompileError as error:
        tally.refused[str(error).splitlines()[0][:100]] += 1
        return ""
    for sizes in program.runs[:2]:
        args = list(program.arguments(sizes).values())
        for x in args:
            x.requires_grad_(grad and x.is_floating_point())
        tally.runs += 1
        try:
            _run(compiled, args)
        except (CompileError, RuntimeError, ValueError, IndexError):
            tally.rejected += 1  # eager refuses it as well; `check` compares that
            continue
        for x in args:
            x.grad = None
        plan = compiled.memory(*args)
        if any("nothing after it is counted" in n for n in plan.notes):
            continue
        measured = _asked_for(compiled, args)
        if not measured <= plan.peak_bytes <= 1.1 * measured + 8_000_000:
            return f"{dict(sizes)}, {measured} bytes measured\n{plan}"
    return ""


def failure(program: Program) -> str:
    return check(program)


def minimised(program: Program) -> Program:
    """As it is: a smaller program has another peak, and another reason to be wrong."""
    return program


def _run(compiled: Any, args: list[torch.Tensor]) -> object:
    result = compiled(*args)
    carrying = [x for x in result if x.requires_grad]
    if carrying:
        torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
    return result


def _asked_for(compiled: Any, args: list[torch.Tensor]) -> int:
    """The most that was held of what the call asked for; each allocator at its own peak."""
    arena.reset_peak()
    before = arena.stats().in_use_bytes
    peak, result = measure_peak(
        lambda: _run(compiled, args), release=lt.empty_cache, allocations_only=True
    )
    del result
    return max(peak.peak_bytes, arena.stats().peak_in_use_bytes - before)
