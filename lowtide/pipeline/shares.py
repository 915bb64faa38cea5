"""A budget of `lt.compile` is of each captured graph: said once where a call has several.

In: a call of what was compiled, and the graphs that it comes to. Out: nothing, or a warning: their
peaks together are over the budget, which the call may then pass, as no graph knows of another.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from lowtide import config
from lowtide.frontend.dynamo.internals import wrapped
from lowtide.memory.scopes.births import user_frame
from lowtide.memory.scopes.hidden import hide, hide_with_callees
from lowtide.pipeline import holes, listening, plain

OVER: Final = (
    "PyTorch captured {count} graphs of one call, each of which keeps to the budget of {budget:,} "
    "bytes by itself; together they may take {peak:,}: memory() says what the call takes, "
    "fullgraph=True refuses such code"
)
NONE: Final = "PyTorch captured no graph: Python runs all of it, which keeps to no budget"
_MOST_KNOWN: Final = 256


class Shares:
    """Of one compiled object."""

    def __init__(self, name: str, budget_bytes: int) -> None:
        self._name = name
        self._budget_bytes = budget_bytes
        self._has_told = False
        self._known: set[Any] = set()

    def counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, whose graphs are counted the first time for arguments of some form."""

        def counting(*args: Any, **kwargs: Any) -> Any:
            if self._has_told or not self._is_new(args, kwargs):
                return call(*args, **kwargs)
            peaks: list[int] = []
            with listening.along(lambda graph, given: _hear(peaks, graph, given)):
                result = call(*args, **kwargs)
            self._tell(peaks)
            return result

        return wrapped(counting, call)

    def _is_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if listening.is_asked() or config.current().disable or plain.reason():
            return False
        try:
            key = holes.form(args), holes.form(kwargs)
            if key in self._known:
                return False
        except Exception:  # an object of the user's that cannot be looked at
            return False
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known.add(key)
        return True

    def _tell(self, peaks: list[int]) -> None:
        together = sum(peaks)
        if peaks and (len(peaks) == 1 or together <= self._budget_bytes):
            return
        self._has_told = True
        over = OVER.format(count=len(peaks), budget=self._budget_bytes, peak=together)
        frame = user_frame(sys._getframe())  # pyright: ignore[reportPrivateUsage]
        text = f"{self._name}: {over if peaks else NONE}"
        warnings.warn(text, RuntimeWarning, stacklevel=_level(frame))


def _hear(peaks: list[int], graph: Any, given: tuple[Any, ...]) -> Any:
    peaks.append(graph.planned_bytes(given))
    return listening.RUN


def _level(frame: FrameType | None) -> int:
    """How far outwards of the caller this frame is, as `warnings` counts."""
    level, here = 1, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and here is not frame and here.f_back is not None:
        level, here = level + 1, here.f_back
    return level


hide(sys.modules[__name__])
for _hidden in (Shares._is_new, Shares._tell):  # pyright: ignore[reportPrivateUsage]
    hide_with_callees(_hidden)
