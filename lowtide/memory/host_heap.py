"""What the C library's heap holds beside the tensors that are alive, in a rehearsed run.

In: the tensors that PyTorch takes and gives back, in order. Out: bytes that stay resident.

`Small` counts all that lies in places under 64 KiB. `Within` is one op's part of the heap, as glibc
lays it out: what the op gives back leaves a hole, which the next tensor takes if it is longer than
that by the alignment that PyTorch asks for. Between two ops free pages can be given back; within
one they stay. Of a heap that others have left in pieces, a tensor may also take a piece whose pages
have gone, and leave the hole: then there is as much in holes as the op has given back, up to what
it has had at once.

    within = Within()
    a = within.take(1_000_000)
    within.give_back(a)               # hole_bytes == 1_000_000
    b = within.take(1_000_000)        # aligned, it does not fit into the hole
    c = within.take(900_000)          # this does; hole_bytes == 100_000
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

_HOLES_BYTES: Final = 3 << 20  # left between small ones that come and go, at most
_TORN_BYTES: Final = 20_000  # of a place of which small ones may take a part: it is too short then
_ALIGNED_BYTES: Final = 96  # what an aligned tensor asks for beside its elements
_MAPPED_BYTES: Final = 1 << 25  # what is larger has pages of its own, which go with it


@dataclass(slots=True)
class Small:
    """What small tensors leave behind. `room_bytes`: places of what is gone; `again_bytes`: of
    these, what was taken since the beginning; `torn_bytes`: the same in backward passes, which
    leave gradients in between; `graph_bytes`: autograd's nodes."""

    room_bytes: int = 0
    again_bytes: int = 0
    torn_bytes: int = 0
    graph_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """What is resident beside the tensors."""
        holes = min(self.again_bytes // 2, _HOLES_BYTES) + self.torn_bytes // 7
        return self.room_bytes + holes + self.graph_bytes

    def take(self, nbytes: int, in_backward: bool) -> None:
        """A place is taken, or is free for others."""
        again = min(self.room_bytes, nbytes)
        self.room_bytes -= again
        self.again_bytes += max(again, 0)
        if again >= _TORN_BYTES and in_backward:
            self.torn_bytes += again


class Place(NamedTuple):
    """Of a tensor, in the heap of the op that has taken it."""

    start: int
    stop: int
    op: int


@dataclass(slots=True)
class Within:
    """See the module's text. `hole_bytes`: what this op has given back and not taken again."""

    hole_bytes: int = 0
    _given_bytes: int = 0  # back
    _has_bytes: int = 0
    _had_bytes: int = 0  # at once
    _op: int = 0
    _end: int = 0
    _free: dict[int, int] = field(default_factory=dict[int, int])  # from where to where

    @property
    def most_hole_bytes(self) -> int:
        """The same in a heap that was in pieces."""
        return max(self.hole_bytes, min(self._given_bytes, self._had_bytes))

    def begin(self) -> None:
        """Another op: what is free goes back before it."""
        self._op += 1
        self.hole_bytes = self._end = 0
        self._given_bytes = self._has_bytes = self._had_bytes = 0
        self._free.clear()

    def take(self, nbytes: int) -> Place | None:
        """A place, in the smallest hole that has room; None if it is none of the heap's."""
        if nbytes >= _MAPPED_BYTES:
            return None
        self._has_bytes += nbytes
        self._had_bytes = max(self._had_bytes, self._has_bytes)
        sizes = ((stop - start, start) for start, stop in self._free.items())
        _, start = min((x for x in sizes if x[0] >= nbytes + _ALIGNED_BYTES), default=(0, -1))
        if start < 0:  # behind all others, where the last hole may be the beginning
            start = next((a for a, b in self._free.items() if b == self._end), self._end)
        before, end = self._free.pop(start, start), start + nbytes
        self._end = max(self._end, end)
        self.hole_bytes -= min(before, end) - start
        if end < before:
            self._free[end] = before
        return Place(start, end, self._op)

    def give_back(self, place: Place) -> None:
        """Its end. What an op before has taken counts as going at once."""
        if place.op != self._op:
            return
        start, stop, _ = place
        self.hole_bytes += stop - start
        self._given_bytes += stop - start
        self._has_bytes -= stop - start
        before = next((a for a, b in self._free.items() if b == start), start)
        self._free[before] = self._free.pop(stop, stop)
