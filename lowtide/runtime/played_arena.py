"""The arena's account without the arena: what it would hold, block by block, from a cold start.

In: the requests of a run, in order. Out: `reserved_bytes`, pages that are resident, blocks kept
warm counted: a block that was freed stays until one of its size is asked for, or the cap is met;
one of work memory until more is asked for.

    arena = PlayedArena()
    a = arena.take(9_000_000)      # reserved_bytes == 10 MiB: pages of 2 MiB
    arena.give_back(a)             # still 10 MiB
    b = arena.take(8_900_000)      # the same block
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from lowtide import config
from lowtide.runtime.arena import SMALL_BYTES, class_bytes, resident_bytes


@dataclass(frozen=True, slots=True)
class Block:
    """`resident_bytes` of its `block_bytes` have been written."""

    block_bytes: int
    resident_bytes: int
    is_for_work: bool


class PlayedArena:
    """See the module's text. `is_tight`: as after `arena.keep_tight()`; `is_trimmed`: with a
    `heap.Trimmer`, so that no free block counts. `is_used`: not on GPUs."""

    def __init__(
        self, is_tight: bool = False, is_used: bool = True, is_trimmed: bool = False
    ) -> None:
        self._is_used = is_used
        self.reserved_bytes = 0
        self._is_tight = is_tight
        self._cap_bytes = 0 if is_trimmed else config.current().arena_cap_bytes
        self._warm_bytes = 0
        self._free: list[Block] = []  # in the order of freeing

    def trim(self) -> None:
        """From now on as with a `heap.Trimmer`."""
        self._is_tight, self._cap_bytes = True, 0
        self._shrink(0)

    def serves(self, nbytes: int) -> bool:
        """Whether a tensor of so many bytes lies in the arena."""
        return self._is_used and nbytes >= SMALL_BYTES

    def take(self, nbytes: int, is_for_work: bool = False) -> Block:
        """A block for a tensor, or for work memory."""
        block_bytes, needed = class_bytes(max(nbytes, 1)), resident_bytes(nbytes)
        block = self._warm(block_bytes, is_for_work)
        if block is None:
            if self._is_tight:
                self._shrink(0)
            block = Block(block_bytes, 0, is_for_work)
        resident = max(block.resident_bytes, needed)
        self.reserved_bytes += resident - block.resident_bytes
        return replace(block, resident_bytes=resident)

    def _warm(self, block_bytes: int, is_for_work: bool) -> Block | None:
        """A free block, as the arena chooses it."""
        alike = [x for x in reversed(self._free) if x.is_for_work is is_for_work]
        if not is_for_work:
            fits = [x for x in alike if x.block_bytes == block_bytes]
        else:
            fits = [x for x in alike if x.block_bytes >= block_bytes]
            if alike and not fits:
                self._unmap(max(alike, key=lambda x: x.block_bytes))
        found = min(fits, key=lambda x: x.block_bytes, default=None)
        if found is not None:
            self._free.remove(found)
            self._warm_bytes -= found.resident_bytes
        return found

    def give_back(self, block: Block) -> None:
        """Ends the use of a block."""
        self._free.append(block)
        self._warm_bytes += block.resident_bytes
        self._shrink(self._cap_bytes)

    def _shrink(self, limit_bytes: int) -> None:
        while self._warm_bytes > limit_bytes:
            self._unmap(self._free[0])

    def _unmap(self, block: Block) -> None:
        self._free.remove(block)
        self._warm_bytes -= block.resident_bytes
        self.reserved_bytes -= block.resident_bytes
