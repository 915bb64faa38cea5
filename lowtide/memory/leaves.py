"""Finds the tensors in a value of the user's program: in pytrees and in attributes of objects.

tensors_in((x, {"a": y}, Result(loss=z)))       [x, y, z]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import torch

from lowtide.torch_private.pytree import tree_leaves

_PLAIN: Final = (int, float, complex, str, bytes, type(None), type, torch.nn.Module)
_MOST_OBJECTS: Final = 1000


def tensors_in(value: object) -> list[torch.Tensor]:
    """Return the tensors in order; a tensor that occurs twice is listed twice. The search ends
    after 1000 objects."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    todo: list[Any] = [value]
    while todo and len(seen) < _MOST_OBJECTS:
        for x in tree_leaves(todo.pop()):
            if isinstance(x, torch.Tensor):
                found.append(x)
            elif not isinstance(x, _PLAIN) and id(x) not in seen:
                seen.add(id(x))
                todo.append(_attributes(x))
    return found


def _attributes(x: Any) -> list[Any]:
    inside: dict[str, Any] = getattr(x, "__dict__", {})
    items = [*cast("Mapping[Any, Any]", x).values()] if isinstance(x, Mapping) else []
    names: tuple[str, ...] = getattr(cast("object", x), "__slots__", ())
    slots = [getattr(cast("object", x), name, None) for name in names]
    return [*items, *inside.values(), *slots]
