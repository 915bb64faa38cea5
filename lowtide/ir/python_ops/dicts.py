"""Ops on dicts. `keys`, `values` and `items` give lists; a loop that changes its dict runs
`goes_on` before each step.

find("dict.get").result([DictType(STR, INT), STR])  ==  Optional[int]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.row import OpDef, always, lenient
from lowtide.ir.types import DictType, ListType, Type

Dict = dict[Any, Any]


def _value(operands: Sequence[Type]) -> Type | None:
    return operands[0].value if isinstance(operands[0], DictType) else None


def _get(operands: Sequence[Type]) -> Type | None:
    value = _value(operands)
    if value is None:
        return None
    return t.join(value, operands[2] if len(operands) > 2 else t.NONE)


def _pop(operands: Sequence[Type]) -> Type | None:
    value = _value(operands)
    return value if value is None or len(operands) < 3 else t.join(value, operands[2])


def _setdefault(operands: Sequence[Type]) -> Type | None:
    value = _value(operands)
    return value if value is None or len(operands) < 3 else t.join(value, operands[2])


def _none(operands: Sequence[Type]) -> Type | None:
    return t.NONE if isinstance(operands[0], DictType) else None


def _same(operands: Sequence[Type]) -> Type | None:
    return operands[0] if isinstance(operands[0], DictType) else None


def _of(operands: Sequence[Type]) -> Type | None:
    match operands:
        case []:
            return DictType(t.NEVER, t.NEVER)
        case [DictType()]:
            return operands[0]
        case [ListType(t.TupleType((key, value)))]:
            return DictType(key, value)
        case _:
            return DictType(t.ANY, t.ANY)


def _listed(part: Callable[[DictType], Type]) -> Callable[[Sequence[Type]], Type | None]:
    def of(operands: Sequence[Type]) -> Type | None:
        found = operands[0]
        return ListType(part(found)) if isinstance(found, DictType) else None

    return of


def _item(d: Dict, key: object) -> object:
    return d[key]


def _keys(d: Dict) -> list[Any]:
    return list(d)


def _values(d: Dict) -> list[Any]:
    return list(d.values())


def _items(d: Dict) -> list[Any]:
    return list(d.items())


def _goes_on(d: Dict, keys: list[Any], i: int) -> bool:
    """Return whether a loop that began with these keys has another step. Raises what Python raises
    if the dict has changed."""
    if len(d) != len(keys):
        raise RuntimeError("dictionary changed size during iteration")
    if list(d) != keys:
        raise RuntimeError("dictionary keys changed during iteration")
    return i < len(keys)


def _set(d: Dict, key: object, value: object) -> None:
    d[key] = value


def _delete(d: Dict, key: object) -> None:
    del d[key]


def _own(name: str) -> Callable[..., Any]:
    """Return a function that calls the dict's own method, which a subclass may override."""

    def run(d: Dict, *args: object) -> Any:
        return getattr(d, name)(*args)

    return run


# of which Python's own see the dict as it is when they are looked at
VIEWS = ("dict.keys", "dict.values", "dict.items")

_Rows = dict[str, tuple[Callable[..., object], Callable[[Sequence[Type]], Type | None]]]

_READING: _Rows = {
    "dict.item": (_item, _value),
    "dict.get": (_own("get"), _get),
    "dict.copy": (_own("copy"), _same),
    "dict.goes_on": (_goes_on, always(t.BOOL)),
    "dict.keys": (_keys, _listed(lambda d: d.key)),
    "dict.values": (_values, _listed(lambda d: d.value)),
    "dict.items": (_items, _listed(lambda d: t.tuple_of(d.key, d.value))),
}


def _spread(held: dict[Any, Any], more: Any) -> None:
    """Add the items of `{**more}`. Raises TypeError if it is no mapping."""
    if not hasattr(more, "keys"):
        raise TypeError(f"{type(more).__name__!r} object is not a mapping")
    held.update(more)


_WRITING: _Rows = {
    "dict.set": (_set, _none),
    "dict.delete": (_delete, _none),
    "dict.pop": (_own("pop"), _pop),
    "dict.popitem": (_own("popitem"), lambda o: _pair(o[0])),
    "dict.setdefault": (_own("setdefault"), _setdefault),
    "dict.update": (_own("update"), _none),
    "dict.spread": (_spread, _none),
    "dict.clear": (_own("clear"), _none),
}


def _pair(type_: Type) -> Type | None:
    return t.tuple_of(type_.key, type_.value) if isinstance(type_, DictType) else None


_RAISING: dict[str, Effects] = dict.fromkeys(("dict.item",), Effects.RAISES)

ROWS = [
    *(
        OpDef(name=n, run=run, result=lenient(rule), effects=_RAISING.get(n, Effects.NONE))
        for n, (run, rule) in _READING.items()
    ),
    *(
        OpDef(name=n, run=run, result=lenient(rule), effects=Effects.MUTATES | Effects.RAISES)
        for n, (run, rule) in _WRITING.items()
    ),
    OpDef(name="dict.of", run=dict, result=_of),
    OpDef(name="set.of", run=set, result=always(t.ANY)),
    OpDef(name="set.frozen", run=frozenset, result=always(t.ANY)),
]
