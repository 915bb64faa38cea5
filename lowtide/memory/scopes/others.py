"""Which tensors other threads may be using, in the middle of PyTorch's C++.

In: ids of tensors that are closed to Python. Out: those that may be in use. PyTorch's methods
(`x.exp()`) count no reference to their own tensor and let other threads run while they compute, but
Python does: the caller's frame keeps the operands of a call until it returns. So the innermost
frame of each thread is looked at, and what C works on that was called from there.

    used_by_others([id(x), id(y)])          # {id(x)} while another thread is in x.exp_()

Always: a call that was begun before its tensor was closed stands still in its frame until it
returns, so that what is read a little later is still right of it; what moves meanwhile is no
matter. Nothing of other threads is held: whatever one reference more keeps is not fresh to their
scopes. While no thread's clock of CPU time has moved, nothing was done since they were last read.
"""

from __future__ import annotations

import _thread
import functools
import gc
import operator
import os
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, cycle, repeat, starmap
from typing import Any

import torch

from lowtide.memory.scopes import cpython, reading

_current_frames: Any = getattr(sys, "_current_frames")  # noqa: B009 - it is CPython's own
_getframe: Any = getattr(sys, "_getframe")  # noqa: B009 - as above
_count_of_threads: Any = getattr(_thread, "_count")  # noqa: B009 - as above; less the first
_code_and_instruction: Any = operator.attrgetter("f_code", "f_lasti")
# Untyped, as types of maps of maps say nothing any more.
_map: Any = map
_dict: Any = dict
_chained: Any = chain.from_iterable
# The clocks of the others and what they worked on when a thread last looked; replaced as one.
_last: list[tuple[dict[int, int], set[int]]] = [({}, set())]
# One at a time turns the collector off; a process that was forked meanwhile has a lock of its own.
_looking = [threading.RLock()]
_has_paused = [False]  # the collector


def _after_fork_in_child() -> None:
    _looking[0] = threading.RLock()
    if _has_paused[0]:
        _has_paused[0] = False
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def is_alone() -> bool:
    """Whether no other thread runs Python code."""
    return not _count_of_threads() and threading.get_ident() == threading.main_thread().ident


def are_others() -> bool:
    """Whether Python code may be running on another thread, and can be looked at."""
    return not is_alone() and can_see()


def used_by_others(ids: list[int]) -> set[int]:
    """Those of the ids of tensors that another thread may be using in C++."""
    if not are_others():
        return set()
    idents, clocks, addresses, places = _standing()
    here = threading.get_ident()
    now = {ident: clock for ident, clock in zip(idents, clocks, strict=True) if ident != here}
    last_clocks, last_reached = _last[0]
    if now == last_clocks and last_reached.isdisjoint(ids) and _are_clocks_fine():
        return set()
    frames = [
        (address, *place)
        for ident, address, place in zip(idents, addresses, places, strict=True)
        if ident != here
    ]
    try:
        reached = cpython.operands(frames)
    except OSError:  # the process may read no more: it is tried out anew
        can_see.cache_clear()
        raise
    if reached is None:
        return set(ids)
    _last[0] = now, reached
    return reached.intersection(ids)


def _standing() -> list[Any]:
    """Of each thread that runs Python: its ident, its clock of CPU time in ns, the address of its
    innermost frame, and the code object and instruction at which that stands.

    By iterators of C alone, in one instruction of Python's, in which no other thread runs: none
    ends before its clock is read, and none moves on while its frame is held. `cycle`, so that it is
    the last iterator of frames that ends all, and so lets go of them.
    """
    with _looking[0]:
        return _standing_now()


def _standing_now() -> list[Any]:
    is_collecting = _has_paused[0] = gc.isenabled()
    try:  # Ctrl-C may come right after the call that turns it off
        gc.disable()  # before 3.12 it may run anything, anywhere
        frames = starmap(_current_frames, repeat((), 1))
        fourfold = _chained(_map(repeat, frames, repeat(4)))
        ways = cycle((_dict.keys, _dict.keys, _dict.values, _dict.values))
        parts = _map(operator.call, ways, fourfold)
        parts = _map(
            map, cycle((int, time.pthread_getcpuclockid, id, _code_and_instruction)), parts
        )
        parts = _map(map, cycle((int, time.clock_gettime_ns, int, tuple)), parts)
        return [*_map(list, parts)]
    finally:
        if is_collecting:
            gc.enable()
            _has_paused[0] = False


@functools.cache
def _are_clocks_fine() -> bool:
    """Whether a thread's clock moves with whatever the thread does."""
    clocks = [time.thread_time_ns() for _ in range(4)]
    return len(set(clocks)) == len(clocks)


@functools.cache
def can_see() -> bool:
    """Whether operands can be read here; tried out, so that no layout is taken on trust."""
    if not (cpython.HAS_LAYOUT and reading.can_read() and all(_trials())):
        return False
    cpython.know(torch.Tensor, torch.nn.Parameter)
    return True


def _trials() -> Iterator[bool]:
    """A mark must be seen in what C works on, and not in a variable or in what it has done."""
    mark, local = object(), object()
    seen: list[set[int]] = []

    def look(*_: object) -> int:
        frame = _getframe(1)
        found = cpython.operands([(id(frame), frame.f_code, frame.f_lasti)])
        seen.append({id(mark), id(local)} & (found or set()))
        return 0

    max((mark, mark), key=look)
    list(map(look, [mark]))
    functools.partial(look, mark)()
    _ = [0 for _ in map(look, (mark,))]
    yield seen == [{id(mark)}] * 5
    seen.clear()
    _ = mark, local, max(mark, local, key=id), max((0,), key=look)
    yield seen == [set()]
    for made in ([mark].append, {mark: 0}.keys(), [mark] * 5_000):
        found = cpython.reach({id(made)}, {})
        yield found is None or id(mark) in found
