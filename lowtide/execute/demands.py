"""Checks a program's assumptions about its operands, other than their types.

In: a program, and the assumptions of its front end. Out: `Demands`, whose `unmet` returns why
Python must run a call; "" if all assumptions hold.

    def f(a: list, b: list, x):      f([None], [None], x)     compiled
        a[0] = x                     f(xs, xs, x)             Python runs f
        return b[0] is None

    def g(p: Point): return p.norm()            p.norm = other; g(p)      Python runs g

In `f`, the program gives `a` a new type after the assignment: it holds a tensor now. If `b` were
the same list, the program would still use the old type for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from lowtide.frontend.script.outside import Assumptions
from lowtide.ir import types as t
from lowtide.ir.core import Function

_ONE_OBJECT: Final = (
    "two of its arguments, or an argument and an attribute of the module, are one list or dict, "
    "into which the program puts elements of another type"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """`containers`: operands that must not share a list or dict. `methods`: objects whose own
    attributes must not replace methods of these names."""

    containers: tuple[tuple[int, t.Type], ...]
    methods: tuple[tuple[int, frozenset[str]], ...]

    def unmet(self, operands: Sequence[Any]) -> str:
        """Return why the program is wrong for these operands, "" if it is right."""
        for k, names in self.methods:
            own: Mapping[str, object] = getattr(operands[k], "__dict__", {})
            if not names.isdisjoint(own):
                name = min(names.intersection(own))
                return f"an object of class {type(operands[k]).__name__} has a {name!r} of its own"
        return _ONE_OBJECT if self.containers and self._is_shared(operands) else ""

    def _is_shared(self, operands: Sequence[Any]) -> bool:
        seen: set[int] = set()
        for k, type_ in self.containers:
            found = set(map(id, _containers(operands[k], type_)))
            if not seen.isdisjoint(found):
                return True
            seen |= found
        return False


def demands(function: Function, assumed: Assumptions) -> Demands | None:
    """Return the assumptions of a program; None if there are none."""
    places = {path: len(function.arguments) + k for k, path in enumerate(function.captures)}
    methods = tuple(
        (k if isinstance(k, int) else places[k], names)
        for k, names in assumed.methods.items()
        if isinstance(k, int) or k in places
    )
    rows = ((k, p.type) for k, p in enumerate(function.params) if _holds(p.type))
    containers = tuple(rows) if assumed.puts_more else ()
    if not methods and len(containers) < 2:
        return None
    return Demands(containers=containers, methods=methods)


def _holds(type_: t.Type) -> bool:
    return any(isinstance(part, t.ListType | t.DictType) for part in t.types_in(type_))


def _containers(value: object, type_: t.Type) -> Iterator[object]:
    """Yield the lists and dicts in a value, itself included."""
    inner = [p for p in t.types_in(type_) if p is not type_]
    looks_in = any(isinstance(p, t.ListType | t.DictType) or t.is_dynamic(p) for p in inner)
    if isinstance(value, list | dict):
        yield cast("object", value)
    if looks_in and isinstance(value, list | tuple | dict):
        held = cast("Any", value)
        for part in held.values() if isinstance(value, Mapping) else held:
            yield from _containers(part, type_)
