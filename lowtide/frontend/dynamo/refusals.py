"""Graphs that PyTorch has to run, since they change its state while they run.

In: the nodes of a captured graph. Out: why the graph stays PyTorch's, "" if it need not.

    _vmap_increment_nesting(40)          tensors inside stand for batches of others
    _set_grad_enabled(False)             may be compiled: each region looks at the mode it runs in,
    _enter_autocast('cpu', bfloat16)     and so may these
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lowtide.torch_private.autograd import set_grad_enabled
from lowtide.torch_private.graph_capture import (
    ENTER_AUTOCAST,
    EXIT_AUTOCAST,
    example_of,
)
from lowtide.torch_private.modes import STATE_MODULES, is_wrapped

_MAY: Final = (set_grad_enabled, ENTER_AUTOCAST, EXIT_AUTOCAST)
_NAMES: Final = ("_enter", "enter_", "_exit", "exit_", "_push", "_pop", "_set_", "set_")


def refusal(nodes: Iterable[Any]) -> str:
    """Return why PyTorch must run the graph, "" if it need not."""
    for node in nodes:
        if is_wrapped(example_of(node)):
            return f"`{node.name}` is a tensor inside a torch.func transform"
        if node.op == "call_function" and node.target not in _MAY and _changes(node.target):
            return f"{_name(node.target)} changes the state of PyTorch"
    return ""


def _changes(target: object) -> bool:
    module = str(getattr(target, "__module__", None) or "")
    name = _name(target)
    if any(module == m or module.startswith(f"{m}.") for m in STATE_MODULES):
        return True
    return module.startswith("torch") and name.startswith(_NAMES)


def _name(target: object) -> str:
    return str(getattr(target, "__name__", target))
