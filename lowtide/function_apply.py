"""Layers around the `apply` of all torch.autograd.Functions, also one that was looked up before.

`Function.apply` finds C's behind a class of PyTorch's that has none of its own; ours stands there
as long as anybody has a layer. From PyTorch 2.14 on `Function.apply` is C's itself, and ours stands
in its place. An `apply` that was looked up before goes past ours there: its layers are around the
`forward` that C's reads from the class.

    add(layer)       # layer(run, call, args, kwargs) is to call run(*args, **kwargs), on any thread
    remove(layer)    # the last one leaves PyTorch as it was
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch

from lowtide.torch_private.autograd import FUNCTION_OF_C, READ_BY_C, FunctionBase
from lowtide.torch_private.modes import run_as_it_is, transform
from lowtide.torch_private.pytree import tensors_in


@dataclass(frozen=True, kw_only=True)
class Call:
    """`cls`: the Function. `is_grad`: whether gradients are on for the caller. `is_inside`: whether
    its `forward` is run, inside C's `apply`, which has turned gradients off."""

    cls: Any
    is_grad: bool
    is_inside: bool

    def may_differ(self, args: Sequence[Any], result: Any) -> bool:
        """Return whether the caller may get other tensors than `result`: a view of an argument that
        `forward` returns, or of a result that `setup_context` saves."""
        if not self.is_inside:
            return False
        results = tensors_in(result)
        return not _has_ctx(self.cls) or any(x is a for x in results for a in tensors_in(args))

    def positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return all arguments by the places that `forward` has for them; None if it has not."""
        if not kwargs:
            return args
        ctx = (None,) if _has_ctx(self.cls) else ()
        bound = inspect.signature(self.cls.forward).bind(*ctx, *args, **kwargs)
        bound.apply_defaults()
        return None if bound.kwargs else bound.args[len(ctx) :]


Layer = Callable[[Callable[..., Any], Call, tuple[Any, ...], dict[str, Any]], Any]

_lock = threading.Lock()
_layers: tuple[Layer, ...] = ()
_OF_C: Final[Any] = inspect.getattr_static(FUNCTION_OF_C, "apply", None)
_META: Final[Any] = cast("Any", type)(FunctionBase)


class _Thread(threading.local):
    """`seen`: the class whose `apply` has layers around it, until C's reads its `forward`. `begun`:
    the class whose `apply` of C's has begun. `is_grad`: whether gradients were on there."""

    seen: Any = None
    begun: Any = None
    is_grad = False


_thread = _Thread()


def add(layer: Layer) -> None:
    """`layer` sees calls from here on, before those that were added earlier."""
    global _layers
    with _lock:
        _layers = (*_layers, layer)
        FunctionBase.apply = classmethod(_apply)
        if FUNCTION_OF_C is not None:
            FUNCTION_OF_C.apply = classmethod(_apply)
            _META.__getattribute__ = _read


def remove(layer: Layer) -> None:
    """`layer`, which was added, sees calls no more, but may be inside one."""
    global _layers
    with _lock:
        _layers = tuple(other for other in _layers if other is not layer)
        if _layers:
            return
        del FunctionBase.apply
        if FUNCTION_OF_C is not None:
            FUNCTION_OF_C.apply = _OF_C
            del _META.__getattribute__


def without_layers(apply: Any) -> Any:
    """Return what `F.apply`, looked up just now, is while nobody has a layer."""
    is_ours = FUNCTION_OF_C is not None and getattr(apply, "__func__", None) is _apply
    return _OF_C.__get__(None, apply.__self__) if is_ours else apply


@run_as_it_is
def _apply(cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    run = cast("Callable[..., Any]", super(FunctionBase, cls).apply)
    if FUNCTION_OF_C is not None:
        run = functools.partial(_seen, run, cls)
        if transform() is not None and issubclass(cls, FUNCTION_OF_C):
            return run(*args, **kwargs)  # comes here for a Function that each transform makes
    call = Call(cls=cls, is_grad=torch.is_grad_enabled(), is_inside=False)
    return _inside_layers(run, call)(*args, **kwargs)


@run_as_it_is
def _inside_layers(run: Callable[..., Any], call: Call) -> Callable[..., Any]:
    for layer in _layers:
        run = functools.partial(_inside, layer, run, call)
    return run


@run_as_it_is
def _inside(layer: Layer, run: Callable[..., Any], call: Call, /, *args: Any, **kwargs: Any) -> Any:
    return layer(run, call, args, kwargs)


@run_as_it_is
def _seen(run: Callable[..., Any], cls: Any, /, *args: Any, **kwargs: Any) -> Any:
    before, _thread.seen = _thread.seen, cls
    try:
        return run(*args, **kwargs)
    finally:
        _thread.seen = before


def _read(cls: Any, name: str) -> Any:
    """Return an attribute of a Function; to C's `apply`, which was looked up before, `forward` with
    the layers around it."""
    value = type.__getattribute__(cls, name)
    if name == READ_BY_C[0]:
        _thread.begun, _thread.is_grad = cls, torch.is_grad_enabled()
    elif name == READ_BY_C[1] and _thread.begun is cls:
        is_seen, _thread.begun, _thread.seen = _thread.seen is cls, None, None
        return value if is_seen else functools.partial(_forward, value, cls, _thread.is_grad)
    return value


@run_as_it_is
def _forward(
    forward: Callable[..., Any], cls: Any, is_grad: bool, /, *args: Any, **kwargs: Any
) -> Any:
    ctx, given = (args[:1], args[1:]) if _has_ctx(cls) else ((), args)
    call = Call(cls=cls, is_grad=is_grad, is_inside=True)
    return _inside_layers(functools.partial(forward, *ctx), call)(*given, **kwargs)


def _has_ctx(cls: Any) -> bool:
    """Return whether `forward` gets a `ctx`, not a `setup_context` after it."""
    return cls.setup_context is FunctionBase.setup_context
