"""Chooses segments with the least recomputation, so that the backward pass fits a number of bytes.

In: a `Cutter`, a number of bytes. Out: a list of segments, which may be nested; None if none fits.

    a  b  c            saved: the inputs of a, b and c
    a  (b c)           b and c are recomputed together: the input of c is not saved
    a  (b c) {b}       within that, b is recomputed once more, alone

The estimate for the backward pass of a segment is the inputs of all segments up to it, the
gradients at its end, and all values that it makes. A dry run gives the real peak.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lowtide.budget.segments import Cutter
from lowtide.execute.candidate import Candidate

Storages = frozenset[int]  # memory, by `storage_of`
_DEEPEST = 2  # levels of nested segments
FEWER = 0.96  # factor of the bytes for the next list
_MOST_SEGMENTS = 200_000  # that one search visits, in about a second


@dataclass(frozen=True, slots=True)
class Found:
    """Segments, the cost of recomputation in all, and in the last segment."""

    cost: float
    last_cost: float = 0
    segments: tuple[Candidate, ...] = ()


_NONE = Found(math.inf)


def cheapest(cutter: Cutter, most_bytes: float) -> list[Candidate] | None:
    """Return the segments, outer ones before inner ones; see the module's text."""
    found = _Search(cutter, most_bytes).parted(0, cutter.outer.last, frozenset(), _DEEPEST)
    return list(found.segments) if math.isfinite(found.cost) else None


class _Search:
    def __init__(self, cutter: Cutter, most_bytes: float) -> None:
        self.cutter = cutter
        self.most_bytes = most_bytes
        self.ends = cutter.ends
        self.known: dict[tuple[int, int, Storages, int], Found] = {}
        self.left = _MOST_SEGMENTS

    def parted(self, start: int, stop: int, held: Storages, depth: int) -> Found:
        """Return the segments of ops [start, stop). `held`: values that stay alive at their end."""
        key = start, stop, held, depth
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._parted(start, stop, held, depth)
        return found

    def _parted(self, start: int, stop: int, held: Storages, depth: int) -> Found:
        cutter = self.cutter
        begin = held | cutter.live_bytes_at(start)
        if self._needs(begin, start, stop) <= self.most_bytes:
            return Found(0.0)
        best = _NONE
        for end in self._ends(start, stop):
            segment = cutter.candidate(start, end)
            if segment is None:
                continue
            kept = held | cutter.initial_bytes_of(segment)
            if cutter.size_of(kept) > self.most_bytes:
                continue
            own = self._own(segment, kept, depth)
            if own.cost >= best.cost:
                continue
            rest = self.parted(end, stop, kept, depth) if end < stop else Found(0.0)
            cost = own.cost + rest.cost
            if cost < best.cost:
                last = rest.last_cost if rest.segments else own.cost
                best = Found(cost, last, own.segments + rest.segments)
        return best

    def _own(self, segment: Candidate, kept: Storages, depth: int) -> Found:
        """Return one segment, with inner ones if it does not fit otherwise."""
        self.left -= 1
        if self.left < 0:
            return _NONE
        cost = self.cutter.cost([segment])
        if self._needs(kept, segment.start, segment.stop) <= self.most_bytes:
            return Found(cost, cost, (segment,))
        if depth == 1:
            return _NONE
        inner = self.parted(segment.start, segment.stop, kept, depth - 1)
        # The last inner segment need not run when the whole segment is recomputed.
        return Found(cost + inner.cost - inner.last_cost, 0.0, (segment, *inner.segments))

    def _needs(self, kept: Storages, start: int, stop: int) -> int:
        cutter = self.cutter
        return cutter.size_of(kept) + cutter.left_bytes(stop) + cutter.recomputed_bytes(start, stop)

    def _ends(self, start: int, stop: int) -> Iterator[int]:
        """Yield the positions where a segment from here may end."""
        return (end for end in self.ends if start < end <= stop)
