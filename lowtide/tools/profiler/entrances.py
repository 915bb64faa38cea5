"""Watches calls that no function mode sees: TorchScript, autograd's engine, custom Functions.

They are watched as long as any thread is recorded. That may be longer than the profile: a thread in
the middle of its work is recorded until its next watched call.

    enter()     # a profile begins, or a followed thread
    leave()     # it has ended; the last one restores PyTorch
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from lowtide import function_apply
from lowtide.cpython import frame_at
from lowtide.function_apply import Call
from lowtide.tools.profiler import watch
from lowtide.tools.profiler.patches import Patches
from lowtide.torch_private.autograd import RUN_BACKWARD
from lowtide.torch_private.modes import run_as_it_is
from lowtide.torch_private.torch_jit import COMPILED

_lock = threading.Lock()
_patches = Patches()
_inside = 0


def enter() -> None:
    """Count one more recorded thread."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _patches.replace(torch.autograd, RUN_BACKWARD, _watched_backward)
            function_apply.add(_watched_apply)
            for owner in COMPILED:
                _patches.replace(owner, "__call__", _noted_call)


def leave() -> None:
    """Count one less."""
    global _inside
    with _lock:
        _inside -= 1
        if _inside == 0:
            function_apply.remove(_watched_apply)
            _patches.undo()


def _noted_call(old: Any) -> Any:
    @functools.wraps(old)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        watcher = watch.current()
        if watcher is None or watcher.is_paused:
            return old(self, *args, **kwargs)
        watcher.note_place(frame_at(1))
        with watcher.busy():
            return old(self, *args, **kwargs)

    return __call__


def _watched_backward(old: Any) -> Any:
    @functools.wraps(old)
    def run(*args: Any, **kwargs: Any) -> Any:
        watcher = watch.current()
        if watcher is None or watcher.is_paused:  # a paused watcher is busy already
            return old(*args, **kwargs)
        with watcher.busy(), watcher.on():
            return old(*args, **kwargs)

    return run


@run_as_it_is
def _watched_apply(
    run: Callable[..., Any], _: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Be busy while the function runs: PyTorch records an event around its calls."""
    watcher = watch.current()
    if watcher is None or watcher.is_paused:
        return run(*args, **kwargs)
    with watcher.busy():
        return run(*args, **kwargs)
