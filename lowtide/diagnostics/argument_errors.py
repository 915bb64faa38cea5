"""Python's own error text for a call with wrong arguments; `inspect` words it otherwise.

In: a signature, the arguments of a call that it does not take. Out: the text of Python's TypeError.

    f(nope=1)      got an unexpected keyword argument 'nope'       not: missing a required argument
    f()            missing 2 required positional arguments: 'x' and 'y'

Invariant: faults are looked for in Python's order, so that the same one is reported.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence


def python_words(
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    receivers: int = 0,
) -> str:
    """Return the error's text without the function's name; "" if nothing is wrong. `receivers`: 1
    for a method whose `self` is not in the signature, because Python counts it."""
    found = (
        *_keywords(signature, len(args), kwargs),
        *_too_many(signature, len(args), receivers),
        *_missing(signature, len(args), kwargs),
    )
    return next(iter(found), "")


def _positional(signature: inspect.Signature) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in signature.parameters.values() if p.kind in kinds]


def _takes(signature: inspect.Signature, *kinds: object) -> bool:
    return any(p.kind in kinds for p in signature.parameters.values())


def _keywords(
    signature: inspect.Signature, count: int, kwargs: Mapping[str, object]
) -> Iterator[str]:
    given = {p.name for p in _positional(signature)[:count]}
    only = [p.name for p in _positional(signature) if p.kind is p.POSITIONAL_ONLY]
    rest = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    known = {p.name for p in signature.parameters.values() if p.kind not in rest}.difference(only)
    takes_any = _takes(signature, inspect.Parameter.VAR_KEYWORD)
    for name in kwargs:
        if name in known & given:
            yield f"got multiple values for argument {name!r}"
        elif name not in known and not takes_any:
            passed = ", ".join(k for k in only if k in kwargs)
            if passed:
                yield f"got some positional-only arguments passed as keyword arguments: {passed!r}"
            yield f"got an unexpected keyword argument {name!r}"


def _too_many(signature: inspect.Signature, count: int, receivers: int) -> Iterator[str]:
    found = _positional(signature)
    if count <= len(found) or _takes(signature, inspect.Parameter.VAR_POSITIONAL):
        return
    most = len(found) + receivers
    least = sum(p.default is p.empty for p in found) + receivers
    takes = f"{most}" if least == most else f"from {least} to {most}"
    plural = "" if most == 1 and least == most else "s"
    were = "was" if count + receivers == 1 else "were"
    yield f"takes {takes} positional argument{plural} but {count + receivers} {were} given"


def _missing(
    signature: inspect.Signature, count: int, kwargs: Mapping[str, object]
) -> Iterator[str]:
    parameters = signature.parameters.values()
    rows = {
        "positional": _positional(signature)[count:],
        "keyword-only": [p for p in parameters if p.kind is p.KEYWORD_ONLY],
    }
    for kind, found in rows.items():
        names = [repr(p.name) for p in found if p.default is p.empty and p.name not in kwargs]
        if names:
            plural = "" if len(names) == 1 else "s"
            yield f"missing {len(names)} required {kind} argument{plural}: {_listed(names)}"


def _listed(names: Sequence[str]) -> str:
    """Return `'a'`, `'a' and 'b'`, `'a', 'b', and 'c'`."""
    if len(names) < 3:
        return " and ".join(names)
    return f"{', '.join(names[:-1])}, and {names[-1]}"
