"""Makes Python classes from a file's class table: data, without code from the file.

In: `ClassEntry`s. Out: a Python class for each.

    enum            a real enum.Enum (IntEnum, Flag, …) with these members
    named_tuple     a tuple with named fields, as collections.namedtuple makes
    record          an object with these fields; repr, ==, order and hash as in its dataclass
    exception       derived from the exception of Python that the entry names
    module          an nn.Module without a forward; programs of the file implement its methods

Invariant: fields are plain attributes; no class has a method from the file.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from typing import Any, Final, cast

import torch

from lowtide.deploy.class_table import CONTAINERS, ENUM_BASES, EXCEPTIONS, MIXINS, ClassEntry, Field
from lowtide.errors import LoadError
from lowtide.ir.literals import parse_literal

MODULE: Final = "lowtide.loaded"  # the `__module__` of the classes


class LoadedModule(torch.nn.Module):
    """A module from a file: its state. Programs implement its methods, for containers too."""

    forward: Any = torch.nn.Module.forward


class LoadedSequential(LoadedModule, torch.nn.Sequential):
    """An nn.Sequential from a file. A slice of it, `head[:2]`, has no program in the file, so the
    constructor returns a plain nn.Sequential."""

    def __new__(cls, *layers: Any) -> Any:
        return torch.nn.Sequential(*layers) if layers else super().__new__(cls)


class Record:
    """The base of all records; see the module's text."""

    __lowtide_entry__: ClassEntry

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        entry = cls.__lowtide_entry__
        if entry.options is None:
            raise TypeError(f"{cls.__name__} is a class from a file, which has no __init__")
        fields = [f for f in entry.fields if f.init]
        given = _bound(cls.__name__, fields, args, kwargs)
        for name, value in given.items():
            object.__setattr__(self, name, value)

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        entry = type(self).__lowtide_entry__
        if "repr" not in (entry.options or ()):
            return object.__repr__(self)
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in entry.fields if f.repr]
        return f"{type(self).__name__}({', '.join(shown)})"


def _bound(
    name: str, fields: list[Field], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    if len(args) > len(fields):
        raise TypeError(f"{name}() takes {len(fields)} arguments, {len(args)} were given")
    given = {f.name: v for f, v in zip(fields, args, strict=False)}
    for key, value in kwargs.items():
        if key in given or all(f.name != key for f in fields):
            raise TypeError(f"{name}() got an unexpected or second argument {key!r}")
        given[key] = value
    for field in fields:
        if field.name not in given:
            if field.default is None:
                raise TypeError(f"{name}() missing argument: {field.name!r}")
            given[field.name] = parse_literal(field.default)
    return given


def _compared(entry: ClassEntry) -> Callable[[Any], tuple[Any, ...]]:
    names = [f.name for f in entry.fields if f.compare]
    return lambda x: tuple(getattr(x, n) for n in names)


def _comparison(compare: Callable[[Any, Any], bool], key: Callable[[Any], Any]) -> Any:
    def method(self: object, other: object) -> Any:
        if type(other) is not type(self):
            return NotImplemented
        return compare(key(self), key(other))

    return method


def _frozen(self: object, name: str, value: object = None) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _record(entry: ClassEntry) -> type:
    options, key = entry.options or frozenset(), _compared(entry)
    own: dict[str, Any] = {"__lowtide_entry__": entry}
    own |= {name: parse_literal(text) for name, text in entry.members}
    if "eq" in options:
        own["__eq__"] = _comparison(operator.eq, key)
        own["__hash__"] = None
    if "unsafe_hash" in options or {"eq", "frozen"} <= options:
        own["__hash__"] = lambda self: hash(key(self))
    if "order" in options:
        for name in ("lt", "le", "gt", "ge"):
            own[f"__{name}__"] = _comparison(getattr(operator, name), key)
    if "frozen" in options:
        own |= {"__setattr__": _frozen, "__delattr__": _frozen}
    return type(entry.name, (Record,), own)


class _NamedTuple(tuple[Any, ...]):
    """The base of all named tuples."""

    __slots__ = ()
    _fields: tuple[str, ...]
    _field_defaults: Mapping[str, Any]
    __lowtide_entry__: ClassEntry

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        given = _bound(cls.__name__, list(cls.__lowtide_entry__.fields), args, kwargs)
        return tuple.__new__(cls, [given[name] for name in cls._fields])

    @classmethod
    def _make(cls, values: Any) -> Any:
        return cls(*values)

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **changed: Any) -> Any:
        return type(self)(**(self._asdict() | changed))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        shown = [f"{n}={v!r}" for n, v in zip(self._fields, self, strict=True)]
        return f"{type(self).__name__}({', '.join(shown)})"


def _named_tuple(entry: ClassEntry) -> type:
    names = tuple(f.name for f in entry.fields)
    defaults = {f.name: parse_literal(f.default) for f in entry.fields if f.default is not None}
    own: dict[str, Any] = {n: property(operator.itemgetter(k)) for k, n in enumerate(names)}
    own |= {"__slots__": (), "_fields": names, "__match_args__": names}
    own |= {"_field_defaults": defaults, "__lowtide_entry__": entry}
    return type(entry.name, (_NamedTuple,), own)


def _enum(entry: ClassEntry) -> type:
    members = [(name, parse_literal(text)) for name, text in entry.members]
    options: dict[str, Any] = {"type": MIXINS[entry.mixin]} if entry.mixin else {}
    made: Any = ENUM_BASES[entry.base](entry.name, members, module=MODULE, **options)
    return cast("type", made)


def _exception(entry: ClassEntry) -> type:
    return type(entry.name, (EXCEPTIONS[entry.base],), {})


def _module(entry: ClassEntry) -> type:
    if entry.base == entry.name == "Sequential":
        return type(entry.name, (LoadedSequential,), {})
    bases = (LoadedModule,) if not entry.base else (LoadedModule, CONTAINERS[entry.base])
    return type(entry.name, bases, {})


_MAKERS: Final[Mapping[str, Callable[[ClassEntry], type]]] = {
    "enum": _enum,
    "named_tuple": _named_tuple,
    "record": _record,
    "exception": _exception,
    "module": _module,
}


def make_class(entry: ClassEntry) -> type:
    """Return a new class for an entry, not registered yet. Raises LoadError."""
    try:
        made = _MAKERS[entry.kind](entry)
    except (TypeError, ValueError, AttributeError) as error:
        raise LoadError(f"the class {entry.name} cannot be made: {error}") from error
    made.__module__ = MODULE
    made.__qualname__ = entry.name
    return made


def entry_of(cls: type) -> ClassEntry | None:
    """Return the entry that a class was made from, None if it is not from a file."""
    return _ENTRIES.get(cls)


_ENTRIES: dict[type, ClassEntry] = {}


def remember(cls: type, entry: ClassEntry) -> None:
    """Register the entry of a class."""
    _ENTRIES[cls] = entry
