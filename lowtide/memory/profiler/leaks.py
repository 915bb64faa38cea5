"""What outlives the step it was made in, and who holds it.

In: a timeline with steps. Out: `Leak`s, the largest first: one for each place that leaves any.

A tensor of the last step may be in use still; so may what the first step made for all others: the
state of an optimizer, buffers, caches. So a place leaks if what it made in a step before the last
is alive, and either two steps or more left something, or the first did not.

    train.py:14 aten::sum: 396 bytes in 99 tensors of 99 steps   held by list `losses` (train.py:12)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.memory.profiler.alive import Found
from lowtide.memory.profiler.holders import Holders
from lowtide.memory.profiler.records import Allocation, Place
from lowtide.memory.profiler.timeline import Timeline
from lowtide.tables import format_bytes

_LOOKED_AT = 3  # tensors of a place whose holders are searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """What one place left: `count` tensors (pieces of memory) of `steps` together `nbytes`.

    `steps` counts from 0; `holders` are of some of the tensors, the most direct first."""

    op: str
    source: str
    module: str
    phase: str
    nbytes: int
    count: int
    steps: tuple[int, ...]
    shape: tuple[int, ...] | None
    dtype: str
    holders: tuple[str, ...]

    def __str__(self) -> str:
        many = "tensor" if self.count == 1 else "tensors"
        when = f"step {self.steps[0]}" if len(self.steps) == 1 else f"{len(self.steps)} steps"
        what = f"{self.source or '?'} {self.op}: {format_bytes(self.nbytes)} in {self.count} {many}"
        by = "; ".join(self.holders) or "no Python object: autograd or a library"
        return f"{what} of {when}, held by {by}"


def find_leaks(timeline: Timeline, tensors: Callable[[Sequence[Allocation]], Found]) -> list[Leak]:
    """All leaks. `tensors` finds the Python tensors in allocations."""
    ended = len(timeline.step_ends_ns)
    groups: dict[tuple[str, str, Place], list[Allocation]] = {}
    for allocation in timeline.alive():
        if allocation.step < ended - 1:
            key = (allocation.op, allocation.phase, allocation.place)
            groups.setdefault(key, []).append(allocation)
    leaking = [group for group in groups.values() if {a.step for a in group} != {0}]
    looked_at = [a for group in leaking for a in _sample(group)]
    with Holders(tensors(looked_at)) as holders:
        leaks = [_leak(group, holders) for group in leaking]
    return sorted(leaks, key=lambda leak: -leak.nbytes)


def _sample(group: list[Allocation]) -> list[Allocation]:
    return sorted(group, key=lambda a: -a.nbytes)[:_LOOKED_AT]


def _leak(group: list[Allocation], holders: Holders) -> Leak:
    sample = _sample(group)
    texts = [text for allocation in sample for text in holders.of(allocation)]
    first = sample[0]
    return Leak(
        op=first.op,
        source=first.place.source,
        module=first.place.module,
        phase=first.phase,
        nbytes=sum(a.nbytes for a in group),
        count=len(group),
        steps=tuple(sorted({a.step for a in group})),
        shape=first.shape,
        dtype=first.dtype,
        holders=tuple(dict.fromkeys(texts)),
    )
