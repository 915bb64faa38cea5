"""Compares random compiled programs with the truth of `judge`, and makes failing ones small.

In: a `Program`. Out:

    check(program)      "" or what is wrong, with the run
    minimised(program)  the program without statements and outputs that the failure does not need
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from lowtide.diagnostics import faults, stats
from lowtide.errors import CompileError, LowtideError
from tests.fuzz.judge import MANY_RUNS, Blurred, difference, expected
from tests.fuzz.program import Program, Sizes
from tests.run.guarded import Guard, Memory, guarded, guarded_memory
from tests.written import function_of

_serial = itertools.count()
folder = tempfile.TemporaryDirectory(prefix="lowtide-fuzz-")


@dataclass(slots=True)
class Tally:
    """What the programs so far came to."""

    runs: int = 0
    compiled: int = 0
    blurred: int = 0
    rejected: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    kernels: int = 0


def python_function(program: Program) -> Any:
    """The program as a function that `inspect` finds the source of."""
    path = Path(folder.name) / f"fuzzed_{next(_serial)}.py"
    return function_of(program.source, path, "program")


def check(program: Program, tally: Tally | None = None) -> str:
    """Runs a program at all its sizes; what is wrong, "" if nothing."""
    tally = tally or Tally()
    try:
        compiled = lt.script(python_function(program))
    except CompileError as error:
        tally.refused[str(error).splitlines()[0][:100]] += 1
        return ""
    with faults.strict(), guarded_memory() as memory:
        for k, sizes in enumerate(program.runs):
            with threads(1 + k % 2):
                wrong = _run(program, compiled, sizes, k, memory, tally)
            if wrong:
                return f"run {k} at {dict(sizes)}: {wrong}"
    return ""


def _run(
    program: Program, compiled: Any, sizes: Sizes, k: int, memory: Memory, tally: Tally
) -> str:
    tally.runs += 1
    guard = Guard.AFTER if (program.seed + k) % 3 else Guard.BEFORE
    plain = program.arguments(sizes)
    try:
        want = expected(program, sizes, plain)
    except Blurred:
        tally.blurred += 1
        return ""
    inputs = [guarded(x, guard) for x in plain.values()]
    memory.guard = guard
    before = stats.cache_stats()
    try:
        got = compiled(*inputs)
    except CompileError as error:
        tally.refused[str(error).splitlines()[0][:100]] += 1
        return ""
    except Exception as error:
        return _judged_error(error, want.error, tally)
    since = stats.cache_stats() - before
    tally.compiled += not since.calls_eager and not since.regions_eager
    if want.error is not None:
        return f"eager raises {want.error!r}, compiled gives a result"
    for name, x in zip(program.outputs, got, strict=True):
        if difference(name, x, want):
            want = expected(program, sizes, plain, MANY_RUNS)
        wrong = difference(name, x, want)
        if wrong:
            return f"{name}: {wrong}"
    memory.check()
    again = compiled(*inputs)
    for name, x, y in zip(program.outputs, got, again, strict=True):
        if bits(x) != bits(y):
            return f"{name}: a second call gives other bits"
    for given, original in zip(inputs, plain.values(), strict=True):
        if bits(given) != bits(original):
            return "an input was changed"
    memory.regions.clear()
    return ""


def _judged_error(error: Exception, wanted: Exception | None, tally: Tally) -> str:
    if wanted is None:
        raise error
    tally.rejected += 1
    if isinstance(error, type(wanted) | LowtideError):
        return ""
    return f"raises {error!r}, eager {wanted!r}"


def bits(x: torch.Tensor) -> bytes:
    flat = x.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()


@contextlib.contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# ---- making it small ----------------------------------------------------------------------------


def failure(program: Program) -> str:
    """As `check`, with exceptions as text."""
    try:
        return check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(program: Program) -> Program:
    """Drops runs, outputs and statements as long as it fails."""
    changed = True
    while changed:
        changed = False
        for smaller in with_less(program):
            if failure(smaller):
                program = smaller
                changed = True
                break
    return program


def with_less(p: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    if len(p.runs) > 1:
        for k in range(len(p.runs)):
            yield replace(p, runs=p.runs[k : k + 1])
        for k in range(len(p.runs)):
            yield replace(p, runs=p.runs[:k] + p.runs[k + 1 :])
    if len(p.outputs) > 1:
        for k in range(len(p.outputs)):
            yield _cut(replace(p, outputs=p.outputs[k : k + 1]))
        for k in range(len(p.outputs)):
            yield _cut(replace(p, outputs=p.outputs[:k] + p.outputs[k + 1 :]))
    for line in p.lines:
        for u in line.uses:  # a statement's operand in the place of its result
            if len(line.targets) == 1:
                yield _cut(_renamed(p, line.targets[0], u))
    for name in {u for line in p.lines for u in line.uses}:
        if name.startswith("v") and name not in p.outputs:
            yield _cut(replace(p, outputs=(name,)))


def _renamed(p: Program, target: str, by: str) -> Program:
    import re

    def swap(text: str) -> str:
        return re.sub(rf"\b{target}\b", by, text)

    lines = tuple(
        replace(
            line,
            text=swap(line.text),
            uses=tuple(dict.fromkeys(swap(u) for u in line.uses)),
            sharp=tuple(dict.fromkeys(swap(u) for u in line.sharp)),
        )
        for line in p.lines
        if target not in line.targets
    )
    outputs = tuple(dict.fromkeys(swap(o) for o in p.outputs))
    return replace(p, lines=lines, outputs=outputs)


def _cut(p: Program) -> Program:
    """Without statements and inputs that no output needs."""
    needed = set(p.outputs)
    lines = []
    for line in reversed(p.lines):
        if needed & set(line.targets):
            lines.append(line)
            needed |= set(line.uses)
    inputs = tuple(i for i in p.inputs if i.name in needed)
    return replace(p, lines=tuple(reversed(lines)), inputs=inputs)
