"""Predicted peaks of random programs against what is resident, on the heap as it comes.

In: a `Program`, grown to sizes where holes count, by `lt.script` as it is and by `lt.compile` with
graph breaks between its lines; with and without gradients; by `lt.compile` within budgets, too, of
which `memory()` was asked or not. Out: "" or what is wrong.

    measured <= predicted <= 1.1 * measured + 8 MB,  measured <= budget

`python -m tests.fuzz.resident_check SEED` measures one program in a process of its own, and prints
a line of JSON for each way, `{"way": …, "predicted": …, "measured": […]}`, with the `budget` where
there is one: there nothing may be predicted, and what is said to be over it is.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo

import lowtide as lt
from lowtide.errors import CompileError
from lowtide.memory.measure import measure_peak
from tests.fuzz.check import Tally, python_function
from tests.fuzz.generate import generate
from tests.fuzz.program import Line, Program
from tests.quickly import compile_quickly

TIMES = 9  # as large as in the other checks
NOISE_BYTES = 1 << 19  # the kernel counts resident pages on each CPU, and adds up now and then
LEAST_BYTES, MOST_BYTES = 3_000_000, 1_500_000_000
BREAKS = 0.4  # of the lines
LIMIT_S = 200
_REFUSED = (CompileError, RuntimeError, ValueError, IndexError)


def check(program: Program, tally: Tally | None = None) -> str:
    """Measures it in a new process."""
    tally = tally or Tally()
    command = [sys.executable, "-m", "tests.fuzz.resident_check", str(program.seed)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        tally.rejected += 1
        return ""
    if done.returncode:
        return done.stderr[-1000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    tally.runs += len(rows)
    return next((str(row) for row in rows if not _is_right(row)), "")


def failure(program: Program) -> str:
    return check(program)


def minimised(program: Program) -> Program:
    """As it is: a smaller program has another peak, and another reason to be wrong."""
    return program


def _is_right(row: dict[str, Any]) -> bool:
    predicted, measured = row["predicted"], row["measured"]
    if predicted is None:
        return min(measured) <= row["budget"] + NOISE_BYTES
    is_low = min(measured) > predicted + NOISE_BYTES or predicted > row.get("budget", predicted)
    return not is_low and predicted <= 1.1 * max(measured) + 8_000_000


def _broken(program: Program) -> Program:
    """With graph breaks between its lines."""
    chance = random.Random(program.seed)
    stop = Line(targets=("_",), text="torch._dynamo.graph_break()", uses=())
    lines: list[Line] = []
    for line in program.lines:
        lines += [line, stop] if chance.random() < BREAKS else [line]
    return replace(program, lines=tuple(lines))


def _rows(program: Program) -> Iterator[dict[str, Any]]:
    sizes = {name: TIMES * size for name, size in program.runs[0].items()}
    forms = program.arguments(program.runs[0]).values()
    given_bytes = sum(
        torch.empty(i.shape(sizes), dtype=x.dtype, device="meta").nbytes
        for i, x in zip(program.inputs, forms, strict=True)
    )
    if given_bytes > MOST_BYTES:
        return
    for way, compile in ("script", lt.script), ("compile", lt.compile):
        function = python_function(_broken(program) if way == "compile" else program)
        for grad in (False, True):
            torch._dynamo.reset()
            args = list(program.arguments(sizes).values())
            for x in args:
                x.requires_grad_(grad and x.is_floating_point())
            try:
                found = _predicted_and_measured(compile(function), args)
            except _REFUSED:
                continue  # `check` compares that with eager
            if found is None:
                continue
            kind = f"{way}, {'grad' if grad else 'plain'}"
            yield {"way": kind, **found}
            if way == "compile":
                yield from _within_budgets(function, args, kind, found["predicted"])


def _within_budgets(
    function: Any, args: list[torch.Tensor], kind: str, most: int
) -> Iterator[dict[str, Any]]:
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
        row = {"predicted": predicted, "measured": _measured(compiled, args), "budget": budget}
        yield {"way": f"{kind}, {name}", **row}
    compiled = fresh(budget)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", RuntimeWarning)
        row = {"predicted": None, "measured": _measured(compiled, args), "budget": budget}
    if not told:
        yield {"way": f"{kind}, half, not asked", **row}


def _predicted_and_measured(compiled: Any, args: list[torch.Tensor]) -> dict[str, Any] | None:
    """None where little is taken, too much, or what is not known."""
    plan = compiled.memory(*args)
    is_known = not any("nothing after it is counted" in note for note in plan.notes)
    if not (is_known and LEAST_BYTES < plan.peak_bytes < MOST_BYTES):
        return None
    return {"predicted": plan.peak_bytes, "measured": _measured(compiled, args)}


def _measured(compiled: Any, args: list[torch.Tensor]) -> list[int]:
    """Three times."""

    def run() -> None:
        carrying = [x for x in compiled(*args) if x.requires_grad]
        if carrying:
            torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])

    measured: list[int] = []
    for _ in range(4):
        for x in args:
            x.grad = None
        measured.append(measure_peak(run, release=lt.empty_cache)[0].peak_bytes)
    return measured[1:]  # the first call compiles


if __name__ == "__main__":
    compile_quickly()
    for found in _rows(generate(int(sys.argv[1]))):
        print(json.dumps(found), flush=True)
