"""Other threads that may be computing with a tensor when it is disposed.

PyTorch lets other threads run while it computes, and a method (`x.exp()`) counts no reference of
its own to its tensor: the caller's handle is enough. A handle that is emptied meanwhile would take
the memory away under the computation. So where other threads run Python a handle is first closed to
Python, and emptied when every thread has left the call in which it was then: the grace period of
read-copy-update (McKenney and Slingwine, 1998), of which a thread need not know.

    if alone(): ...                     nobody else runs Python: at once
    late = begin()                      else, before the first handle is closed
    close(births, ending, late.parts[0])
    late.is_closed = True
    late.look()                         they are emptied when they may be: now, or a little later

In: where threads are (`stacks`). Out: when it is safe.

Always: who uses a closed handle anew is refused, so that only calls matter that had begun before.
A call is over when its frame stands elsewhere, or is gone. One that has taken a minute of its
thread's CPU time is taken to be a loop that calls the same again and again.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from dataclasses import dataclass
from typing import Final

from lowtide.memory.scopes import resident
from lowtide.memory.scopes.disposed import Closed, empty_closed, is_in_a_graph
from lowtide.memory.scopes.stacks import Stack, cpu_ns, idents, stack_of, waits_outside

_LONGEST_CALL_NS: Final = 60_000_000_000
_FIRST_POLL_S, _LAST_POLL_S = 0.001, 0.05
_LONGEST_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Call:
    """A frame and an instruction of a thread, as `Stack.call` gives them; the CPU time by then."""

    place: tuple[int, int]
    ns: int


@dataclass(slots=True, eq=False)
class Late:
    """Closed handles, in parts, to be emptied after the calls, by thread, and what was resident
    before. None: nobody has looked for calls yet."""

    resident_bytes: int
    parts: tuple[Closed, ...]
    is_closed: bool = False
    calls: dict[int, _Call] | None = None
    has_waited: bool = False  # a backward, for these

    def may_be_handed_out(self) -> bool:
        """Whether autograd has tensors of closed handles, and nobody has waited for them yet."""
        return self.is_closed and not self.has_waited and any(map(is_in_a_graph, self.parts))

    def look(self) -> None:
        """Empty them now, if no other thread is in a call, or when none is any more."""
        self.calls = _calls() if any(self.parts) else {}
        if self.calls:
            _see_to_it()
        else:
            _finish(self)

    def must_wait(self, stacks: dict[int, Stack | None], asks_kernel: bool) -> bool:
        """Whether a thread is still in its call. `stacks`: of those that were looked at by now, all
        of them since the handles were closed."""
        calls = self.calls
        if calls is None:  # an interrupt came first, or its own thread is about to look
            calls = self.calls = _calls()
        for ident, call in [*calls.items()]:
            if ident not in stacks:
                stacks[ident] = stack_of(ident)
            if _is_over(call, stacks[ident], asks_kernel):
                calls.pop(ident, None)
        return bool(calls)

    def waits_for_the_same(self, other: Late) -> bool:
        """Whether both are to be done at the same time."""
        theirs = {ident: call.place for ident, call in (other.calls or {}).items()}
        return theirs == {ident: call.place for ident, call in (self.calls or {}).items()}


# Changed by single instructions only, as any thread may be here, and a finalizer, too.
_late: list[Late] = []
_looking = threading.Lock()
_poller: threading.Thread | None = None
_is_ending = threading.Event()


def alone() -> bool:
    """Whether no other thread runs Python."""
    return len(idents()) == 1


def begin(resident_bytes: int = 0) -> Late:
    """For handles that are about to be closed: each goes into its first part before. Whatever
    happens, it must be told afterwards that it `is_closed`. `resident_bytes`: 0, or to which malloc
    may be trimmed afterwards."""
    global _late
    late = Late(resident_bytes, ([],))
    _late += (late,)  # no call, after which an interrupt might come before the caller has it
    return late


def catch_up(asks_kernel: bool = False) -> None:
    """Do what need not wait any more. To ask the kernel takes longer than all else."""
    if not _late or _looking.locked():
        return
    with _looking:
        over: list[Late] = []
        before: Late | None = None
        stacks: dict[int, Stack | None] = {}
        for late in [late for late in [*_late] if late.is_closed]:
            if not late.must_wait(stacks, asks_kernel):
                over.append(late)
            elif before is not None and before.waits_for_the_same(late):
                before = _as_one(before, late)
            else:
                before = late
        for late in over:
            _finish(late)


def before_backward() -> None:
    """Give other threads a moment to leave their calls, if autograd has what is closed: a custom
    Function would be handed the closed handle, where it gets an open one once that is emptied."""
    end_s = time.monotonic() + _LONGEST_WAIT_S
    while waiting := [late for late in [*_late] if late.may_be_handed_out()]:
        if time.monotonic() > end_s:
            for late in waiting:
                late.has_waited = True
        else:
            time.sleep(_FIRST_POLL_S)
            catch_up()


def _as_one(a: Late, b: Late) -> Late:
    """Both in one, as there may be thousands during one long call."""
    global _late
    resident_bytes, has_waited = a.resident_bytes or b.resident_bytes, a.has_waited and b.has_waited
    both = Late(resident_bytes, a.parts + b.parts, True, a.calls, has_waited)
    _late += (both,)
    _forget(a)
    _forget(b)
    return both


def _calls() -> dict[int, _Call]:
    """In which calls other threads are, by the thread."""
    ours = {threading.get_ident(), _poller and _poller.ident}
    stacks = {ident: stack_of(ident) for ident in idents() if ident not in ours}
    found: dict[int, _Call] = {}
    for ident, stack in stacks.items():
        place = None if stack is None else stack.call()
        if stack is not None and place is not None and not waits_outside(stack, place):
            found[ident] = _Call(place, cpu_ns(stack.clock))
    return found


def _is_over(call: _Call, stack: Stack | None, asks_kernel: bool) -> bool:
    if stack is None or not stack.is_in(call.place):
        return True
    if asks_kernel and waits_outside(stack, call.place):
        return True
    return cpu_ns(stack.clock) - call.ns > _LONGEST_CALL_NS


def _finish(late: Late) -> None:
    """Twice, if two threads are here, or after an interrupt: that does no harm."""
    for closed in late.parts:
        empty_closed(closed)
    _forget(late)
    if late.resident_bytes:
        resident.after_end(late.resident_bytes)


def _forget(late: Late) -> None:
    with contextlib.suppress(ValueError):
        _late.remove(late)


def _see_to_it() -> None:
    """Somebody looks, even if no scope is opened or ended any more."""
    global _poller
    if not (_is_ending.is_set() or (_poller is not None and _poller.is_alive())):
        poller = _poller = threading.Thread(target=_poll, name="lowtide-dispose", daemon=True)
        try:
            poller.start()
        except RuntimeError:  # no more threads: the next scope catches up
            _poller = None


def _poll() -> None:
    global _poller
    pause_s = _FIRST_POLL_S
    while _late and not _is_ending.wait(pause_s):
        catch_up(asks_kernel=True)
        pause_s = min(2 * pause_s, _LAST_POLL_S)
    _poller = None
    if _late:  # since a moment
        _see_to_it()


def _end() -> None:
    """Python must not end while a thread of ours is inside PyTorch."""
    _is_ending.set()
    poller = _poller
    if poller is not None and poller.is_alive():
        poller.join()


atexit.register(_end)


def _after_fork() -> None:
    """The child has one thread: nobody else closes handles, and calls are over."""
    global _poller, _looking
    _poller, _looking = None, threading.Lock()
    for late in _late:
        late.is_closed = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
