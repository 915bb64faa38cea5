"""Programs of tests/language through a file: saved, loaded without their source, and compared.

In: a `Program` of the corpus. Out: an `Outcome`: "equal", "refused" with the CompileError's text,
or "differs" with what differs.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import warnings
from typing import Any

from torch import nn

import lowtide as lt
from lowtide.deploy.adopted import classes_of
from lowtide.ir.named_results import RESULTS, build
from tests.language import support
from tests.language.support import Program


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program; `used`: it had to be called before it could be saved."""

    kind: str
    why: str = ""
    used: bool = False


def through_file(c: Any, **options: Any) -> Any:
    """The same, out of a file."""
    file = io.BytesIO()
    lt.save(c, file)
    file.seek(0)
    return lt.load(file, **options)


def compiled(p: Program) -> Any:
    """The program under lt.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lt.script(support._instance(p))


def round_trip(p: Program) -> Outcome:
    """Saves as annotated; where annotations do not say enough, after one run."""
    plain = support.run_plain(p)
    fresh = _attempt(p, plain, used=False)
    return fresh if fresh.kind == "equal" or p.is_module else _attempt(p, plain, used=True)


def _attempt(p: Program, plain: support.Run, used: bool) -> Outcome:
    try:
        c = compiled(p)
        if used:
            support._run(p, c)
        loaded = through_file(c)
    except lt.CompileError as error:
        return Outcome("refused", str(error))
    try:
        again = support._run(_adapted(p, loaded), loaded)
        _compare(p, plain, again)
    except Exception as error:
        return Outcome("differs", f"{type(error).__name__}: {error}")
    return Outcome("equal", used=used)


def _adapted(p: Program, loaded: Any) -> Program:
    """The program with arguments of the file's own classes, any exception let through by name."""
    classes = classes_of(loaded)

    def calls() -> list[Any]:
        memo: dict[int, Any] = {}
        return [translated(one, classes, memo) for one in p.calls()]

    raises = Exception if p.raises is not None else None
    return dataclasses.replace(p, calls=calls, raises=raises)


def translated(value: Any, classes: dict[str, type], memo: dict[int, Any]) -> Any:
    """The value with objects of the corpus' classes as objects of the loaded ones."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, support.Call):
        args, kwargs = (translated(v, classes, memo) for v in (value.args, value.kwargs))
        return support.Call(args, kwargs, value.method)
    known: Any = classes.get(type(value).__name__)
    if isinstance(value, enum.Enum):
        if known is None:
            return value
        return known[value.name] if value.name in known.__members__ else known(value.value)
    if isinstance(value, list):
        memo[id(value)] = made = []
        made.extend(translated(v, classes, memo) for v in value)
        return made
    if isinstance(value, dict):
        pairs = value.items()
        return {translated(k, classes, memo): translated(v, classes, memo) for k, v in pairs}
    if isinstance(value, tuple):
        parts = [translated(v, classes, memo) for v in value]
        if type(value) in RESULTS.values():
            return build(type(value), parts)
        return known._make(parts) if known and hasattr(value, "_fields") else tuple(parts)
    if known is not None and not isinstance(value, nn.Module):
        memo[id(value)] = made = known.__new__(known)
        for name, inner in support._fields(value).items():
            object.__setattr__(made, name, translated(inner, classes, memo))
        return made
    return value


def _compare(p: Program, plain: support.Run, again: support.Run) -> None:
    for run in (plain, again):
        for one in run.outcomes:
            one.result, one.args, one.kwargs = map(_named, (one.result, one.args, one.kwargs))
            if one.raised is not None:
                one.result, one.raised = (type(one.raised).__name__, str(one.raised)), None
        run.state = _named(run.state)
    support.compare(plain, again)


def _named(value: Any) -> Any:
    """Members of enums by their names, for those of two classes are never equal."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, list):
        return [_named(v) for v in value] if any(map(_has_enum, value)) else value
    if type(value) is tuple:
        return tuple(map(_named, value))
    if isinstance(value, dict):
        return {_named(k): _named(v) for k, v in value.items()}
    return value


def _has_enum(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_enum, value))
    return isinstance(value, enum.Enum)
