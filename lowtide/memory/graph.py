"""The autograd graph of some tensors.

nodes_of([y])      the nodes that a backward pass from y reaches
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def nodes_of(results: Sequence[torch.Tensor]) -> list[Any]:
    """Return the nodes that a backward pass from these results reaches, each once."""
    found: dict[Any, None] = {}
    todo: list[Any] = [x.grad_fn for x in results if x.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is not None and node not in found:
            found[node] = None
            todo += [below for below, _ in node.next_functions]
    return [*found]
