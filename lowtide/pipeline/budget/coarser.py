"""Fewer chunks, where more do not lower the peak.

In: in how many chunks each part of a program is done, how large what is made within each is, and a
rehearsal that says whether the peak stays as it is with others. Out: no more chunks of any part
than that, none at all, or one, which in training is run again as a whole.

    {a: 4, b: 4, c: 4}    →    {c: 2}      where the peak is in c

The steps of a search make many parts finer at once, and small ones are seldom why the peak falls.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Final

from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.rewrite import Counts

IsAsGood = Callable[[Counts], bool]
_MOST_REHEARSED: Final = 8  # after the small ones


def coarser(
    chunks: Counts,
    bytes_in: Callable[[Candidate], int],
    is_as_good: IsAsGood,
    kept: Container[Candidate] = (),
) -> Counts:
    """See the module's text. `kept`: of these some chunks are not run again, and so more would be
    if there were fewer: they are left as they are, or need none."""
    parts = sorted((c for c, count in chunks.items() if count > 1), key=bytes_in)
    whole = _whole_at_once(chunks, parts, is_as_good)
    found = _without(chunks, parts[:whole])
    left = _MOST_REHEARSED
    for c in parts[whole:]:
        for fewer in _fewer(found, c, is_kept=c in kept):
            left -= 1
            if left < 0:
                return found
            if is_as_good(fewer):
                found = fewer
                break
    return found


def _whole_at_once(chunks: Counts, parts: Sequence[Candidate], is_as_good: IsAsGood) -> int:
    """How many, from the first on, need no chunks; by bisection."""
    good, bad = 0, len(parts) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_as_good(_without(chunks, parts[:middle])):
            good = middle
        else:
            bad = middle
    return good


def _fewer(chunks: Counts, c: Candidate, is_kept: bool) -> Sequence[Counts]:
    """Without a section for `c`, the cheapest; then as one chunk; then as some."""
    if is_kept:
        return [_without(chunks, [c])]
    count = chunks[c]
    some = sorted({c.more(max(count // n, 1), 1) for n in (4, 2)} - {1})
    return [_without(chunks, [c]), *({**chunks, c: n} for n in (1, *some) if n < count)]


def _without(chunks: Counts, parts: Sequence[Candidate]) -> Counts:
    left_out = set(parts)
    return {c: count for c, count in chunks.items() if c not in left_out}
