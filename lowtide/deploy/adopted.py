"""Converts the caller's own enums and named tuples to those of a file.

In: programs from a file, the arguments of a call. Out: arguments of the file's classes.

    class Mode(Enum): FAST = 1     loaded(x, Mode.FAST)     the member FAST of the file's Mode
    class Pair(NamedTuple): …      loaded(Pair(x, 2))       the file's Pair of the same fields

Invariant: only immutable values are replaced, by values that differ in their class only. Lists,
dicts and records are references, so they stay unchanged.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

import torch

from lowtide.deploy.fitting import Program
from lowtide.deploy.records import entry_of
from lowtide.deploy.rename import values_of
from lowtide.ir import python_objects
from lowtide.ir.core import Function
from lowtide.ir.types import ClassType, TupleType, Type, parse_type, types_in

Classes = Mapping[str, Any]

_KINDS: Final = ("enum", "named_tuple")


def classes_of(c: object) -> dict[str, type]:
    """Return the classes in a loaded function's or module's programs, by name; of two with one
    name, the first."""
    methods = [m for m in vars(c).values() if hasattr(m, "__lowtide_programs__")]
    return _classes(p for m in (c, *methods) for p in getattr(m, "__lowtide_programs__", ()))


def adoptable(programs: Iterable[Program]) -> Classes:
    """Return the enums and named tuples in these programs."""
    found = _classes(programs)
    return {n: cls for n, cls in found.items() if _kind(cls) in _KINDS}


def adopted(
    args: tuple[Any, ...], kwargs: dict[str, Any], classes: Classes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments; a value of a caller's class becomes one of the file's class with the
    same name."""
    named = {name: _adopted(value, classes) for name, value in kwargs.items()}
    return tuple(_adopted(value, classes) for value in args), named


def adopted_attribute(module: torch.nn.Module, name: str, value: Any) -> Any:
    """Return the value to assign to a loaded module's attribute, converted to the file's class of
    the same name. Raises TypeError for a record, since a converted copy would be another object."""
    cls: type[Any] = cast("type[Any]", type(vars(module).get(name)))
    is_other = type(value).__name__ == cls.__name__ and not isinstance(value, cls)
    if not is_other or not _kind(cls):
        return value
    found = _adopted(value, {cls.__name__: cls})
    if not isinstance(found, cls):
        raise TypeError(
            f"`{name}` holds an object of the file's class {cls.__name__}, which is not this "
            f"{cls.__name__}; assign the attributes of that object instead"
        )
    return found


def _adopted(value: Any, classes: Classes) -> Any:
    known = classes.get(type(value).__name__)
    if isinstance(value, enum.Enum) and known is not None:
        return _member(known, value)
    if not isinstance(value, tuple) or isinstance(value, torch.Size):
        return value
    given = cast("tuple[Any, ...]", value)
    parts = tuple(_adopted(v, classes) for v in given)
    is_same = all(a is b for a, b in zip(parts, given, strict=True))
    fields = getattr(given, "_fields", None)
    if known is not None and fields is not None and getattr(known, "_fields", None) == fields:
        return given if isinstance(given, known) and is_same else known._make(parts)
    return parts if type(given) is tuple and not is_same else given


def _member(known: Any, value: enum.Enum) -> Any:
    member = getattr(known, "__members__", {}).get(value.name)
    if member is None and issubclass(known, enum.Flag):
        return known(value.value)
    return member if member is not None and member.value == value.value else value


def _kind(cls: type) -> str:
    entry = entry_of(cls)
    return entry.kind if entry is not None else ""


def _classes(programs: Iterable[Program]) -> dict[str, type]:
    found: dict[str, type] = {}
    for program in programs:
        for part in (part for type_ in _types(program.function) for part in types_in(type_)):
            name = part.name if isinstance(part, ClassType) else ""
            name = part.cls if isinstance(part, TupleType) else name
            cls = python_objects.find(name) if name else None
            if isinstance(cls, type) and _kind(cls):
                found.setdefault(cls.__name__, cls)
    return found


def _types(function: Function) -> Iterator[Type]:
    """Yield all types in the function, of its values and in its tests."""
    yield from (value.type for value in values_of(function.block))
    for op in function.walk():
        if op.name == "py.isinstance":
            yield parse_type(str(op.attrs["type"]))
