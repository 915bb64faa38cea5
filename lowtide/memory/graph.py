"""The autograd graph of some tensors.

nodes_of([y])      the nodes that a backward pass from y reaches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def nodes_of(results: Sequence[torch.Tensor], stop_at: str = "") -> list[Any]:
    """Return the nodes that a backward pass from these results reaches, each once; those with the
    key `stop_at` in their metadata, and what only they reach, are left out."""
    found: dict[Any, None] = {}
    todo: list[Any] = [x.grad_fn for x in results if x.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is not None and node not in found and stop_at not in node.metadata:
            found[node] = None
            todo += [below for below, _ in node.next_functions]
    return [*found]
