"""Whether two operands of a call are one list or dict, or hold one.

In: the operands of a program that puts into a list or dict what it was not known to hold, so that
its type there is wider than the caller's. Out: whether another operand may be the same object, of
which the program would still assume the caller's type.

    def f(a: list, b: list, x):      f([None], [None], x)     compiled
        a[0] = x                     f(xs, xs, x)             Python runs f
        return b[0] is None
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from lowtide.ir import types as t
from lowtide.ir.core import Function
from lowtide.pipeline.signature import Ineligible

WHY: Final = (
    "two of its arguments, or an argument and what the module holds, are one list or dict, into "
    "which the program puts what it did not hold before"
)
Places = tuple[tuple[int, t.Type], ...]


def places_of(function: Function) -> Places:
    """The operands that are lists or dicts, or hold some; none where there are not two."""
    found = tuple((k, p.type) for k, p in enumerate(function.params) if _holds(p.type))
    return found if len(found) > 1 else ()


def is_shared(operands: Sequence[Any], places: Places) -> bool:
    """Whether a list or dict is in two of these places."""
    seen: set[int] = set()
    for k, type_ in places:
        found = set(map(id, _containers(operands[k], type_)))
        if not seen.isdisjoint(found):
            return True
        seen |= found
    return False


def check(operands: Sequence[Any], places: Places) -> None:
    """Raises Ineligible where one is."""
    if is_shared(operands, places):
        raise Ineligible(WHY)


def _holds(type_: t.Type) -> bool:
    return any(isinstance(part, t.ListType | t.DictType) for part in t.types_in(type_))


def _containers(value: object, type_: t.Type) -> Iterator[object]:
    """The lists and dicts in a value, itself included; what can hold none is not looked into."""
    inner = [p for p in t.types_in(type_) if p is not type_]
    looks_in = any(isinstance(p, t.ListType | t.DictType) or t.is_dynamic(p) for p in inner)
    if isinstance(value, list | dict):
        yield cast("object", value)
    if looks_in and isinstance(value, list | tuple | dict):
        held = cast("Any", value)
        for part in held.values() if isinstance(value, Mapping) else held:
            yield from _containers(part, type_)
