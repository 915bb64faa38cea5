"""Segments within what is done in chunks: each chunk computes some of itself again once more.

In: a `Cutter`, in how many chunks each part is done. Out: lists of segments, what frees least
first.

    a  b  c  in 4 chunks       each keeps what the gradients of a, b and c read
    a {b  c} in 4 chunks       b and c are run again when it comes to them, within their chunk

Twice as many chunks are another way to less: where all but one are run again, 1 / 2n more of it
than with n, in smaller calls. No list runs more again than that; of those the middle and the last
are given, as each is rehearsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.cheapest import FEWER, cheapest
from lowtide.pipeline.budget.rewrite import Counts
from lowtide.pipeline.budget.segments import Cutter

LEAST: Final = 0.75  # of the peak without such segments; lists that free more are not taken


def within(cutter: Cutter, chunks: Counts) -> list[list[Candidate]]:
    """See the module's text. The cutter is no longer beside any chunks."""
    parts = [c for c, count in chunks.items() if count > 1 and c.carried is None and not c.updated]
    lists = list(_lists(cutter, parts, max(chunks.values()))) if parts else []
    return [lists[k] for k in sorted({len(lists) // 2, len(lists) - 1}) if lists]


def _lists(cutter: Cutter, parts: Sequence[Candidate], count: int) -> Iterator[list[Candidate]]:
    """For ever fewer bytes; none twice."""
    made_bytes = most_bytes = cutter.beside({})
    before = list[Candidate]()
    while (segments := cheapest(cutter, most_bytes := most_bytes * FEWER)) is not None:
        inner = [s for s in segments if any(_is_in(s, c) for c in parts)]
        inner = [s for s in inner if not any(_is_in(s, other) for other in inner)]
        if not segments or cutter.cost(inner) > made_bytes / (2 * count):
            break
        if inner != before:
            before = inner
            yield inner


def _is_in(segment: Candidate, other: Candidate) -> bool:
    """Nothing is written in it that runs once only, and it is less than all of the other."""
    is_less = (segment.start, segment.stop) != (other.start, other.stop)
    is_inside = other.start <= segment.start and segment.stop <= other.stop
    return is_less and is_inside and not segment.updated
