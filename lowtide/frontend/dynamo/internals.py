"""What of PyTorch's graph capture is private, and used here; tested per torch minor.

In: nodes and example values of a captured graph. Out: plain Python facts.

    symbol_of(s77)      "s77"       a size that is a symbol of the capture, and nothing else
    place_of(node)      Loc("model.py", 12, …), from its stack trace
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from typing import Any, Final

import torch

from lowtide.errors import UNKNOWN_LOC, Loc

BACKEND: Final = "lowtide"
SET_GRAD: Final[Any] = torch._C._set_grad_enabled  # pyright: ignore
ENTER_AUTOCAST: Final[Any] = torch.amp.autocast_mode._enter_autocast  # pyright: ignore
EXIT_AUTOCAST: Final[Any] = torch.amp.autocast_mode._exit_autocast  # pyright: ignore

_CHECKPOINT: Final = "tag_activation_checkpoint"
_CHECKPOINT_OPTIONS: Final = (
    *("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"),
)
_TORCH: Final = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_FRAME: Final = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)


def register(backend: Callable[..., Any]) -> None:
    """Makes `torch.compile(backend="lowtide")` known where no installed package does; imports
    PyTorch's capture, which takes seconds."""
    import torch._dynamo.backends.registry as registry

    if BACKEND not in registry._COMPILER_FNS:  # pyright: ignore[reportPrivateUsage]
        registry.register_backend(backend, BACKEND)


def wrapped(call: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, which calls what `torch.compile` gave, is to PyTorch what that is: it finds the
    function of the user's in it, where it traces it or compiles it again."""
    functools.update_wrapper(call, compiled)
    call._torchdynamo_wrapper_id = id(call)  # pyright: ignore[reportFunctionMemberAccess]
    return call


def breaks(module: Any) -> bool:
    """Whether Python goes on after a captured graph; True where that is not known."""
    why = getattr(module, "compile_subgraph_reason", None)
    return getattr(why, "graph_break", True)


def example_of(node: Any) -> Any:
    """The fake value that the capture computed for a node; None where it has none."""
    meta: dict[str, Any] = node.meta
    return meta.get("example_value", meta.get("val"))


def symbol_of(example: object) -> str | None:
    """The name of a size that is one symbol of the capture."""
    inner: Any = getattr(example, "node", None)
    expression: Any = getattr(inner, "expr", None)
    if not isinstance(example, torch.SymInt):
        return None
    return str(expression) if getattr(expression, "is_Symbol", False) else None


def is_checkpoint(node: Any) -> bool:
    """Whether a node stands for `torch.utils.checkpoint`: a call of the graph that is its first
    argument."""
    target, options = node.target, set(node.kwargs)
    is_higher = isinstance(target, torch._ops.HigherOrderOperator)  # pyright: ignore
    name = str(target.name()) if is_higher else ""
    return name == _CHECKPOINT and options.issubset(_CHECKPOINT_OPTIONS)


def is_wrapped(example: Any) -> bool:
    """Whether a tensor stands for another one inside a transform such as vmap."""
    functorch: Any = getattr(torch._C, "_functorch", None)  # pyright: ignore[reportPrivateUsage]
    check: Any = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return check is not None and isinstance(example, torch.Tensor) and bool(check(example))


def is_capturing() -> bool:
    """Whether the capture, or what it hands its graph to, is at work."""
    return torch._guards.TracingContext.try_get() is not None  # pyright: ignore


def place_of(node: Any) -> Loc:
    """Where in the user's file a node stands: the innermost line that is not PyTorch's own."""
    frames = _FRAME.findall(str(getattr(node, "stack_trace", None) or ""))
    if not frames:
        return UNKNOWN_LOC
    own = [f for f in frames if not f[0].startswith(_TORCH)]
    file, line, function = (own or frames)[-1]
    return Loc(file=file, line=int(line), function=function)
