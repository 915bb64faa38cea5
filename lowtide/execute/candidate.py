"""A record of a run of ops that a budget can cut into chunks, with its cuts and joins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from lowtide.execute.cut import Cut
from lowtide.ir.core import Block, Op, Value
from lowtide.specialise.signature import SMALL

LEAST_BYTES: Final = 1 << 16  # what has only smaller values is not worth it
_MANY: Final = 8  # stretches of a loop of few steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Ops [start, stop) of the outer block. `extent`: of the axis, 1 where there is none and the
    run can only be done again; `cuts`, `joins` and `orders`: see `chunks`; `updated`: inputs that
    are written by ops of the run, which nothing else in it reads. Of a loop: how many values it
    carries, the block of a stretch, and the ops elsewhere that are in this block."""

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
        """About `factor` times as many chunks; the same where there are no more. A size up to
        SMALL is a constant of a signature, so that parts of another size would compile anew. Of
        the steps of a loop, which may be few and large, two such sizes are taken: a dim that has
        been three of them is a symbol from then on, and its kernels are others."""
        if self.carried is not None and self.extent // (SMALL + 1) <= 1:
            even = [n for n in range(2, self.extent // 2 + 1) if self.extent % n == 0]
            steps = (even[0] if even else 2, next((n for n in even if n >= _MANY), 0))
            return next((n for n in steps if n > chunks), chunks)
        if self.extent > SMALL:
            return min(factor * chunks, max(self.extent // (SMALL + 1), chunks))
        counts = [n for n in range(chunks, self.extent + 1) if self.extent % n == 0]
        return next((n for n in counts if n >= factor * chunks), counts[-1])
