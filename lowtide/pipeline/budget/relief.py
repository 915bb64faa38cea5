"""A list of segments changed where the backward pass holds the most.

In: segments, which may lie within each other, and those in whose backward pass the peak is. Out:
other lists, of which one may have a lower peak.

    a  b  c|  d                the peak is in c:
    a  b  c1 c2  d             c in two: what lies between them is kept from the forward pass on
    a  b  c(c1 c2)  d          c in two when it runs again: nothing more is kept, c1 runs once more
    a  ab(a b)  c  d           a and b run again together: what b starts from is not kept meanwhile
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.segments import Cutter

Segments = list[Candidate]


def relieved(cutter: Cutter, segments: Segments, full: Sequence[Candidate]) -> Iterator[Segments]:
    """See the module's text. `full`: of the segments without others in them, where the peak is."""
    parted = {c: cutter.halves(c) for c in full}
    if not full or not all(parted.values()):
        parted = {}
    groups = [[], _group(cutter, segments, full)]
    for group in groups:
        if group is None:
            continue
        for keeps_both in (False, True) if parted else (True,):
            left = [c for c in segments if keeps_both or c not in parted]
            found = [*left, *(h for halves in parted.values() for h in halves), *group]
            if len(found) > len(segments):
                yield in_order(found)
    more = cutter.more(max((c.stop for c in segments), default=0))
    if more is not None:
        yield in_order([*segments, more])


def in_order(segments: Sequence[Candidate]) -> Segments:
    """By where they start, outer ones first."""
    return sorted(segments, key=lambda c: (c.start, -c.stop))


def leaves(segments: Sequence[Candidate]) -> Segments:
    """Those without others in them."""
    return [c for c in segments if not any(_is_within(o, c) for o in segments)]


def outermost(segments: Sequence[Candidate]) -> Segments:
    """Those that are in no other."""
    return [c for c in segments if not any(_is_within(c, o) for o in segments)]


def _is_within(inner: Candidate, outer: Candidate) -> bool:
    return inner is not outer and outer.start <= inner.start and inner.stop <= outer.stop


def _group(cutter: Cutter, segments: Segments, full: Sequence[Candidate]) -> Segments | None:
    """What lies before the first of `full` as one segment: from where on the most is freed; of
    those that free as much the shortest."""
    first = min((c.start for c in full), default=0)
    before = [c for c in outermost(segments) if c.stop <= first]
    best: tuple[int, Candidate] | None = None
    for k in range(len(before) - 2, -1, -1):
        if any(a.stop != b.start for a, b in pairwise(before[k:])):
            break
        whole = cutter.candidate(before[k].start, before[-1].stop)
        others = [*before[:k], *full]
        freed = cutter.kept_bytes([*others, *before[k:]])
        if whole is not None:
            freed -= cutter.kept_bytes([*others, whole])
            if freed > (best[0] if best else 0):
                best = freed, whole
    return [best[1]] if best else None
