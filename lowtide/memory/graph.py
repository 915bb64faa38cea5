"""Autograd's graph behind some tensors, as far back as a call began.

begin = now()
y = f(h)                    h = x.exp() was made before, in a graph of the caller's
nodes_of([y], begin)        those of f
goes_further([y], begin)    True: ExpBackward0 is older
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

THROUGH: Final = "lowtide.through"  # in a node's metadata: a rehearsal alone has such a node


def now() -> int:
    """From which number on this thread's nodes are new."""
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore


def in_backward() -> bool:
    """Whether a node of a backward pass runs just now, in this thread."""
    return torch._C._current_autograd_node() is not None  # pyright: ignore


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


def goes_further(results: Sequence[torch.Tensor], since: int) -> bool:
    """Whether gradients of these results go on to older nodes."""
    nodes: list[Any] = [x.grad_fn for x in results]
    nodes += [below for node in nodes_of(results, since) for below, _ in node.next_functions]
    return any(node is not None and node._sequence_nr() < since for node in nodes)
