"""Finds tensors that outlive the step that made them, and what holds them.

In: a timeline with steps. Out: `Leak`s, the largest first, one for each place in the source.

Tensors of the last step may still be in use. Tensors of the first step may be for all steps: the
state of an optimizer, buffers, caches. So a place leaks if tensors that it made before the last
step are alive, unless all of them are from the first step.

    train.py:14 aten::sum: 396 bytes in 99 tensors of 99 steps   held by list `losses` (train.py:12)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.tables import format_bytes
from lowtide.tools.profiler.alive import Found
from lowtide.tools.profiler.holders import Holders
from lowtide.tools.profiler.records import Allocation, Place
from lowtide.tools.profiler.timeline import Timeline

_SAMPLES = 3  # tensors of a place whose holders are searched
_CYCLE = "a reference cycle that waits for the garbage collector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """The tensors that one place left: `count` allocations of `nbytes` together.

    `steps`: in which they were made, from 0. `holders`: of some of the tensors, the most direct
    first."""

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
    """Return all leaks. `tensors`: finds the Python tensors in allocations."""
    ended = len(timeline.step_ends_ns)
    groups: dict[tuple[str, str, Place], list[Allocation]] = {}
    for allocation in timeline.alive():
        if allocation.step < ended - 1:
            key = (allocation.op, allocation.phase, allocation.place)
            groups.setdefault(key, []).append(allocation)
    leaking = [group for group in groups.values() if {a.step for a in group} != {0}]
    samples = [_sample(group) for group in leaking]
    found = tensors([a for sample in samples for a in sample])
    with Holders(found) as holders:
        texts = [_holders_of(sample, found, holders) for sample in samples]
    were_alive = [_is_any_alive(sample, found) for sample in samples]
    gc.collect()
    leaks: list[Leak] = []
    for group, sample, held, was_alive in zip(leaking, samples, texts, were_alive, strict=True):
        is_garbage = was_alive and not _is_any_alive(sample, found)
        by = tuple(f"{_CYCLE}: {text}" for text in held or ("?",)) if is_garbage else held
        leaks.append(_leak(group, by))
    return sorted(leaks, key=lambda leak: -leak.nbytes)


def _sample(group: list[Allocation]) -> list[Allocation]:
    """Return the largest allocations, of different sizes first: equal ones likely have the same
    holder."""
    ordered = sorted(group, key=lambda a: -a.nbytes)
    firsts = {a.nbytes: a.born for a in reversed(ordered)}
    return sorted(ordered, key=lambda a: firsts[a.nbytes] != a.born)[:_SAMPLES]


def _holders_of(sample: list[Allocation], found: Found, holders: Holders) -> tuple[str, ...]:
    texts = dict.fromkeys(text for a in sample for text in holders.of(a))
    if not texts and any(a.born in found for a in sample) and not _is_any_alive(sample, found):
        return ("nothing: freed since the profile ended",)
    return tuple(texts)


def _is_any_alive(sample: list[Allocation], found: Found) -> bool:
    return any(ref() is not None for a in sample for ref in found.get(a.born, ()))


def _leak(group: list[Allocation], holders: tuple[str, ...]) -> Leak:
    first = max(group, key=lambda a: a.nbytes)
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
        holders=holders,
    )
