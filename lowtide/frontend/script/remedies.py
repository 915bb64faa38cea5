"""Suggestions in error messages: names and arguments to write instead.

alike("sine", names, "…")             →  "`sin` or `sinc`"       the names nearest to it
fitting("py.add", [STR, INT])         →  "str() of the int"
member(STR, str, "encode")            →  "a function marked `@lt.ignore` that does it, …"
member(LIST, list, "push")            →  "`append`"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from lowtide.ir import types as t

CALLABLES = "a function, a method, a class or a module"
INDEXED = "an item of a list, a tuple, a dict, a str or a tensor"
IGNORED = "a function marked `@lt.ignore` that does it, called in its place"
_NEAR = 0.76  # `relue` is near to `relu`, `nosuch` is not near to `cosh`
_NEAR_VARIABLE = 0.6  # there are few of them: `h` is near to `hh`

# What other languages, and Python 2, call what these have by another name.
_LENGTH = dict.fromkeys(("length", "size"), "`len(…)`")
_MEMBERSHIP = dict.fromkeys(("contains", "includes", "has", "has_key"), "`in`")
_ELSEWHERE: dict[type, dict[str, str]] = {
    list: {
        **_LENGTH,
        **_MEMBERSHIP,
        **dict.fromkeys(("push", "push_back", "add"), "`append`"),
        "concat": "`extend`",
    },
    tuple: {**_LENGTH, **_MEMBERSHIP},
    set: {**_LENGTH, **_MEMBERSHIP, **dict.fromkeys(("append", "push", "insert"), "`add`")},
    dict: {
        **_LENGTH,
        **_MEMBERSHIP,
        **{f"{kind}{name}": f"`{name}`"
           for kind in ("iter", "view") for name in ("items", "keys", "values")},
    },
    str: {
        **_LENGTH,
        **_MEMBERSHIP,
        **dict.fromkeys(("reverse", "reversed"), "`[::-1]`"),
        "trim": "`strip`",
        "substring": "a slice",
    },
}  # fmt: skip

_OPERANDS = {  # what an op takes, where it takes one kind of thing
    "py.len": "a list, a tuple, a dict, a str or a tensor",
    **dict.fromkeys(
        ("py.iter", "py.tuple", "list.of"), "a list, a tuple, a dict, a str or a tensor"
    ),
    "py.contains": "a list, a tuple, a dict, a str or a tensor on the right",
    "py.ord": "a str of one character",
    "py.chr": "an int",
}
_NUMBERS = (t.INT, t.FLOAT, t.BOOL, t.NUMBER, t.COMPLEX)


def alike(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the names similar to this one; `otherwise` if there is none."""
    return _listed(_near(name, names, _NEAR)) or otherwise


def defined(name: str, variables: Iterable[str], outside: Iterable[str]) -> str:
    """Return a suggestion for an undefined name."""
    near = _near(name, variables, _NEAR_VARIABLE) or _near(name, outside, _NEAR)
    return _listed(near) or "an argument or a global of it"


def member(type_: t.Type, cls: type, name: str) -> str:
    """Return a suggestion for an attribute that does not exist, or is not compiled."""
    if cls is not object and hasattr(cls, name):
        return IGNORED
    otherwise = f"an attribute of {type_}, or an annotation with the type that it really has"
    return of_class(cls, name, dir(cls), otherwise)


def of_class(cls: type, name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the similar attributes, or those with the meaning that the name has in other
    languages."""
    elsewhere = _ELSEWHERE.get(cls, {})
    near = _near(name, [*names, *elsewhere], _NEAR)
    return " or ".join(dict.fromkeys(elsewhere.get(n, f"`{n}`") for n in near)) or otherwise


def fitting(op_name: str, types: Sequence[t.Type]) -> str:
    """Return a suggestion for operands of types that Python does not take together."""
    if op_name in _OPERANDS:
        return _OPERANDS[op_name]
    if any(type_ == t.NONE or isinstance(type_, t.OptionalType) for type_ in types):
        return "a check that it is not None, before this line"
    numbers = [type_ for type_ in types if type_ in _NUMBERS]
    if t.STR in types and numbers:
        return f"str() of the {numbers[0]}, or int() or float() of the str"
    if len(numbers) == len(types):
        return "int() or float() of the operand that does not fit"
    return "operands of types that Python accepts here"


def _near(name: str, names: Iterable[str], cutoff: float) -> list[str]:
    return difflib.get_close_matches(name, [n for n in names if n[:1] not in "_$"], 3, cutoff)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(f"`{n}`" for n in names)
