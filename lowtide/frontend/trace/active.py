"""The recorder that is active in this thread, and `is_tracing`.

    with recording(recorder): ...      is_tracing() and torch.jit.is_tracing() are True inside,
                                       where PyTorch keeps it, too, as some packages ask;
                                       Spike.apply(x) of an autograd.Function is recorded;
                                       torch.manual_seed(0) is not, which is told;
                                       calls of what torch.jit compiled are recorded

Invariant: other threads see nothing of it; PyTorch is as it was once no thread records.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch.jit

from lowtide import function_apply
from lowtide.frontend.script import torch_jit_twins
from lowtide.frontend.trace.places import here
from lowtide.function_apply import Call
from lowtide.torch_private import torch_jit
from lowtide.torch_private.modes import RECORDING_KEPT, NoFunctionModes

if TYPE_CHECKING:
    from lowtide.frontend.trace.recorder import Recorder


class _State(threading.local):
    recorder: Recorder | None = None
    paused: bool = False
    twins: dict[Any, Any]  # of what torch.jit made, by it, while recording


_state = _State()
_lock = threading.Lock()
_depth = 0
_originals: dict[Any, Callable[..., Any]] = {}


def active() -> Recorder | None:
    """Return the recorder of this thread's calls at present."""
    return None if _state.paused else _state.recorder


def is_tracing() -> bool:
    """Return whether `lt.trace` is recording this code."""
    return _state.recorder is not None


@contextmanager
def recording(recorder: Recorder) -> Generator[None]:
    """Makes this the thread's recorder; the caller has seen to it that there is no other."""
    _state.recorder = recorder
    _state.twins = {}
    _patch(+1)
    try:
        yield
    finally:
        _state.recorder = None
        _state.twins = {}
        _patch(-1)


@contextmanager
def paused() -> Generator[None]:
    """Nothing is recorded inside."""
    before, _state.paused = _state.paused, True
    try:
        with NoFunctionModes():
            yield
    finally:
        _state.paused = before


def _patch(step: int) -> None:
    """Counts the threads that record; the first one puts our `is_tracing` where packages ask."""
    global _depth
    with _lock:
        _depth += step
        if _depth == 1 and step == 1:
            for names, name, instead in _REPLACED:
                names[name] = functools.partial(instead, names[name])
            for cls in torch_jit.COMPILED:
                _originals[cls] = cls.__call__
                cls.__call__ = _script_call(cls.__call__)
            function_apply.add(_apply)
        elif _depth == 0:
            for names, name, _ in _REPLACED:
                names[name] = names[name].args[0]
            for cls in torch_jit.COMPILED:
                cls.__call__ = _originals.pop(cls)
            function_apply.remove(_apply)


def _apply(
    run: Callable[..., Any], call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from lowtide.frontend.trace import autograd_functions  # its recorder reads this module

    recorder, cls = active(), call.cls
    is_observable = recorder is not None and recorder.is_live()
    if not is_observable or not autograd_functions.is_recorded(cls):
        return run(*args, **kwargs)
    if not call.is_grad:
        autograd_functions.warn_of_backward(cast("Recorder", recorder), cls)
        return run(*args, **kwargs)

    def unseen(*given: Any) -> Any:
        with paused():
            return run(*given)

    return autograd_functions.record_apply(cast("Recorder", recorder), call, args, kwargs, unseen)


def _script_call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `__call__` for functions and methods of torch.jit, whose ops no mode sees. It
    records the ops of the compiled twin."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = active()
        if recorder is None or not recorder.is_live():
            return original(self, *args, **kwargs)
        with paused():
            compiled = torch_jit_twins.compiled(self, _state.twins)
        return compiled(*args, **kwargs)

    return call


def _is_tracing(original: Callable[[], bool]) -> bool:
    return is_tracing() or bool(original())


def _seed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    recorder = active()
    if recorder is not None and recorder.is_live():
        name = getattr(original, "__name__", "a seed")
        what = f"`torch.{name}` inside a traced function is not recorded"
        recorder.warn_frozen(what, here(recorder.stop))
    return original(*args, **kwargs)


# Past the properties of `lowtide.api.patch`.
_REPLACED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (vars(torch.jit), "is_tracing", _is_tracing),
    (*RECORDING_KEPT, _is_tracing),
    *((vars(m), n, _seed) for m in (torch, torch.random) for n in ("manual_seed", "set_rng_state")),
)
