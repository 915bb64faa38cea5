"""Patches of PyTorch and Python during a profile.

    nn.Module.__call__                to know the module of an operator
    threading.Thread.start            to follow threads
    the work of a ThreadPoolExecutor  to follow threads that were started earlier
    the start of PyTorch's profiler   to refuse it: it would end the recording that this one uses
    Dynamo's set_eval_frame           to remove the mode inside code that torch.compile compiled:
                                      its guards would see the mode, and recompile

Most of these names are private; one that a version lacks is not patched.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from lowtide.cpython import WorkItem, frame_at
from lowtide.errors import LowtideError
from lowtide.tools.profiler import watch
from lowtide.torch_private.graph_capture import EVAL_FRAME, SWITCH
from lowtide.torch_private.profiler import STARTERS


class Patches:
    """Replaced attributes and their old values."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any, Any]] = []

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Set `owner.name` to `make(old)`; do nothing if `owner` does not define the name."""
        if name in vars(owner):
            old = owner.__dict__[name]  # unbound
            new = make(old)
            setattr(owner, name, new)
            self._before.append((owner, name, old, new))

    def undo(self) -> None:
        """Restore everything, the last first. If other code has wrapped the replacement since, as
        the first dispose scope does, it stays: without a profile it does nothing."""
        while self._before:
            owner, name, old, new = self._before.pop()
            if vars(owner).get(name) is new:
                setattr(owner, name, old)


def apply(
    start_thread: Callable[[threading.Thread], None], profiled: Callable[[Callable[[], Any]], Any]
) -> Patches:
    """Apply all patches. `start_thread`: called with each thread that is about to start.
    `profiled`: called with each work item of a thread pool."""
    patches = Patches()
    patches.replace(torch.nn.Module, "__call__", _watched_module_call)
    patches.replace(threading.Thread, "start", functools.partial(_with_thread, start_thread))
    patches.replace(WorkItem, "run", functools.partial(_with_work, profiled))
    for name in STARTERS:
        patches.replace(torch.autograd.profiler, name, _refused)
    if EVAL_FRAME in sys.modules:
        _patch_dynamo(patches)
    else:
        patches.replace(torch, "compile", functools.partial(_patching_compile, patches))
    return patches


def _watched_module_call(old: Any) -> Any:
    current = watch.current

    @functools.wraps(old)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        watcher = current()
        if watcher is None or watcher.is_paused:
            return old(self, *args, **kwargs)
        return watcher.call_module(old, self, args, kwargs)

    return __call__


def _with_work(profiled: Callable[[Callable[[], Any]], Any], old: Any) -> Any:
    @functools.wraps(old)
    def run(self: Any) -> None:
        profiled(functools.partial(old, self))

    return run


def _with_thread(start_thread: Callable[[threading.Thread], None], old: Any) -> Any:
    @functools.wraps(old)
    def start(self: threading.Thread) -> None:
        start_thread(self)
        old(self)

    return start


def _refused(old: Any) -> Any:
    @functools.wraps(old)
    def refuse(*_: Any, **__: Any) -> None:
        raise LowtideError(
            "lt.profile() is running and uses PyTorch's profiler: run the other one outside of it"
        )

    return refuse


def _patching_compile(patches: Patches, old: Any) -> Any:
    """Patch Dynamo as soon as torch.compile has imported it."""

    @functools.wraps(old)
    def compile(*args: Any, **kwargs: Any) -> Any:
        made = old(*args, **kwargs)
        if EVAL_FRAME in sys.modules and watch.current() is not None:
            _patch_dynamo(patches)
        return made

    return compile


def _patch_dynamo(patches: Patches) -> None:
    patches.replace(sys.modules[EVAL_FRAME], SWITCH, _switch)


def _switch(old: Any) -> Any:
    """Dynamo calls it when it enters and leaves compiled code, from the same frame, and from others
    in between."""
    if hasattr(old, "lowtide_before"):
        return old

    def switch(callback: Any) -> Any:
        watcher = watch.current()
        if watcher is not None:
            caller = frame_at(1)
            if callable(callback):
                watcher.enter_compiled(caller)
            else:
                watcher.leave_compiled(caller)
        return old(callback)

    switch.lowtide_before = old  # type: ignore[attr-defined]
    return switch
