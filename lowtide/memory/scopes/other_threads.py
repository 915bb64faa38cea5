"""Other threads that may be computing with a tensor when its scope ends.

PyTorch lets other threads run while it computes, and a method (`x.exp()`) counts no reference of
its own to its tensor: the caller's handle is enough. A handle that is emptied meanwhile would take
the memory away under the computation. So it is closed to Python at once, and emptied when each
thread that was at work then has come back from its call.

    since = clocks()                    a scope opens
    calls = calls_since(since)          its end: what threads are in that have run since then
    later(calls, empty)                 where there are any, `empty` is called when they have moved
                                        on, a few milliseconds later

In: threads' stacks and CPU clocks. Out: when it is safe.

Always: a thread whose clock stands where it stood when a scope opened has not been handed what was
made since. One that waits in Python's own library, or for something outside of the process, is in
no call of PyTorch's. Whether a thread
that runs one line again and again has left it cannot be seen: after a minute of its CPU time it is
taken to have.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, NamedTuple

from lowtide.memory.scopes import resident
from lowtide.memory.scopes.asleep import is_asleep

_LONGEST_CALL_NS: Final = 60_000_000_000  # of CPU time
_IDLE_NS: Final = 1_000_000_000  # a thread that is to run does so within that
_FIRST_POLL_S, _LAST_POLL_S = 0.001, 0.05
_STOPPED: Final = -1  # the clock of a thread that ended meanwhile, or that nobody can read
_current_frames: Any = getattr(sys, "_current_frames")  # noqa: B009 - it is CPython's own
_clock_of: Any = getattr(time, "pthread_getcpuclockid", None)

# Functions of Python's library that wait, or take from a queue, and call nothing of their caller's.
_WAITING: Final = frozenset({
    ("threading", "wait"), ("threading", "join"), ("threading", "_wait_for_tstate_lock"),
    ("threading", "acquire"), ("threading", "_shutdown"), ("queue", "get"), ("queue", "put"),
    ("selectors", "select"), ("socket", "accept"), ("socket", "readinto"), ("ssl", "read"),
    ("multiprocessing.connection", "_recv"), ("multiprocessing.connection", "_poll"),
    ("multiprocessing.connection", "_send"), ("multiprocessing.popen_fork", "poll"),
    ("subprocess", "_try_wait"), ("subprocess", "_wait"), ("concurrent.futures.thread", "_worker"),
})  # fmt: skip


class Call(NamedTuple):
    """Where a thread was: its innermost frame, by id, and the instruction there; its CPU clock, and
    when it was read."""

    frame: int
    instruction: int
    cpu_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class _Late:
    """What is to be done after these calls, and what was resident before."""

    do: Callable[[], None]
    calls: dict[int, Call]
    resident_bytes: int


# Changed by single calls of lists and dicts only, as any thread may be here, and a finalizer, too.
_late: list[_Late] = []
_poller: threading.Thread | None = None


def clocks() -> Mapping[int, int]:
    """The CPU clocks of the other threads, in ns."""
    return {ident: _cpu_ns(ident) for ident in _frames()}


def calls_since(since: Mapping[int, int]) -> dict[int, Call]:
    """Where threads are that have run since, or of which nothing is known."""
    found: dict[int, Call] = {}
    for ident, frame in _frames().items():
        cpu_ns, before_ns = _cpu_ns(ident), since.get(ident, _STOPPED)
        if (cpu_ns != before_ns or cpu_ns == _STOPPED) and not _waits(ident, frame):
            found[ident] = Call(id(frame), frame.f_lasti, cpu_ns, time.monotonic_ns())
    return found


def later(calls: dict[int, Call], do: Callable[[], None], resident_bytes: int = 0) -> None:
    """Call `do`, on any thread, when those calls are over. `resident_bytes`: malloc may be trimmed
    to that afterwards."""
    _late.append(_Late(do, calls, resident_bytes))
    _see_to_it()


def catch_up() -> None:
    """Do what need not wait any more."""
    if not _late:
        return
    frames = _frames()
    over = [late for late in _late[:] if not _must_wait(late, frames)]
    frames.clear()  # what they hold must not live longer for being looked at
    for late in over:
        try:
            _late.remove(late)
        except ValueError:  # another thread was quicker
            continue
        late.do()
        if late.resident_bytes:
            resident.after_end(late.resident_bytes)


def _must_wait(late: _Late, frames: Mapping[int, FrameType]) -> bool:
    for ident, call in list(late.calls.items()):
        if _is_over(call, ident, frames.get(ident)):
            late.calls.pop(ident, None)
    return bool(late.calls)


def _is_over(call: Call, ident: int, frame: FrameType | None) -> bool:
    if frame is None or _waits(ident, frame):
        return True
    used_ns = _cpu_ns(ident) - call.cpu_ns
    if used_ns > _LONGEST_CALL_NS or (
        used_ns == 0 and call.cpu_ns != _STOPPED and time.monotonic_ns() - call.at_ns > _IDLE_NS
    ):
        return True
    while frame is not None:  # what it called may have called Python
        if id(frame) == call.frame:
            return frame.f_lasti != call.instruction
        frame = frame.f_back
    return True


def _frames() -> dict[int, FrameType]:
    """The innermost one of each other thread, by the thread's identity."""
    frames: dict[int, FrameType] = _current_frames()
    # First of all: this very frame would hold itself, and all that its callers have.
    frames.pop(threading.get_ident(), None)
    if frames and _poller is not None and _poller.ident is not None:
        frames.pop(_poller.ident, None)
    return frames


def _cpu_ns(ident: int) -> int:
    # Whoever has a frame has not ended: it could not while this thread runs.
    try:
        return time.clock_gettime_ns(_clock_of(ident)) if _clock_of is not None else _STOPPED
    except OSError:
        return _STOPPED


def _waits(ident: int, frame: FrameType) -> bool:
    if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _WAITING:
        return True
    return _clock_of is not None and is_asleep(_clock_of(ident))


def _see_to_it() -> None:
    """Somebody looks, even if no scope is opened or ended any more."""
    global _poller
    if _poller is None:
        _poller = threading.Thread(target=_poll, name="lowtide-dispose", daemon=True)
        try:
            _poller.start()
        except RuntimeError:  # Python is about to end
            _poller = None


def _poll() -> None:
    global _poller
    pause_s = _FIRST_POLL_S
    while _poller is threading.current_thread():
        time.sleep(pause_s)
        catch_up()
        pause_s = min(2 * pause_s, _LAST_POLL_S)
        if not _late:
            _poller = None
            if _late:  # since a moment
                _see_to_it()


def _after_fork() -> None:
    """The child has one thread."""
    global _poller
    _poller = None
    catch_up()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
