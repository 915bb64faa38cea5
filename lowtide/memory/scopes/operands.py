"""Which tensors other threads are working on, in the middle of PyTorch's C++.

In: ids of tensors that are closed to Python. Out: those that may be in use. PyTorch's methods
(`x.exp()`) count no reference to their own tensor and let other threads run while they compute, but
Python does: the caller's frame keeps the operands of a call on its value stack until it returns. So
the stacks of all threads are read, and what the operands there lead to.

    used_by_others({id(x), id(y)})          # {id(x)} while another thread is in x.exp_()

Always: a call that was begun before its tensor was closed stands still in its frame until it
returns, so that what is read a little later is still right of it; what moves meanwhile is no
matter. Nothing of other threads is held: whatever one reference more keeps is not fresh to their
scopes. A thread whose clock of CPU time has not moved has done nothing since it was last read.
"""

from __future__ import annotations

import _thread
import functools
import gc
import itertools
import operator
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from lowtide.memory.scopes.containers import Words, heads_of, reach, runs_python
from lowtide.memory.scopes.instructions import Instructions
from lowtide.memory.scopes.layouts import FRAME, HAS_LAYOUT, LOCALS, TOP
from lowtide.memory.scopes.reading import WORD, blocks, can_read, words

_current_frames: Any = getattr(sys, "_current_frames")  # noqa: B009 - it is CPython's own
_MOST_FRAMES = 5_000
_MOST_CODES = 10_000
_count_of_threads: Any = getattr(_thread, "_count")  # noqa: B009 - as above; less the first
_clock_ns: Any = time.clock_gettime_ns
# Untyped, as types of maps of maps say nothing any more.
_map: Any = map
_repeat: Any = itertools.repeat
_starmap: Any = itertools.starmap
_chain: Any = itertools.chain
_chained: Any = itertools.chain.from_iterable
_accumulate: Any = itertools.accumulate
_takewhile: Any = itertools.takewhile
_code_and_instruction: Any = operator.attrgetter("f_code", "f_lasti")


class _Seen(NamedTuple):
    """What a thread worked on when its clock stood so; None if that may be anything."""

    clock_ns: int
    reached: frozenset[int] | None


# The clocks of the others and what they all worked on when a thread last looked; replaced as one.
_last: list[tuple[dict[int, int], set[int]]] = [({}, set())]
_seen: dict[int, _Seen] = {}  # by thread
_main: list[int | None] = [threading.main_thread().ident]
_codes: dict[int, Instructions] = {}  # by id of the code object


def are_others() -> bool:
    """Whether Python code may be running on another thread, and can be looked at."""
    return (_count_of_threads() > 0 or threading.get_ident() != _main[0]) and can_see()


def used_by_others(ids: set[int]) -> set[int]:
    """Those of the ids of tensors that another thread may be using in C++."""
    if not ids or not are_others():
        return set()
    clocks = _clocks()
    here = threading.get_ident()
    del clocks[here]
    last_clocks, last_reached = _last[0]
    if clocks == last_clocks and ids.isdisjoint(last_reached) and _is_fine():
        return set()
    for gone in _seen.keys() - clocks.keys() - {here}:
        _seen.pop(gone, None)
    moved = [ident for ident, clock_ns in clocks.items() if _has_moved(ident, clock_ns, ids)]
    stacks = _stacks(moved) if moved else []
    for ident, frames, addresses in zip(moved, stacks[::2], stacks[1::2], strict=True):
        reached = _reached(frames, addresses)
        _seen[ident] = _Seen(clocks[ident], None if reached is None else frozenset(reached))
    all_reached: set[int] = set()
    for ident in clocks:
        seen = _seen.get(ident)
        if seen is None or seen.reached is None:  # another thread has forgotten it
            return ids
        all_reached |= seen.reached
    _last[0] = clocks, all_reached
    return ids & all_reached


def _has_moved(ident: int, clock_ns: int, ids: set[int]) -> bool:
    """Whether the thread must be read, which what it was seen to use may also be a reason for."""
    seen = _seen.get(ident)
    if seen is None or seen.reached is None or seen.clock_ns != clock_ns or not _is_fine():
        return True
    return not ids.isdisjoint(seen.reached)


def _clocks() -> dict[int, int]:
    """Of each thread that runs Python, by ident, its clock of CPU time."""
    idents: list[int]
    idents, clocks = _at_once(_idents_and_clocks())
    return dict(zip(idents, _map(_clock_ns, clocks), strict=True))


def _at_once(values: Iterator[Any]) -> list[Any]:
    """What iterators of C give, in one instruction, in which no other thread runs."""
    is_collecting = gc.isenabled()
    gc.disable()  # before 3.12 it may run anything, anywhere
    try:
        return [*values]
    finally:
        if is_collecting:
            gc.enable()


def _idents_and_clocks() -> Iterator[Any]:
    """At once: to ask for the clock of a thread that has ended may end the process."""
    frames = _starmap(_current_frames, _repeat((), 1))
    twice = _chained(_map(_repeat, frames, _repeat(2)))
    # Once more than there is something, so that the last iterator lets go of the frames.
    return _map(list, _map(_map, (int, time.pthread_getcpuclockid, int), twice))


def _stacks(idents: list[int]) -> list[Any]:
    """Of each of the threads, two lists, from the innermost frame on: of code objects with the
    instruction at work, and of the addresses of frames. Empty for a thread that has ended."""
    return _at_once(_lists_of_frames(idents))


def _lists_of_frames(idents: list[int]) -> Iterator[Any]:
    """At once, and the frames let go of: who holds one keeps what is in it."""
    frames = _starmap(_current_frames, _repeat((), 1))
    # None of these iterators keeps what it gave: `zip` would.
    each = _map(_map, _repeat(dict.get), _map(_repeat, frames), (idents,))
    tops = _map(_repeat, _chained(each), _repeat(1))
    outwards = _map(_accumulate, _map(_chain, tops, _repeat(_repeat("f_back"))), _repeat(getattr))
    stacks = _map(list, _map(_takewhile, _repeat(bool), outwards))
    twice = _chained(_map(_repeat, stacks, _repeat(2)))
    return _map(list, _map(_map, itertools.cycle((_code_and_instruction, id)), twice))


@functools.cache
def _is_fine() -> bool:
    """Whether a thread's clock moves with whatever the thread does."""
    clocks = [time.thread_time_ns() for _ in range(4)]
    return len(set(clocks)) == len(clocks)


def _reached(frames: list[tuple[CodeType, int]], addresses: list[int]) -> set[int] | None:
    """What the thread works on, by address; None if it may be anything."""
    if len(frames) > _MOST_FRAMES:
        return None
    calls = _calls(frames, addresses)
    heads = heads_of({word for _, operands in calls for word in operands})
    used: set[int] = set()
    for is_call, operands in calls:
        called = next(filter(None, operands[:2]), 0)
        if not (is_call and runs_python(called, heads)):
            used.update(operands)
    return reach(used, heads)


def _calls(frames: list[tuple[CodeType, int]], addresses: list[int]) -> list[tuple[bool, Words]]:
    """The operands of each instruction that C is in the middle of; whether it is a call."""
    found: list[tuple[bool, Words]] = []
    at_work = [_instructions(code).operands(offset) for code, offset in frames]
    inner = blocks([(address + FRAME, WORD) for address in addresses])
    places = [0 if data is None else words(data)[0] for data in inner]
    both = zip(places, at_work, strict=True)
    parts = [(at + TOP, LOCALS - TOP + end * WORD) for at, (_, end, _) in both]
    for data, (first, _, is_call) in zip(blocks(parts), at_work, strict=True):
        # Above zero: the depth at which Python, and not C, was called.
        if data is not None and data[3] & 128:
            found.append((is_call, words(data[LOCALS - TOP + first * WORD :])))
    return found


def _instructions(code: CodeType) -> Instructions:
    found = _codes.get(id(code))
    if found is None:
        if len(_codes) >= _MOST_CODES:
            _codes.clear()
        found = _codes[id(code)] = Instructions(code)
    return found


@functools.cache
def can_see() -> bool:
    """Whether operands can be read here; tried out, so that no layout is taken on trust."""
    return HAS_LAYOUT and can_read() and all(_trials())


def _trials() -> Iterator[bool]:
    """A mark must be seen in what C works on, and not in a local variable."""
    here = threading.get_ident()
    mark, local = object(), object()
    seen: list[set[int] | None] = []

    def look(_: object) -> int:
        frames, addresses = _stacks([here])
        seen.append(_reached(frames, addresses))
        return 0

    list(_map(look, (mark,)))
    sorted((mark,), key=look)
    max((mark,), key=look)
    _ = mark, look(local)
    yield seen.pop(1) is None
    sees, sees_too, is_blind = ({id(mark), id(local)} & (reached or set()) for reached in seen)
    yield sees == sees_too == {id(mark)} and not is_blind
    yield from (_leads_to(mark, made) for made in _containers(mark))


def _containers(mark: object) -> Iterator[Any]:
    def waits() -> Iterator[Any]:
        held = mark
        yield
        del held

    waiting = waits()
    next(waiting)
    several = [None] * 20
    yield from ([mark], (mark,), {mark}, {"a": mark}, {1: mark}, [*several, mark], (*several, mark))
    yield from (iter([mark]), functools.partial(id, mark), operator.methodcaller("a", mark))
    yield from (zip([mark]), {"a": mark}.values(), iter({mark}), waiting, [mark].append)
    yield from (itertools.chain([[mark]]), slice(mark), enumerate((mark,)))
    yield {**dict.fromkeys(map(str, range(40))), "a": mark}


def _leads_to(mark: object, made: Any) -> bool:
    reached = reach([id(made)], {})
    return reached is not None and id(mark) in reached


def _after_fork() -> None:
    _main[0] = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
