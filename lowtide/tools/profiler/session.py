"""Starts and stops a recording: PyTorch's profiler, the watchers of all threads, the patches.

In: nothing. Out: a `Capture`: PyTorch's tree of events, and each thread's notes. A process has at
most one session at a time.

    session = Session(); session.start()
    ...
    capture = session.stop()
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lowtide.errors import LowtideError
from lowtide.memory.measure import quiet_gc
from lowtide.runtime import arena
from lowtide.tools.profiler import entrances, patches, watch
from lowtide.torch_private import profiler

T = TypeVar("T")

_WAIT_FOR_THREADS_S = 10.0
_active: Session | None = None
_activating = threading.Lock()


@dataclass(kw_only=True)
class Capture:
    """A recording. `events`: PyTorch's tree. `arena`: (time on the watchers' clock, address, bytes;
    negative for a free) of arena events on threads that are not profiled."""

    events: list[Any]
    watchers: list[watch.Watcher]
    arena: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    remarks: list[str] = field(default_factory=list[str])


class Session:
    """One recording, from `start` to `stop`, on the thread that starts it."""

    def __init__(self) -> None:
        self._watchers: list[watch.Watcher] = []
        self._arena: list[tuple[int, int, int]] = []
        self._remarks: list[str] = []
        self._patches: patches.Patches | None = None
        self._following: profiler.Following | None = None
        self._lock = threading.Lock()
        self._of_thread: dict[int, watch.ThreadWatcher] = {}
        self._inside: Any = None  # an event around everything that the thread does
        self._owner = 0
        self._is_ending = False  # then no further thread is profiled

    def start(self) -> None:
        """Raise LowtideError if a profile, or PyTorch's own profiler, is running."""
        global _active
        with _activating:
            if _active is not None:
                raise LowtideError(
                    "a profile is already running: use one `with lt.profile()` at a time"
                )
            try:
                profiler.start_recording()
            except RuntimeError as fault:
                raise LowtideError(
                    "PyTorch's own profiler is running: end it first, lt.profile() uses it"
                ) from fault
            _active = self
        self._owner = threading.get_ident()
        self._following = profiler.Following()
        if not self._following.can_follow:
            self._remarks.append("threads that Python starts are not profiled on this platform")
        arena.set_observer(self._observe_arena)
        entrances.enter()
        self._patches = patches.apply(self._start_thread, self._profiled)
        watcher = watch.Watcher(0)
        self._watchers.append(watcher)
        watcher.start()
        self._inside = watch.inside()
        self._inside.__enter__()

    def stop(self) -> Capture:
        """Restore everything and return the recording. Raises LowtideError on another thread than
        that of `start`."""
        global _active
        if threading.get_ident() != self._owner:
            raise LowtideError(
                "a running profile can be read and ended only on the thread that began it"
            )
        try:
            if self._inside is not None:
                self._inside.__exit__(None, None, None)
            self._watchers[0].stop()
            if self._patches is not None:
                self._patches.undo()
            arena.set_observer(None)
            self._end_threads()
        finally:
            entrances.leave()
            with _activating:
                _active = None
                with quiet_gc(collect=False):  # a million small objects are made
                    events = profiler.stop_recording()
            if self._following is not None:
                self._following.close()
        return Capture(
            events=events,
            watchers=self._watchers,
            arena=self._arena,
            remarks=self._remarks,
        )

    def mark(self, name: str) -> None:
        """Record an event without duration on the thread that began the profile."""
        self._watchers[0].mark(name)

    def _start_thread(self, thread: threading.Thread) -> None:
        """Follow `thread`, which is about to start, from its first line."""
        thread.run = functools.partial(self._profiled, thread.run)  # type: ignore[method-assign]

    def _profiled(self, run: Callable[[], T]) -> T:
        """Return `run()`; this thread is profiled meanwhile."""
        watch.let_go()
        end = self._follow() if watch.current() is None else None
        try:
            return run()
        finally:
            if end is not None:
                end()
            watch.let_go()

    def _follow(self) -> Callable[[], None] | None:
        """Follow this thread. Returns a function that ends it; None if it cannot be profiled."""
        following = self._following
        with self._lock:
            if self._is_ending or following is None or not following.can_follow:
                return None
            thread = threading.get_native_id()
            watcher = self._of_thread.get(thread)
            if watcher is None:  # one for all work items of a thread: events have thread ids
                watcher = self._of_thread[thread] = watch.ThreadWatcher(len(self._watchers))
                self._watchers.append(watcher)
            watcher.has_stopped = False
            watcher.on_end = functools.partial(_leave, following.enter())
            entrances.enter()
            watcher.start()

        def end() -> None:
            with self._lock:
                # If the profile has ended, nothing is recorded, and `let_go` does the rest.
                if watch.current() is watcher and not watcher.has_ended:
                    watcher.stop()
                    watcher.on_end()

        return end

    def _end_threads(self) -> None:
        """Stop recording threads that are still running."""
        deadline = time.monotonic() + _WAIT_FOR_THREADS_S
        with self._lock:
            self._is_ending = True
            running = [w for w in self._watchers if isinstance(w, watch.ThreadWatcher)]
            running = [w for w in running if not w.has_stopped]
            for watcher in running:
                watcher.end()
        for watcher in running:
            while watcher.is_busy and time.monotonic() < deadline:
                time.sleep(0.001)
            if watcher.is_busy:
                self._remarks.append(f"thread {watcher.thread_name} was inside an operator")

    def _observe_arena(self, address: int, nbytes: int) -> None:
        """Record an allocation of the arena, or a free if `nbytes` is negative."""
        watcher = watch.current()
        if watcher is not None:
            watcher.mark(f"{watch.ARENA}{nbytes} {address}")
        else:
            self._arena.append((time.perf_counter_ns(), address, nbytes))


def _leave(before: Any) -> None:
    """End the recording of this thread; see `profiler.leave`."""
    profiler.leave(before)
    entrances.leave()
