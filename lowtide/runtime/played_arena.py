"""The arena's account without the arena: what it would hold, block by block, from a cold start.

In: the requests of a run, in order. Out: `reserved_bytes`, pages that are resident, blocks kept
warm counted: a block that was freed stays until one of its size is asked for, or the cap is met.

    arena = PlayedArena()
    a = arena.take(9_000_000)      # reserved_bytes == 10 MiB: pages of 2 MiB
    arena.give_back(a)             # still 10 MiB
    b = arena.take(8_900_000)      # the same block
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide import config
from lowtide.runtime.arena import SMALL_BYTES, class_bytes, replaced, resident_bytes, roomy


@dataclass(slots=True, eq=False)
class _Block:
    kind: int
    resident_bytes: int
    is_scratch: bool


class PlayedArena:
    """See the module's text. `is_tight`: as after `arena.keep_tight()`. `is_used`: not on
    GPUs."""

    def __init__(self, is_tight: bool = False, is_used: bool = True) -> None:
        self._is_used = is_used
        self.reserved_bytes = 0
        self._is_tight = is_tight
        self._cap_bytes = config.current().arena_cap_bytes
        self._warm_bytes = 0
        self._free: list[_Block] = []  # in the order of freeing

    def serves(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes lies in the arena."""
        return self._is_used and nbytes >= SMALL_BYTES

    def take(self, nbytes: int, is_scratch: bool = False) -> _Block:
        """A block; `is_scratch`: of work memory."""
        asked_bytes = max(nbytes, 1)
        block = self._found(class_bytes(asked_bytes))
        if block is None and self._is_tight:
            self._shrink(0)
        elif block is None and is_scratch:
            block = self._found(roomy({b.kind for b in self._free}, asked_bytes))
            if block is None:
                kinds = replaced({b.kind for b in self._free}, asked_bytes)
                for other in [b for b in self._free if b.is_scratch and b.kind in kinds]:
                    self._unmap(other)
        if block is None:
            block = _Block(class_bytes(asked_bytes), 0, is_scratch)
        block.is_scratch = is_scratch
        touched_bytes = max(resident_bytes(nbytes) - block.resident_bytes, 0)
        block.resident_bytes += touched_bytes
        self.reserved_bytes += touched_bytes
        return block

    def give_back(self, block: _Block) -> None:
        """Ends the use of a block."""
        self._free.append(block)
        self._warm_bytes += block.resident_bytes
        self._shrink(self._cap_bytes)

    def _found(self, kind: int) -> _Block | None:
        """The free block of this class that was freed last, which is free no more."""
        for k in range(len(self._free) - 1, -1, -1):
            if self._free[k].kind == kind:
                self._warm_bytes -= self._free[k].resident_bytes
                return self._free.pop(k)
        return None

    def _shrink(self, limit_bytes: int) -> None:
        while self._warm_bytes > limit_bytes:
            self._unmap(self._free[0])

    def _unmap(self, block: _Block) -> None:
        self._free.remove(block)
        self._warm_bytes -= block.resident_bytes
        self.reserved_bytes -= block.resident_bytes
