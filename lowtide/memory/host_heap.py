"""What the C library's heap holds beside the tensors that are alive, in a rehearsed run.

In: the tensors that PyTorch takes and gives back, in order. Out: bytes that stay resident.

`Small` counts all that lies in places under 64 KiB. `Within` is one op's part of the heap: what the
op gives back leaves a hole, into which an aligned tensor of the same size does not fit, since it
asks for up to 112 bytes more; a smaller one may lie elsewhere. Between two ops free pages go back;
within one, that has many parts, they stay.

    within = Within()
    op = within.take(1_000_000)
    within.give_back(1_000_000, op)   # hole_bytes == 1_000_000
    op = within.take(1_000_000)       # beside the hole
    within.give_back(1_000_000, op)   # 2_000_000: twice of what there was at once, and no more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_HOLES_BYTES: Final = 3 << 20  # left between small ones that come and go, at most
_TORN_BYTES: Final = 20_000  # of a place of which small ones may take a part: it is too short then
_ALIGNED_BYTES: Final = 112  # more than its size an aligned tensor asks for
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

    def take(self, nbytes: int, in_backward: Callable[[], bool]) -> None:
        """A place is taken, or is free for others. `in_backward` is asked of large ones alone."""
        again = min(self.room_bytes, nbytes)
        self.room_bytes -= again
        self.again_bytes += max(again, 0)
        if again >= _TORN_BYTES and in_backward():
            self.torn_bytes += again


@dataclass(slots=True)
class Within:
    """See the module's text."""

    _given_bytes: int = 0  # back
    _has_bytes: int = 0
    _had_bytes: int = 0  # at once
    _old: list[int] = field(default_factory=list[int])  # holes where something older was
    _op: int = 0

    @property
    def hole_bytes(self) -> int:
        """Of the op so far, at most: holes side by side become one, which is large enough."""
        return min(self._given_bytes, 2 * self._had_bytes)

    @property
    def old_bytes(self) -> int:
        """The same, of what was there before the op: those nobody can avoid."""
        return sum(self._old)

    def begin(self) -> None:
        """Another op: what is free goes back before it."""
        self._op += 1
        self._old.clear()
        self._given_bytes = self._has_bytes = self._had_bytes = 0

    def take(self, nbytes: int) -> int:
        """A place for a tensor; of which op."""
        if nbytes < _MAPPED_BYTES:
            self._has_bytes += nbytes
            self._had_bytes = max(self._had_bytes, self._has_bytes)
        large = [hole for hole in self._old if hole >= nbytes + _ALIGNED_BYTES]
        if large:
            self._old.remove(hole := min(large))
            self._old.append(hole - nbytes)
        return self._op

    def give_back(self, nbytes: int, op: int) -> None:
        """Its end. What an op before has taken leaves a hole, too, if this one goes on."""
        if nbytes < _MAPPED_BYTES:
            self._given_bytes += nbytes
            if op == self._op:
                self._has_bytes -= nbytes
            else:
                self._old.append(nbytes)
