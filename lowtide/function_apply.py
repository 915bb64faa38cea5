"""Layers around the `apply` of all torch.autograd.Functions, also one that was looked up before.

`Function.apply` finds C's behind a class of PyTorch's that has none of its own; ours stands there
as long as anybody has a layer.

    add(layer)       # layer(run, cls, args, kwargs) is to call run(*args, **kwargs), on any thread
    remove(layer)    # the last one leaves PyTorch as it was
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from lowtide.torch_private.autograd import FunctionBase

Layer = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]

_lock = threading.Lock()
_layers: tuple[Layer, ...] = ()


def add(layer: Layer) -> None:
    """`layer` sees calls from here on, before those that were added earlier."""
    global _layers
    with _lock:
        _layers = (*_layers, layer)
        FunctionBase.apply = classmethod(_apply)


def remove(layer: Layer) -> None:
    """`layer`, which was added, sees calls no more, but may be inside one."""
    global _layers
    with _lock:
        _layers = tuple(other for other in _layers if other is not layer)
        if not _layers:
            del FunctionBase.apply


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    run = cast("Callable[..., Any]", super(FunctionBase, cls).apply)
    for layer in _layers:
        run = _inside(layer, run, cls)
    return run(*args, **kwargs)


def _inside(layer: Layer, run: Callable[..., Any], cls: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: layer(run, cls, args, kwargs)
