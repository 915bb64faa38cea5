"""PyTorch's context managers: `with torch.no_grad():`, and `@torch.no_grad()` over a function.

In: a Python object that is called. Out: the op that makes the manager when the program runs, or
None where it is no manager of PyTorch's.

    torch.set_grad_enabled(flag)   →  call_torch(%flag) {target="torch.set_grad_enabled"}
    @torch.no_grad()               →  its `clone`, which the decorator calls for each call
"""

from __future__ import annotations

from typing import Final, cast

import torch

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Call
from lowtide.ir.core import Value

CONTEXT_MANAGERS: Final[dict[type, str]] = {
    torch.no_grad: "no_grad",
    torch.enable_grad: "enable_grad",
    torch.set_grad_enabled: "set_grad_enabled",
    torch.inference_mode: "inference_mode",
    torch.autocast: "autocast",
    cast("type", vars(torch.cuda.amp)["autocast"]): "cuda.amp.autocast",  # old names of that
    cast("type", vars(torch.cpu.amp)["autocast"]): "cpu.amp.autocast",
    torch.profiler.record_function: "profiler.record_function",
}
# what the objects of those that clone themselves were made with
_CLONED: Final[dict[type, tuple[str, ...]]] = {
    torch.no_grad: (),
    torch.enable_grad: (),
    torch.set_grad_enabled: ("mode",),
    torch.inference_mode: ("mode",),
}


def context_manager(c: Context, obj: object, call: Call) -> Value | None:
    """Return the op that makes the manager, None if the object is no PyTorch manager."""
    if isinstance(obj, type):
        if obj not in CONTEXT_MANAGERS:
            return None
        operands = [c.as_value(a, call.node) for a in (*call.args, *call.keywords.values())]
        return _made(c, obj, operands, tuple(call.keywords))
    owner: object = getattr(obj, "__self__", None)
    made_with = _CLONED.get(owner.__class__)
    if made_with is None or getattr(obj, "__name__", "") != "clone":
        return None
    return _made(c, owner.__class__, [c.const(getattr(owner, name)) for name in made_with])


def _made(c: Context, cls: type, operands: list[Value], kwnames: tuple[str, ...] = ()) -> Value:
    target = f"torch.{CONTEXT_MANAGERS[cls]}"
    return c.dynamic("call_torch", operands, target=target, kwnames=kwnames)
