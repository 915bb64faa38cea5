"""Converts the times of notes to the clock of PyTorch's events, and finds notes by time.

In: a watcher's notes and anchors, and the events that the anchors made in PyTorch's recording. Out:
`Notes`, which find the latest note before a moment. A note is made at least 0.3 µs before its
operator begins and 1 µs after the last one has ended. The clocks are matched to within 0.2 µs,
again every 10 ms, so notes and operators keep their order.

    notes.before(event.start_time_ns)  →  Place(file="train.py", line=12, module="Net.encoder")
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from types import CodeType

from lowtide.memory.scopes.allocation_sites import line_of
from lowtide.tools.profiler.records import NOWHERE, Place
from lowtide.tools.profiler.watch import NOTE_FIELDS, Watcher

# An anchor's event begins 0.2 to 0.5 µs after our clock was read.
_BIAS_NS = 600
_WINDOW = 8  # anchors on each side, of which the one with the least delay counts


class ClockMap:
    """Converts a watcher's times to PyTorch's."""

    def __init__(self, ours_ns: Sequence[int], theirs_ns: Sequence[int]) -> None:
        """The times of the anchors on both clocks, in order; the last may be missing in theirs."""
        pairs = list(zip(ours_ns, theirs_ns, strict=False))
        self._ours_ns = [ours for ours, _ in pairs]
        late_ns = [theirs - ours for ours, theirs in pairs]
        self._offset_ns = [
            min(late_ns[max(i - _WINDOW, 0) : i + _WINDOW + 1]) for i in range(len(late_ns))
        ]

    def __call__(self, ours_ns: int) -> int:
        """Return PyTorch's time, a little early: before an event that began later."""
        return self.late(ours_ns) - _BIAS_NS if self._ours_ns else ours_ns

    def late(self, ours_ns: int) -> int:
        """Return PyTorch's time, a little late: after an event that began earlier."""
        if not self._ours_ns:
            return ours_ns
        at = max(bisect_right(self._ours_ns, ours_ns) - 1, 0)
        return ours_ns + self._offset_ns[at]


class Notes:
    """One thread's notes, by PyTorch's time. `made`: (time, address, shape, dtype) of results."""

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
        """Return the place of the latest note before `time_ns`; only its module if the call has
        ended by then."""
        at = bisect_right(self.times_ns, time_ns) - 1
        if at >= 0 and self.times_ns[at] < self._ends_ns[at] < time_ns:
            return Place(module=self._modules[at])
        return self._place(at)

    def within(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether there is a note between the two times."""
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
            line = self._lines[key] = line_of(code, self._offsets[at])
        return Place(code.co_filename, line, self._modules[at])
