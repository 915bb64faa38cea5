"""Ops on strings: Python's own methods, by name.

find("str.upper").run("a")        ==  "A"
find("str.split").result([STR])   ==  List[str]
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.row import OpDef, always
from lowtide.ir.types import ListType, TupleType, Type

METHODS_OF: dict[Type, tuple[str, ...]] = {
    t.STR: (
        *("capitalize", "casefold", "center", "expandtabs", "join", "ljust", "lower", "lstrip"),
        *("removeprefix", "removesuffix", "replace", "rjust", "rstrip", "strip", "swapcase"),
        *("title", "upper", "zfill", "format"),
    ),
    t.INT: ("count", "find", "index", "rfind", "rindex"),
    t.BOOL: (
        *("endswith", "startswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit"),
        *("isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"),
    ),
    ListType(t.STR): ("split", "rsplit", "splitlines"),
    TupleType((t.STR, t.STR, t.STR)): ("partition", "rpartition"),
}

METHODS = frozenset(name for names in METHODS_OF.values() for name in names)

_RAISING = ("index", "rindex", "split", "rsplit", "partition", "rpartition", "format", "join")


def method(name: str) -> Callable[..., object]:
    """Return a function that calls the method of the value. The value may be None at run time."""

    def call(value: object, *operands: object) -> object:
        return getattr(value, name)(*operands)

    return call


ROWS = [
    *(
        OpDef(
            name=f"str.{name}",
            run=method(name),
            result=always(result),
            effects=Effects.RAISES if name in _RAISING else Effects.NONE,
        )
        for result, names in METHODS_OF.items()
        for name in names
    ),
    OpDef(name="py.str", run=str, result=always(t.STR)),
    OpDef(name="py.repr", run=repr, result=always(t.STR)),
    OpDef(name="py.ord", run=ord, result=always(t.INT), effects=Effects.RAISES),
    OpDef(name="py.chr", run=chr, result=always(t.STR), effects=Effects.RAISES),
    OpDef(name="py.hex", run=hex, result=always(t.STR)),
    OpDef(name="py.bin", run=bin, result=always(t.STR)),
    OpDef(name="py.oct", run=oct, result=always(t.STR)),
]
