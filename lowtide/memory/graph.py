"""Autograd's graph behind some tensors, as far back as a call began.

begin = now()
y = f(h)                    h = x.exp() was made before, in a graph of the caller's
nodes_of([y], begin)        those of f
edges_out_of([y], begin)    the edge to ExpBackward0: through it gradients leave f
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge


def now() -> int:
    """From which number on this thread's nodes are new."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore


def nodes_of(results: Sequence[torch.Tensor], since: int = 0) -> list[Any]:
    """Those that lead to these results, and are no older."""
    found: dict[Any, None] = {}
    todo: list[Any] = [x.grad_fn for x in results if x.grad_fn is not None]
    while todo:
        node = todo.pop()
        if node is not None and node not in found and node._sequence_nr() >= since:
            found[node] = None
            todo += [below for below, _ in node.next_functions]
    return [*found]


def edges_out_of(results: Sequence[torch.Tensor], since: int) -> list[GradientEdge]:
    """By which gradients of these results go on to older nodes."""
    edges: list[tuple[Any, int]] = [(x.grad_fn, x.output_nr) for x in results]
    edges += [edge for node in nodes_of(results, since) for edge in node.next_functions]
    older = [e for e in edges if e[0] is not None and e[0]._sequence_nr() < since]
    return [GradientEdge(node, k) for node, k in dict.fromkeys(older)]
