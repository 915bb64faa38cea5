"""Folds a sequence of steps: parts that repeat become one `Repeat`.

In: a sequence of comparable items. Out: the sequence with consecutive equal parts as one `Repeat`.
Repeats of one part are equal for any count, so that loops within loops fold, too.

    a b b b b c a b b b c a b b b b b c     ->      3 times (a, 3 to 5 times (b), c)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final

LONGEST: Final = 64  # items of the longest part
FEWEST: Final = 3  # repeats; fewer are not folded


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part`, repeated from `least` to `most` times."""

    part: tuple[Hashable, ...]
    least: int = field(compare=False)
    most: int = field(compare=False)


def folded(things: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Fold until nothing changes, inner loops first."""
    found = tuple(things)
    while len(shorter := _once(found)) < len(found):
        found = shorter
    return found


def _once(things: Sequence[Hashable]) -> tuple[Hashable, ...]:
    numbers: dict[Hashable, int] = {}
    row = [numbers.setdefault(t, len(numbers)) for t in things]
    made: list[Hashable] = []
    at = 0
    while at < len(row):
        length, times = _repeated(row, at)
        if times < FEWEST:
            made.append(things[at])
            at += 1
            continue
        end = at + length * times
        part = tuple(_joined(things[at + k : end : length]) for k in range(length))
        made.append(Repeat(part, times, times))
        at = end
    return tuple(made)


def _repeated(row: Sequence[int], at: int) -> tuple[int, int]:
    """Return the length of the shortest part that repeats at this position, and its count."""
    for length in range(1, min(LONGEST, (len(row) - at) // FEWEST) + 1):
        times, end = 1, at + length
        while row[end : end + length] == row[at : at + length]:
            times, end = times + 1, end + length
        if times >= FEWEST:
            return length, times
    return 0, 0


def _joined(alike: Sequence[Hashable]) -> Hashable:
    """Merge repeats of one part; other items are equal."""
    repeats = [r for r in alike if isinstance(r, Repeat)]
    if not repeats:
        return alike[0]
    part = tuple(_joined(places) for places in zip(*(r.part for r in repeats), strict=True))
    return Repeat(part, min(r.least for r in repeats), max(r.most for r in repeats))
