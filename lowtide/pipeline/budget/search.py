"""The cheapest plan whose predicted peak is within a budget.

In: a Driver, the arguments of a call, a number of bytes. Out: a Driver of the planned Function, or
a BudgetError with the least peak that was found.

Plans lie on one path that does not depend on the budget, cheap ones first: the program as it is;
the same with an arena that gives free blocks back before it takes others; where gradients are
recorded, sections that are computed again; then, step by step, twice as many chunks for the section
that lowers the peak most, at each step first with some of the chunks kept; at last, the one with
the least peak again, with a C library that keeps nothing of what is freed, and with kernels whose
tiles need least work memory.

A plan fits if its peak does, and with it the holes that the C library's heap may have by then
(`runtime/heap`). The first plan that fits is taken, unless one before it, which did not fit for its
holes, has a smaller peak. So a smaller budget never gives a larger peak: what the larger one took
either fits the smaller too, or is such a plan before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.errors import BudgetError
from lowtide.ir.core import Block
from lowtide.pipeline import faults
from lowtide.pipeline.backend import Tiles
from lowtide.pipeline.budget.candidate import Candidate
from lowtide.pipeline.budget.find import candidates
from lowtide.pipeline.budget.rewrite import with_sections
from lowtide.pipeline.driver import BlockPlan, Driver
from lowtide.pipeline.memory import MemoryPlan, plan_memory
from lowtide.pipeline.signature import CPU
from lowtide.pipeline.walk import Walk
from lowtide.runtime import heap

_MOST_STEPS: Final = 24
_FACTORS: Final = (2, 16)  # times as many chunks
_SHARES: Final = (0.75, 0.5, 0.25, 0.0)  # of the chunks are not run again; 0: one of them
_MOST_KEPT: Final = 8  # chunks; each is rehearsed
Chunks = Mapping[Candidate, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A driver that keeps to `memory`, and resident to `needed_bytes`."""

    driver: Driver
    memory: MemoryPlan
    needed_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What is allocated at the peak."""
        return self.memory.peak_bytes


def search(driver: Driver, args: Sequence[Any], budget_bytes: int) -> Plan:
    """See the module's text."""
    least: Plan | None = None
    for plan in path(driver, args):
        is_least = least is None or plan.peak_bytes <= least.peak_bytes
        if is_least and plan.needed_bytes <= budget_bytes:
            return plan
        least = plan if is_least else least
    assert least is not None
    raise _refusal(driver.function.name, budget_bytes, least.memory)


def path(driver: Driver, args: Sequence[Any]) -> Iterator[Plan]:
    """The plans, in order of cost."""
    walk = Walk(driver, args)
    yield _plan(driver, walk)
    found = _candidates(driver, args)
    trials = _Trials(driver, args)
    chunks: dict[Candidate, int] = {}
    best = trials.plan(chunks)
    yield best
    if walk.records and found:
        chunks = dict.fromkeys(found, 1)
        best = trials.plan(chunks)
        yield best
    for _ in range(_MOST_STEPS):
        step = _next(trials, found, chunks, best.peak_bytes)
        if step is None:
            break
        chunks, best = step
        if walk.records:
            yield from (trials.plan(chunks, kept) for kept in _keeping(chunks))
        yield best
    assert trials.least is not None
    least, least_chunks, least_kept = trials.least
    if least.needed_bytes > least.peak_bytes:
        yield trials.plan(least_chunks, least_kept, keeps_holes=False)
    yield trials.plan(chunks, tiles="least", keeps_holes=False)


def _plan(driver: Driver, walk: Walk) -> Plan:
    memory = plan_memory(walk)
    may_have_holes = driver.keeps_holes and heap.keeps_holes() and walk.device == CPU
    needed_bytes = walk.ledger.with_holes_bytes if may_have_holes else memory.peak_bytes
    return Plan(driver=driver, memory=memory, needed_bytes=needed_bytes)


def _candidates(driver: Driver, args: Sequence[Any]) -> list[Candidate]:
    try:
        return candidates(driver, args)
    except Exception as fault:
        faults.survive(fault, f"{driver.function.name}: what can be done in chunks")
        return []


class _Trials:
    """Plans of one program; the sections' compiled parts are shared by all."""

    def __init__(self, driver: Driver, args: Sequence[Any]) -> None:
        self.driver = driver
        self.args = args
        self._blocks: dict[Candidate, Block] = {}
        self._inner: dict[Tiles, dict[int, BlockPlan]] = {}
        self.least: tuple[Plan, Chunks, Chunks | None] | None = None  # so far, and how it was made

    def plan(
        self,
        chunks: Chunks,
        kept: Chunks | None = None,
        tiles: Tiles | None = None,
        keeps_holes: bool = True,
    ) -> Plan:
        function = with_sections(self.driver.function, chunks, self._blocks, kept)
        tiles = tiles or self.driver.tiles
        made = Driver(function, self._inner.setdefault(tiles, {}), tiles)
        made.is_tight, made.keeps_holes = True, keeps_holes
        plan = _plan(made, Walk(made, self.args))
        if self.least is None or plan.peak_bytes < self.least[0].peak_bytes:
            self.least = plan, chunks, kept
        return plan


def _next(
    trials: _Trials, found: Sequence[Candidate], chunks: Chunks, peak_bytes: int
) -> tuple[dict[Candidate, int], Plan] | None:
    """The step that lowers the peak most; a larger one where no small one does."""
    for factor in _FACTORS:
        finer = {c: c.more(chunks.get(c, 1), factor) for c in found}
        finer = {c: count for c, count in finer.items() if count > chunks.get(c, 1)}
        steps = [{**chunks, c: count} for c, count in finer.items()]
        if len(finer) > 1:
            steps.append({**chunks, **finer})
        plans = [(step, trials.plan(step)) for step in steps]
        best = min(plans, key=lambda row: row[1].peak_bytes, default=None)
        if best is not None and best[1].peak_bytes < peak_bytes:
            return best
    return None


def _keeping(chunks: Chunks) -> Iterator[Chunks]:
    """How many chunks of each section might be kept, many first."""
    before: Chunks = {}
    for share in _SHARES:
        kept = {
            c: min(max(int(share * count), 1), _MOST_KEPT)
            for c, count in chunks.items()
            if count > 1 and c.carried is None
        }
        if kept and kept != before:
            yield kept
        before = kept


def _refusal(name: str, budget_bytes: int, least: MemoryPlan) -> BudgetError:
    held = [f"{b.nbytes:>14,}  {b.name}  {b.loc if b.loc.line else b.kind}" for b in least.buffers]
    return BudgetError(name, budget_bytes, least.peak_bytes, held[:8])
