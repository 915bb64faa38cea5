"""The tensors inside any value of a user.

    tensors_in((x, {"a": y}, Result(loss=z)))       [x, y, z]

Lists, tuples and dicts, what PyTorch's pytrees know, and the attributes of other objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import torch

from lowtide.torch_private.pytree import tree_leaves

_PLAIN: Final = (int, float, complex, str, bytes, type(None), type, torch.nn.Module)
_MOST_OBJECTS: Final = 1000


def tensors_in(value: object) -> list[torch.Tensor]:
    """Yield the tensors in order; a tensor that occurs twice is yielded twice."""
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
