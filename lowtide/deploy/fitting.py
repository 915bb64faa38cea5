"""Finds the programs of a file that take the arguments of a call.

In: programs and the types of arguments. Out: the programs that take them, the best first. Raises
`NoProgram`, which lists the programs, if there is none.

    [f(Tensor, float), f(Tensor, int)] for (Tensor, int)   →   the second, then the first

Invariant: a program takes arguments of its types; an int is also taken for a float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowtide.frontend.script.module_state import Guard
from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.ir.types import DictType, ListType, OptionalType, TupleType, Type

Types = tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its guards, and their values when it was compiled; guards of hooks have none.

    `reads`: for a loaded program, the types of attributes that it reads in place."""

    function: Function
    guards: tuple[Guard, ...] = ()
    facts: tuple[Any, ...] = ()
    reads: Mapping[str, Type] = field(default_factory=dict[str, Type])


def takes(param: Type, given: Type) -> bool:
    """Return whether an argument may be passed to a parameter; an int also to a float, as in
    Python."""
    if t.is_subtype(given, param):
        return True
    match param, given:
        case OptionalType(elem), _:
            return takes(elem, given)
        case ListType(elem), ListType(inner):
            return takes(elem, inner)
        case DictType(key, elem), DictType(k, inner):
            return takes(key, k) and takes(elem, inner)
        case TupleType(elems), TupleType(inner):
            return len(elems) == len(inner) and all(map(takes, elems, inner))
        case _:
            wider: dict[Type, Types] = {
                t.FLOAT: (t.INT, t.BOOL, t.NUMBER),
                t.INT: (t.BOOL, t.NUMBER),
            }
            return given in wider.get(param, ())


def fitting(programs: Iterable[Program], types: Types) -> list[Program]:
    """Return the programs for these arguments, those for exactly these types first."""
    exact: list[Program] = []
    loose: list[Program] = []
    for program in programs:
        params = [p.type for p in program.function.arguments]
        if len(params) == len(types) and all(map(t.is_subtype, types, params)):
            exact.append(program)
        elif len(params) == len(types) and all(map(takes, params, types)):
            loose.append(program)
    return [*exact, *loose]


def for_types(name: str, programs: Sequence[Program], types: Types) -> list[Program]:
    """Return the programs to inline for operands of these types. Unknown types fit any
    parameter."""
    found = fitting(programs, types)
    if not found and any(map(t.is_dynamic, types)):
        found = [p for p in programs if _may_take(p.function, types)]
    if not found:
        raise no_program(name, programs, types)
    return found


def _may_take(function: Function, types: Types) -> bool:
    params = [p.type for p in function.arguments]
    rows = zip(params, types, strict=False)
    return len(params) == len(types) and all(t.is_dynamic(g) or takes(p, g) for p, g in rows)


class NoProgram(TypeError):
    """Arguments that no program takes."""


def no_program(name: str, programs: Sequence[Program], types: Types) -> NoProgram:
    """Return the error for arguments that no program takes."""
    known = {f"({', '.join(str(p.type) for p in s.function.arguments)})" for s in programs}
    return NoProgram(
        f"{name}() was saved for {' and '.join(sorted(known))}, not for "
        f"({', '.join(map(str, types))}); call it with such arguments before saving it"
    )
