"""Nests of tensors: PyTorch's pytrees, and those of tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree

# Of lists, tuples, dicts and classes that are registered with PyTorch.
tree_flatten = _pytree.tree_flatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_map_only = _pytree.tree_map_only
tree_unflatten = _pytree.tree_unflatten


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return every tensor in nested tuples, lists and dicts, from left to right. Registered classes
    are not searched."""
    return [x for x in leaves(value) if isinstance(x, torch.Tensor)]


def leaves(value: Any) -> list[Any]:
    """Return all that nested tuples, lists and dicts hold, from left to right."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [x for v in value for x in leaves(v)]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Mapping):
        return [x for v in value.values() for x in leaves(v)]  # pyright: ignore[reportUnknownVariableType]
    return [value]
