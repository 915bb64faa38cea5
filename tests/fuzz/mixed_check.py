"""Compares compiled programs of numbers, strings, containers and tensors with plain Python.

In: a `MixedProgram`. Out: "" or what is wrong.

    check(program)     compares values and their types, the exception's type, and what became of
                       the arguments

A program that is refused with a CompileError is counted, and is no failure.
"""

from __future__ import annotations

import copy
import io
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.errors import CompileError
from tests.fuzz.check import Tally, python_function
from tests.fuzz.loop_check import without_one
from tests.fuzz.mixed import MixedProgram, runs


def check(program: MixedProgram, tally: Tally | None = None) -> str:
    """Calls the program with each of `runs()`, twice the first; one of three from a file, too."""
    tally = tally or Tally()
    plain = _function(program)
    compiled: Any = lt.script(plain)
    try:
        wrong = _called(plain, compiled, tally)
        if not wrong and not program.seed % 3:
            wrong = _called(plain, _reloaded(compiled), tally)
            wrong = f"from a file: {wrong}" if wrong else ""
    except CompileError as error:
        tally.refused[_reason(error)] += 1
        return ""
    return wrong


def _called(plain: Callable[..., Any], compiled: Callable[..., Any], tally: Tally) -> str:
    given = runs()
    for args in (*given, given[0]):
        tally.runs += 1
        wrong = different(_told(plain, args), _told(compiled, args))
        if wrong:
            return f"{args}\n  {wrong}"
        tally.compiled += 1
    return ""


def _reloaded(compiled: Any) -> Callable[..., Any]:
    file = io.BytesIO()
    lt.save(compiled, file)
    file.seek(0)
    return lt.load(file)


def _function(program: MixedProgram) -> Callable[..., Any]:
    return python_function(cast("Any", program))


def _reason(error: CompileError) -> str:
    return str(error).splitlines()[0].partition(": ")[2][:90]


def _told(f: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """What a call gave and left of its arguments, or the exception."""
    args = copy.deepcopy(given)
    with faults.strict(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return [f(*args), args]
        except CompileError:
            raise
        except Exception as error:
            return error


def different(want: Any, got: Any) -> str:
    """What the second is other than the first in; "" if in nothing."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        is_same = type(want) is type(got)
        return "" if is_same else f"compiled {got!r}, plain {want!r}"[:800]
    if type(want) is not type(got):
        return f"compiled {got!r}, plain {want!r}"[:800]
    if isinstance(want, torch.Tensor):
        is_alike = want.dtype is got.dtype and want.shape == got.shape
        if is_alike and torch.allclose(want, got, rtol=1e-5, atol=1e-5, equal_nan=True):
            return ""
        return f"compiled {got!r}, plain {want!r}"[:800]
    if isinstance(want, list | tuple | dict):
        pairs = [_parts(want), _parts(got)]
        if len(pairs[0]) != len(pairs[1]):
            return f"compiled {got!r}, plain {want!r}"[:800]
        found = ((k, different(a, b)) for k, (a, b) in enumerate(zip(*pairs, strict=True)))
        return next((f"[{k}] {wrong}" for k, wrong in found if wrong), "")
    if isinstance(want, float) and math.isclose(want, got, rel_tol=1e-5, abs_tol=1e-5):
        return ""  # of a tensor's sum
    is_nan = want != want and got != got
    return "" if is_nan or repr(want) == repr(got) else f"compiled {got!r}, plain {want!r}"


def _parts(value: Any) -> list[Any]:
    return [*value.items()] if isinstance(value, dict) else [*value]


def failure(program: MixedProgram) -> str:
    """As `check`, with exceptions as text."""
    try:
        return check(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def minimised(program: MixedProgram) -> MixedProgram:
    """A program with as few statements as possible that still fails."""
    while True:
        for less in _with_less(program):
            if _is_python(less) and failure(less):
                program = less
                break
        else:
            return program


def _is_python(program: MixedProgram) -> bool:
    """Whether it compiles, reads no name before it is there, and ends: its loops count."""
    if program.source.count("while ") > len(re.findall(r"c\d \+= 1", program.source)):
        return False
    try:
        plain = _function(program)
    except SyntaxError:
        return False
    return not any(isinstance(_told(plain, args), NameError) for args in runs())


def _with_less(program: MixedProgram) -> Iterator[MixedProgram]:
    for body in without_one(program.body):
        yield replace(program, body=body)
