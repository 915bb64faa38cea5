"""Compares predicted peaks of random programs with the bytes that both allocators are asked for.

In: a `Program`. Out: "" or what is wrong.

    check(program)     runs it with and without gradients

The contract is that of `tests/memory/contract.py`: measured <= predicted, with room where libraries
such as oneDNN allocate.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import lowtide as lt
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, python_function
from tests.fuzz.program import Program
from tests.memory.contract import requested_bytes, violation


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
        asked = requested_bytes(functools.partial(_run, compiled, args))
        wrong = violation(asked, plan.peak_bytes, library_ops=False)
        if wrong:
            return f"{dict(sizes)}, {wrong}\n{plan}"
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
