"""The record of a sequence of ops that a budget can run in chunks: what is cut, what is joined.

In: facts from `budget/independence`. Out: a `Candidate`, from which a `section` is made.

    x: [60000, 32]      Candidate(start=2, stop=9, extent=60000, cuts=(Cut(dim=0),), joins=(0,))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lowtide.execute.cut import Cut
from lowtide.ir.core import Block, Op, Value
from lowtide.specialise.signature import SMALL

LEAST_BYTES: Final = 1 << 16  # ops whose values are all smaller are no candidate
_MANY: Final = 8  # chunks of a loop of few steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Ops [start, stop) of the outer block, which a budget can run in chunks. `extent`: size of the
    axis, 1 if the run can only be recomputed as a whole. `cuts`, `joins`, `orders`: see `chunks`.
    `updated`: inputs that ops of the run write and nothing else in it reads. For a loop: the number
    of carried values, the block of one chunk of steps, and the ops elsewhere that are in this
    block."""

    start: int
    stop: int
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    extent: int = 1
    cuts: tuple[Cut | None, ...] = ()
    joins: tuple[int | None, ...] = ()
    orders: tuple[tuple[int, ...] | None, ...] = ()
    updated: tuple[Value, ...] = ()
    carried: int | None = None
    block: Block | None = field(default=None, compare=False)
    moved: tuple[Op, ...] = field(default=(), compare=False)

    def more(self, chunks: int, factor: int) -> int:
        """Return about `factor` times as many chunks, or the same number if there are no more.
        The first size up to SMALL is a constant of the signature, others are a symbol with other
        kernels. A loop, whose steps may be few and large, gets two such sizes."""
        if self.carried is not None and self.extent // (SMALL + 1) <= 1:
            even = [n for n in range(2, self.extent // 2 + 1) if self.extent % n == 0]
            steps = (even[0] if even else 2, next((n for n in even if n >= _MANY), 0))
            return next((n for n in steps if n > chunks), chunks)
        if self.extent > SMALL:
            return min(factor * chunks, max(self.extent // (SMALL + 1), chunks))
        counts = [n for n in range(chunks, self.extent + 1) if self.extent % n == 0]
        return next((n for n in counts if n >= factor * chunks), counts[-1])
