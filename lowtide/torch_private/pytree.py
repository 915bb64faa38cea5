"""PyTorch's pytrees: nests of lists, tuples, dicts and classes that are registered with it."""

from __future__ import annotations

from torch.utils import _pytree

tree_flatten = _pytree.tree_flatten
tree_leaves = _pytree.tree_leaves
tree_map = _pytree.tree_map
tree_map_only = _pytree.tree_map_only
tree_unflatten = _pytree.tree_unflatten
