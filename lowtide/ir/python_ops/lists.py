"""Ops on lists; those that read also take tuples and strings.

find("list.append").run(xs, 3)                   changes xs
find("list.get").result([ListType(INT), INT])  ==  INT
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.python_ops.row import OpDef, always, element, joined_list, lenient
from lowtide.ir.types import ListType, Type


def _get(operands: Sequence[Type]) -> Type | None:
    return element(operands[0]) if operands[1] in (t.INT, t.BOOL, t.NUMBER) else None


def _slice(operands: Sequence[Type]) -> Type | None:
    return t.STR if operands[0] == t.STR else joined_list(operands[:1])


def _listed(operands: Sequence[Type]) -> Type | None:
    return joined_list(operands[:1])


def _none_for_list(operands: Sequence[Type]) -> Type | None:
    return t.NONE if isinstance(operands[0], ListType) else None


def _element_of_list(operands: Sequence[Type]) -> Type | None:
    return operands[0].elem if isinstance(operands[0], ListType) else None


def _slice_of(xs: Any, start: int | None, stop: int | None, step: int | None) -> object:
    return xs[start:stop:step]


def _get_of(xs: Any, i: int) -> object:
    return xs[i]


def _set(xs: list[object], i: int, value: object) -> None:
    xs[i] = value


def _set_slice(
    xs: list[object],
    start: int | None,
    stop: int | None,
    step: int | None,
    values: Iterable[object],
) -> None:
    xs[start:stop:step] = values


def _delete(xs: list[object], i: int) -> None:
    del xs[i]


def _delete_slice(xs: list[object], start: int | None, stop: int | None, step: int | None) -> None:
    del xs[start:stop:step]


def _method(name: str) -> Callable[..., Any]:
    """Return a function that calls the object's method. A torch.Size, which has the type of a list
    of ints, then raises Python's AttributeError."""
    of_lists = getattr(list, name)

    def run(xs: Any, *args: object) -> Any:
        return of_lists(xs, *args) if type(xs) is list else getattr(xs, name)(*args)

    return run


def _sort(xs: list[Any], reverse: bool = False) -> None:
    xs.sort(reverse=reverse)


def _sorted(xs: Iterable[Any], reverse: bool = False) -> list[Any]:
    return sorted(xs, reverse=reverse)


def _sorted_by(xs: Sequence[object], keys: Sequence[Any], reverse: bool) -> list[object]:
    order = sorted(range(len(xs)), key=lambda i: keys[i], reverse=reverse)
    return [xs[i] for i in order]


def _reversed(xs: Sequence[object]) -> list[object]:
    return list(reversed(xs))


def _zipped(xs: Iterable[Iterable[object]]) -> list[tuple[object, ...]]:
    return list(zip(*xs, strict=False))


def _columns(operands: Sequence[Type]) -> Type | None:
    """Tuples of a length that only the run knows, which have the type of lists."""
    row = element(operands[0])
    inner = None if row is None else element(row)
    return None if inner is None else ListType(ListType(inner))


def _index(xs: Any, *args: Any) -> int:
    return xs.index(*args)


def _count(xs: Any, value: object) -> int:
    return xs.count(value)


def _numel(xs: Any) -> int:
    return xs.numel()  # of a torch.Size; a list, which has the same type, has no such method


def _repeat(xs: list[object], n: int) -> None:
    xs *= n


_READING: dict[str, tuple[Callable[..., object], Callable[[Sequence[Type]], Type | None]]] = {
    "list.get": (_get_of, _get),
    "list.slice": (_slice_of, _slice),
    "list.reversed": (_reversed, _listed),
    "list.sorted": (_sorted, _listed),
    "list.sorted_by": (_sorted_by, _listed),
    "list.size": (torch.Size, always(ListType(t.INT))),
    "list.zipped": (_zipped, _columns),
    "list.of": (list, _listed),
    "py.tuple": (tuple, _listed),
    "list.index": (_index, always(t.INT)),
    "list.count": (_count, always(t.INT)),
    "list.numel": (_numel, always(t.INT)),
}
_WRITING: dict[str, tuple[Callable[..., object], Callable[[Sequence[Type]], Type | None]]] = {
    "list.append": (_method("append"), _none_for_list),
    "list.extend": (_method("extend"), _none_for_list),
    "list.insert": (_method("insert"), _none_for_list),
    "list.remove": (_method("remove"), _none_for_list),
    "list.reverse": (_method("reverse"), _none_for_list),
    "list.clear": (_method("clear"), _none_for_list),
    "list.sort": (_sort, _none_for_list),
    "list.pop": (_method("pop"), _element_of_list),
    "list.set": (_set, _none_for_list),
    "list.set_slice": (_set_slice, _none_for_list),
    "list.delete": (_delete, _none_for_list),
    "list.delete_slice": (_delete_slice, _none_for_list),
    "list.repeat": (_repeat, _none_for_list),
}

_RAISING: dict[str, Effects] = dict.fromkeys(
    ("list.get", "list.index", "list.slice", "list.sorted"), Effects.RAISES
)

ROWS = [
    *(
        OpDef(name=n, run=run, result=lenient(rule), effects=_RAISING.get(n, Effects.NONE))
        for n, (run, rule) in _READING.items()
    ),
    *(
        OpDef(name=n, run=run, result=lenient(rule), effects=Effects.MUTATES | Effects.RAISES)
        for n, (run, rule) in _WRITING.items()
    ),
]
