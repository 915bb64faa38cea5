"""Puts the watchers' notes on the clock of PyTorch's events, and finds them by time.

In: a watcher's notes and anchors, and the events that the anchors left in PyTorch's recording.
Out: `Notes`: the latest note before a moment. Both clocks run on one thread, so that notes and
operators keep their order: a note is taken at least 0.3 µs before its operator begins and 1 µs
after the one before has ended; two clocks are matched to 0.2 µs, every 10 ms anew.

    notes.before(event.start_time_ns)  →  Place(file="train.py", line=12, module="Net.encoder")
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from types import CodeType

from lowtide.tools.profiler.records import NOWHERE, Place
from lowtide.tools.profiler.watch import NOTE_FIELDS, Watcher

# From reading our clock to PyTorch's own start of the anchor's event lie 0.2 to 0.5 µs.
_BIAS_NS = 600
_WINDOW = 8  # anchors on each side; a delayed one looks later than it was, so the least is taken


class ClockMap:
    """Watchers' time to PyTorch's."""

    def __init__(self, ours_ns: Sequence[int], theirs_ns: Sequence[int]) -> None:
        """The anchors in both clocks, in order; there may be fewer of theirs."""
        pairs = list(zip(ours_ns, theirs_ns, strict=False))
        self._ours_ns = [ours for ours, _ in pairs]
        late_ns = [theirs - ours for ours, theirs in pairs]
        self._offset_ns = [
            min(late_ns[max(i - _WINDOW, 0) : i + _WINDOW + 1]) for i in range(len(late_ns))
        ]

    def __call__(self, ours_ns: int) -> int:
        """A little early: before what began after it."""
        return self.late(ours_ns) - _BIAS_NS if self._ours_ns else ours_ns

    def late(self, ours_ns: int) -> int:
        """A little late: after what began before it."""
        if not self._ours_ns:
            return ours_ns
        at = max(bisect_right(self._ours_ns, ours_ns) - 1, 0)
        return ours_ns + self._offset_ns[at]


class Notes:
    """One thread's notes, by PyTorch's time; `made`: addresses of large results, with shape."""

    def __init__(self, watcher: Watcher, to_theirs: ClockMap) -> None:
        notes = watcher.notes
        self.times_ns = [to_theirs(t) for t in notes[0::NOTE_FIELDS]]
        ends_ns = [*notes[NOTE_FIELDS - 1 :: NOTE_FIELDS][1:], watcher.ended_ns]
        self._ends_ns = [to_theirs.late(t) for t in ends_ns]
        self._codes: list[CodeType | None] = notes[1::NOTE_FIELDS]
        self._offsets: list[int] = notes[2::NOTE_FIELDS]
        self._lines: dict[tuple[int, int], int] = {}
        self._modules: list[str] = notes[3::NOTE_FIELDS]
        self.made = [(to_theirs(t), *rest) for t, *rest in watcher.made]

    def before(self, time_ns: int) -> Place:
        """The place of the latest note before `time_ns`; nowhere if its call has ended by then."""
        at = bisect_right(self.times_ns, time_ns) - 1
        if at >= 0 and self.times_ns[at] < self._ends_ns[at] < time_ns:
            return Place(module=self._modules[at])
        return self._place(at)

    def within(self, begin_ns: int, end_ns: int) -> bool:
        """Whether there is a note strictly between the two."""
        at = bisect_right(self.times_ns, begin_ns)
        return at < bisect_left(self.times_ns, end_ns)

    def _place(self, at: int) -> Place:
        if at < 0:
            return NOWHERE
        code = self._codes[at]
        if code is None:
            return Place(module=self._modules[at])
        key = (id(code), self._offsets[at])
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _line_of(code, self._offsets[at])
        return Place(code.co_filename, line, self._modules[at])


def _line_of(code: CodeType, offset: int) -> int:
    """The line of the instruction at `offset` bytes."""
    for begin, end, line in code.co_lines():
        if begin <= offset < end and line is not None:
            return line
    return code.co_firstlineno
