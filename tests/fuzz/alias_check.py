"""Compares compiled programs about lists with plain Python, and makes failing ones small.

In: an `AliasProgram`. Out: "" or what is wrong.

    check(program)         compares results, arguments, exceptions, and which lists are identical
    minimised(program)     the smallest program found that still fails

All statements of these programs are in the language, so a CompileError is a failure, too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import lowtide as lt
from lowtide.errors import CompileError
from tests.fuzz.aliases import RUNS, AliasProgram
from tests.fuzz.check import Tally, python_function
from tests.fuzz.loop_check import without_one

_LARGEST = 4000


def check(program: AliasProgram, tally: Tally | None = None) -> str:
    """Calls the program with each of `RUNS`."""
    tally = tally or Tally()
    plain = python_function(program)
    compiled = lt.script(plain)
    for given in RUNS:
        tally.runs += 1
        want = _told(plain, given)
        try:
            got = _told(compiled, given)
        except CompileError as error:
            return f"refused: {error}"
        if got != want:
            return f"{given}\n  plain    {want}\n  compiled {got}"
        tally.compiled += 1
    return ""


def _told(f: Callable[..., Any], given: tuple[Any, ...]) -> str:
    """What a call gave and left behind, with the places of lists that were met before."""
    args = copy.deepcopy(given)
    try:
        result = f(*args)
    except CompileError:
        raise
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    return _shown((result, args), {})


def _shown(value: Any, seen: dict[int, int]) -> str:
    if not isinstance(value, list | tuple | dict):
        return repr(value)
    if not isinstance(value, tuple):
        if id(value) in seen:
            return f"#{seen[id(value)]}"
        seen[id(value)] = len(seen)
    items = [x for pair in value.items() for x in pair] if isinstance(value, dict) else value
    inner = ", ".join(_shown(x, seen) for x in items)
    return f"{type(value).__name__}({inner})"


def failure(program: AliasProgram) -> str:
    """As `check`, with exceptions as text."""
    try:
        return check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(program: AliasProgram) -> AliasProgram:
    """Drops statements as long as it fails in the same way: refused, or wrong."""
    was_refused = failure(program).startswith("refused")
    changed = True
    while changed:
        changed = False
        for candidate in _with_less(program):
            wrong = failure(candidate) if _runs(candidate) else ""
            if wrong and wrong.startswith("refused") == was_refused:
                program, changed = candidate, True
                break
    return program


def _runs(program: AliasProgram) -> bool:
    """Whether plain Python takes it."""
    try:
        plain = python_function(program)
        return all(len(_told(plain, given)) < _LARGEST for given in RUNS)
    except Exception:
        return False


def _with_less(program: AliasProgram) -> Iterator[AliasProgram]:
    for body in without_one(program.body):
        yield replace(program, body=body)
