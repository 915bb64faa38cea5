"""Runs a story of a module's state in eager PyTorch and compiled, and compares after every step.

In: a `Story`. Out: "" or what is wrong: a result, an exception, or an attribute. A text that begins
with "loud: " is no wrong result: a refusal, or an internal error.

    check(generate(17))     three ways: steps change the module itself ("script"), the compiled one
                            ("wrapper"), or one that was saved and loaded ("loaded")
"""

from __future__ import annotations

import copy
import io
import itertools
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.errors import CompileError, LoadError
from tests.fuzz.check import Tally, folder
from tests.fuzz.states import Story
from tests.written import function_of

_serial = itertools.count()
_OBJECTS = ("Config()", "Record()")


def check(story: Story, tally: Tally | None = None) -> str:
    """What is wrong, "" if nothing."""
    tally = tally or Tally()
    path = Path(folder.name) / f"story_{next(_serial)}.py"
    program = function_of(story.source, path, "Program")
    scope = vars(__import__("sys").modules[path.stem])
    for way in ("script", "wrapper", "loaded"):
        tally.runs += 1
        wrong = _told(story, program, scope, way)
        if wrong.startswith("refused"):
            tally.refused[f"{way} {wrong[:90]}"] += 1
        elif wrong:
            return f"{way}, {wrong}"
    return ""


def _told(story: Story, program: Any, scope: dict[str, Any], way: str) -> str:
    """`way`: whether others change the module itself, the compiled one, or one from a file."""
    torch.manual_seed(0)
    plain = program()
    root = copy.deepcopy(plain)
    try:
        made = lt.script(root)
        if way == "loaded":
            made = _reloaded(made)
    except CompileError as error:
        return f"refused: {str(error).splitlines()[0].partition(': ')[2]}"
    changed: Any = root if way == "script" else made
    for k, step in enumerate(story.steps):
        x = torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -0.5]]) * (k % 3 + 1) + k
        match step:
            case "call":
                outcomes = [_outcome(m, x) for m in (plain, made)]
                wrong = _different(*outcomes)
                if isinstance(outcomes[1], CompileError):
                    return f"refused: {str(outcomes[1]).splitlines()[0].partition(': ')[2]}"
                if wrong:
                    return f"step {k}: the result: {wrong}"
                if isinstance(outcomes[0], Exception):
                    return ""  # what it had written by then may differ
            case "copy":
                try:
                    plain = copy.deepcopy(plain)
                except RuntimeError:  # of a tensor with a graph
                    return ""
                made = changed = copy.deepcopy(made)
            case "files":
                try:
                    made = changed = _reloaded(made)
                except (CompileError, LoadError) as error:
                    return f"refused: {str(error).splitlines()[0].partition(': ')[2]}"
            case _ if step.endswith(_OBJECTS) and (way == "loaded" or "files" in story.steps[:k]):
                return ""  # a file's programs know the file's classes only
            case _:
                torch.manual_seed(k)
                failed = [_done(step, m, scope, k) for m in (plain, changed)]
                if failed[0] != failed[1]:
                    return f"step {k}: `{step}`: {failed[1]}, eager {failed[0]}"
        for name, _, _ in story.attributes:
            wrong = _different(getattr(plain, name), getattr(made, name))
            if wrong:
                return f"step {k} ({step}): the attribute {name}: {wrong}"
    return ""


def _reloaded(m: Any) -> Any:
    file = io.BytesIO()
    lt.save(m, file)
    file.seek(0)
    return lt.load(file)


def _outcome(m: Any, x: torch.Tensor) -> Any:
    torch.manual_seed(5)
    with faults.strict(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return m(x.clone())
        except Exception as error:
            return error


def _done(step: str, m: Any, scope: dict[str, Any], k: int) -> str:
    torch.manual_seed(k)
    try:
        exec(step, {**scope, "m": m})
    except Exception as error:
        return type(error).__name__
    return ""


def _different(a: Any, b: Any) -> str:
    """What a second value is other than the first in; "" if in nothing."""
    if isinstance(a, Exception) or isinstance(b, Exception):
        same = type(a) is type(b)
        return "" if same else f"{b!r}, eager {a!r}"[:400]
    if isinstance(a, torch.nn.Module):
        return _of_modules(a, b)
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
            return f"{b!r}, eager {a!r}"[:400]
        is_near = torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)
        return "" if is_near else f"{b!r}, eager {a!r}"[:400]
    if isinstance(a, list | tuple):
        if type(a) is not type(b) or len(a) != len(b):
            return f"{b!r}, eager {a!r}"[:400]
        return next(filter(None, map(_different, a, b)), "")
    if isinstance(a, dict):
        if not isinstance(b, dict) or list(a) != list(b):
            return f"{b!r}, eager {a!r}"[:400]
        return _different(list(a.values()), list(b.values()))
    if is_dataclass(a):
        rows = [(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)]
        return next(filter(None, itertools.starmap(_different, rows)), "")
    if type(a).__name__ == "Config":
        names = ("scale", "kind", "steps", "last")  # those that the program uses come from files
        rows = [(getattr(a, n), getattr(b, n, getattr(a, n))) for n in names]
        return next(filter(None, itertools.starmap(_different, rows)), "")
    return "" if type(a) is type(b) and a == b else f"{b!r}, eager {a!r}"[:400]


def _of_modules(a: Any, b: Any) -> str:
    wrong = _different(dict(a.state_dict()), dict(b.state_dict()))
    if wrong or type(a).__name__ != "Inner":
        return wrong
    rows = [(getattr(a, n), getattr(b, n)) for n in ("h", "seen", "count")]
    return next(filter(None, itertools.starmap(_different, rows)), "")


def failure(story: Story) -> str:
    """What `check` says."""
    return check(story)


def minimised(story: Story) -> Story:
    """A story with as little as possible that still fails."""
    while True:
        for less in story.less():
            try:
                fails = bool(check(less))
            except Exception:
                continue
            if fails:
                story = less
                break
        else:
            return story
