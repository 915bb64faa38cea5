"""A budget of `lt.compile` is of the call: its graphs share it, by an `Allowance`.

In: a call of what was compiled. Out: its allowance while it lasts; a warning, once, where what the
graphs are planned to take might be more than the budget, or where no graph keeps to one.
In: a call's peak for a share of each graph, as `memory()` rehearses it. Out: the best share.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from lowtide import config
from lowtide.frontend.dynamo.internals import wrapped
from lowtide.memory.scopes.births import is_users
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.pipeline import listening, plain
from lowtide.pipeline.beside import Beside
from lowtide.pipeline.budget import allowance
from lowtide.pipeline.budget.allowance import Allowance
from lowtide.pipeline.warned import warn

OVER: Final = (
    "PyTorch captured {count} of one call{beside}, which may together take {peak:,} bytes, as far "
    "as one graph tells; the budget is {budget:,}. memory(), asked once with such arguments, looks "
    "at the whole call: from then on it keeps to the budget, or is refused"
)
BESIDE: Final = ", and Python runs more beside ({largest}, …)"
_LOOKS: Final = 2  # calls: the first may end early, or be another than those that follow
NONE: Final = "PyTorch captured no graph: Python runs all of it, which keeps to no budget"


class Shares:
    """Of one compiled object. `name`: what errors call it."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self.name = name
        self.budget_bytes = budget_bytes
        self._told: set[bool] = set()  # of a call that may take more; of one without graphs
        self._has_several = self._had_one = self._calls_ops = False
        self._looks = _LOOKS

    def allowed(self, share_bytes: int | None = None, is_tried: bool = False) -> Allowance:
        """One for a call."""
        return Allowance(
            owner=self,
            budget_bytes=self.budget_bytes,
            share_bytes=share_bytes,
            has_several=self._has_several,
            expects_one=self._had_one and not self._has_several,
            calls_ops=self._calls_ops,
            is_tried=is_tried,
        )

    def given(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose graphs share the budget."""

        def sharing(*args: Any, **kwargs: Any) -> Any:
            mine = allowance.current()
            if mine is not None and mine.owner is self and mine.caller is not None:
                return call(*args, **kwargs)  # within a call of its own
            around = None
            if mine is None or mine.owner is not self:
                mine, around = self.allowed(), mine  # else it is a rehearsal's
            mine.caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            beside = self._beside(mine)
            try:
                with allowance.on(mine), contextlib.nullcontext() if not beside else beside.on():
                    result = call(*args, **kwargs)
            finally:
                mine.caller = None
            if around is not None:
                around.planned_bytes += mine.planned_bytes
            if not mine.is_tried:
                self._has_several |= mine.count > 1
                self._had_one |= mine.count == 1
            if not listening.is_asked():
                self._look(mine, beside)
            return result

        return wrapped(sharing, call)

    def _beside(self, mine: Allowance) -> Beside | None:
        """Who looks at what Python runs itself in this call."""
        if not self._looks or mine.is_tried or listening.is_asked() or plain.reason():
            return None
        self._looks -= 1
        return Beside()

    def _look(self, mine: Allowance, beside: Beside | None) -> None:
        """At a call that is over: whether it may have been more than `memory()` has told, if that
        was asked at all."""
        peak_bytes, largest = mine.planned_bytes, ""
        self._calls_ops |= beside is not None and beside.peak_bytes > 0
        if beside is not None and mine.share_bytes is None:
            peak_bytes, largest = peak_bytes + beside.peak_bytes, beside.largest
        is_kept = mine.count and peak_bytes <= max(self.budget_bytes, mine.told_bytes)
        is_kept = is_kept or (mine.share_bytes is not None and not mine.count)
        is_none = not mine.count
        if is_kept or is_none in self._told or config.current().disable or plain.reason():
            return
        self._told.add(is_none)
        count = "a graph" if mine.count == 1 else f"{mine.count} graphs"
        more = BESIDE.format(largest=largest) if largest else ""
        over = OVER.format(count=count, beside=more, budget=self.budget_bytes, peak=peak_bytes)
        warn(f"{self.name}: {over if mine.count else NONE}")


def is_whole_call(goes_on: bool) -> bool:
    """Whether the graph that is being captured is all of the current call: Python does not go on
    after it, and no function of the user's, or module of PyTorch's, has called what it is of."""
    call = allowance.current()
    if goes_on or call is None or call.caller is None:
        return False
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame is not call.caller and not is_users(frame.f_code):
        if frame.f_code.co_name == "forward":
            return False
        frame = frame.f_back
    return frame is call.caller


def best(shares: Sequence[int], budget_bytes: int, peak_of: Callable[[int], int]) -> int:
    """Of these, the largest first, the first one with which a call's peak is within the budget; if
    there is none, that with the least peak. `peak_of`: nearly always, less for a smaller share."""
    peak = functools.cache(peak_of)

    above, below = -1, len(shares) - 1
    while below - above > 1:
        middle = (above + below) // 2
        if peak(shares[middle]) <= budget_bytes:
            below = middle
        else:
            above = middle
    if peak(shares[below]) <= budget_bytes:
        return shares[below]
    return min(shares, key=peak)


hide(sys.modules[__name__])
hide_with_callees(Shares._look)  # pyright: ignore[reportPrivateUsage]
hide_with_callees(Shares.allowed)
