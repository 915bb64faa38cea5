"""The tensors in lists, tuples, sets, dicts and dataclasses, to any depth.

In: any Python value. Out: its tensors, from left to right. Other objects are not searched.

    list(tensors_in({"a": x, "b": [y, 3]}))     # [x, y]
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

_Tensor: Any = torch.Tensor
_NO_DISPATCH: Any = _Tensor.__torch_dispatch__


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of the nest; one that occurs twice is yielded twice. Cycles are allowed."""
    seen: set[int] = set()
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, torch.Tensor):
            yield found
            continue
        inside = _parts(found)
        if inside and id(found) not in seen:
            seen.add(id(found))
            waiting.extend(reversed(inside))


def with_parts(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of the nest, and the inner tensors of subclasses with a
    `__torch_dispatch__`."""
    looked_into: dict[int, torch.Tensor] = {}
    waiting: list[Any] = [value]
    while waiting:
        for tensor in tensors_in(waiting.pop()):
            yield tensor
            kind: Any = type(tensor)
            if kind.__torch_dispatch__ is not _NO_DISPATCH and id(tensor) not in looked_into:
                looked_into[id(tensor)] = tensor
                waiting.append(_inner(tensor))


def _inner(tensor: torch.Tensor) -> list[Any]:
    """Return what `__tensor_flatten__` names, else all attributes."""
    flatten: Any = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is not None:
        return [getattr(tensor, name) for name in flatten(tensor)[0]]
    return list(object.__getattribute__(tensor, "__dict__").values())


def is_nest(value: object) -> bool:
    """Return whether the value is a container that `tensors_in` searches."""
    return isinstance(value, Mapping | list | tuple | set | frozenset | deque) or (
        dataclasses.is_dataclass(value) and not isinstance(value, type)
    )


def _parts(value: Any) -> list[Any]:
    items: Any = value
    if isinstance(value, Mapping):
        return list(items.values())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return [getattr(value, name) for name in names if hasattr(value, name)]
    return []
