"""What each captured graph of a call may take of the call's budget.

In: the budget, and what the graphs are planned to take, as they come. Out: what the next one may.

    budget 80 MB    graph 1: at most 40, takes 30    graph 2: at most half of the other 50    …

A call that is one graph has all of it. Which graphs follow one is not known before they are there,
so each may take half of what is left, or else its least: as long as none needs that, all of them
together, each of which holds no more than its own peak, stay within the budget. `memory()` sees the
whole call and knows better: one `share_bytes` for all of its graphs, the largest that keeps its
peak.
"""

from __future__ import annotations

import contextlib
import copy
import math
import threading
from collections.abc import Generator
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal

Role = Literal["alone", "whole call", "part of a call"]  # of a program, in what has the budget

ALL: Final = 1 << 62  # as much as it likes
_STEPS: Final = 4  # shares to each doubling: few, as each is a search, and a program, of its own
_MOST_STEPS: Final = 5 * _STEPS  # down to a 32nd of the call's peak


@dataclass(slots=True, kw_only=True, eq=False)
class Allowance:
    """Of one call. `owner`: whose call it is; `caller`: the frame that it is called from;
    `has_several`, `expects_one`: whether calls before it have been of several graphs, or all of
    one; `calls_ops`: Python ran large ops in one. `is_tried`: in a rehearsal. `count`,
    `planned_bytes`: how many graphs there have been in it, and the sum of their peaks, other
    objects' counted; `told_bytes`: that sum, where `memory()` has seen the call."""

    owner: object
    budget_bytes: int
    share_bytes: int | None = None
    caller: FrameType | None = None
    has_several: bool = False
    expects_one: bool = False
    calls_ops: bool = False
    is_tried: bool = False
    count: int = 0
    planned_bytes: int = 0
    told_bytes: int = 0

    def next_bytes(self, role: Role) -> int | None:
        """What the next graph may take, or else its least; None: the budget, and no more."""
        if self.share_bytes is not None:
            return self.share_bytes
        if not self.count and (role == "whole call" or self.expects_one):
            return None
        return floor_to_step((self.budget_bytes - self.planned_bytes) // 2)

    def took(self, peak_bytes: int) -> None:
        """There was one, planned for so many bytes."""
        self.count += 1
        self.planned_bytes += peak_bytes


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.allowance: Allowance | None = None


_of_thread: Final = _OfThread()


def current() -> Allowance | None:
    """That of the call which this thread is in."""
    return _of_thread.allowance


@contextlib.contextmanager
def on(allowance: Allowance | None) -> Generator[None]:
    """Inside, it is the current one."""
    before, _of_thread.allowance = _of_thread.allowance, allowance
    try:
        yield
    finally:
        _of_thread.allowance = before


@contextlib.contextmanager
def aside() -> Generator[None]:
    """Inside, what is planned is none of the call's, but may take as much."""
    with on(copy.copy(_of_thread.allowance)):
        yield


def floor_to_step(nbytes: int) -> int:
    """The largest share that is tried and no larger; 0: each graph its least."""
    if nbytes < 1:
        return 0
    return int(2 ** (math.floor(_STEPS * math.log2(nbytes)) / _STEPS))


def shares_below(peak_bytes: int) -> list[int]:
    """Those that are tried for a whole call which takes so much with `ALL`, the largest first: the
    same for every budget, so that a smaller one gets no larger share."""
    found = [int(peak_bytes / 2 ** (k / _STEPS)) for k in range(1, _MOST_STEPS + 1)]
    return [*found, 0]
