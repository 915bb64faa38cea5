"""The arena's account without the arena: what it would hold, block by block, from a cold start.

In: the requests of a run, in order. Out: `reserved_bytes`, pages that are resident, blocks kept
warm counted: a block that was freed stays until one of its size is asked for, or the cap is met.

    arena = PlayedArena()
    a = arena.take(9_000_000)      # reserved_bytes == 10 MiB: pages of 2 MiB
    arena.give_back(a)             # still 10 MiB
    b = arena.take(8_900_000)      # the same block
"""

from __future__ import annotations

from collections import deque

from lowtide import config
from lowtide.runtime.arena import SMALL_BYTES, class_bytes, resident_bytes


class PlayedArena:
    """See the module's text. `is_tight`: as after `arena.keep_tight()`. `is_used`: not on
    GPUs."""

    def __init__(self, is_tight: bool = False, is_used: bool = True) -> None:
        self._is_used = is_used
        self.reserved_bytes = 0
        self._is_tight = is_tight
        self._cap_bytes = config.current().arena_cap_bytes
        self._warm_bytes = 0
        self._free: dict[int, deque[int]] = {}  # resident bytes of each free block, by class
        self._order: deque[int] = deque()  # classes, in the order of freeing

    def serves(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes lies in the arena."""
        return self._is_used and nbytes >= SMALL_BYTES

    def take(self, nbytes: int) -> tuple[int, int]:
        """A block, as (class, resident bytes)."""
        kind, needed = class_bytes(max(nbytes, 1)), resident_bytes(nbytes)
        free = self._free.get(kind)
        had = 0
        if free:
            had = free.pop()
            self._warm_bytes -= had
            self._order.remove(kind)
        elif self._is_tight:
            self._shrink(0)
        resident = max(had, needed)
        self.reserved_bytes += resident - had
        return kind, resident

    def give_back(self, block: tuple[int, int]) -> None:
        """Ends the use of a block."""
        kind, resident = block
        self._free.setdefault(kind, deque()).append(resident)
        self._order.append(kind)
        self._warm_bytes += resident
        self._shrink(self._cap_bytes)

    def _shrink(self, limit_bytes: int) -> None:
        while self._warm_bytes > limit_bytes:
            gone = self._free[self._order.popleft()].popleft()
            self._warm_bytes -= gone
            self.reserved_bytes -= gone
