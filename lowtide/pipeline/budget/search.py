"""The cheapest plan whose predicted peak is within a budget.

In: a Driver, the arguments of a call, a number of bytes. Out: a Driver of the planned Function, or a
BudgetError with the least peak that was found.

Plans lie on one path that does not depend on the budget, cheap ones first: the program as it is;
where gradients are recorded, sections that are computed again; then, step by step, twice as many
chunks for the section that lowers the peak most. The first plan that fits is taken. So a smaller
budget never gives a larger peak: what the larger one took either fits the smaller too, or its peak
is above the smaller budget, and with that above the peak of what is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.errors import BudgetError
from lowtide.pipeline.budget.find import Candidate, candidates
from lowtide.pipeline.budget.rewrite import with_sections
from lowtide.pipeline.driver import Driver
from lowtide.pipeline.memory import MemoryPlan, plan_memory
from lowtide.pipeline.walk import Walk

_MOST_STEPS: Final = 24
Chunks = Mapping[Candidate, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A driver that keeps to `memory`."""

    driver: Driver
    memory: MemoryPlan


def search(driver: Driver, args: Sequence[Any], budget_bytes: int) -> Plan:
    """See the module's text."""
    least: Plan | None = None
    for plan in _path(driver, args):
        if plan.memory.peak_bytes <= budget_bytes:
            return plan
        if least is None or plan.memory.peak_bytes < least.memory.peak_bytes:
            least = plan
    assert least is not None
    raise refusal(driver.function.name, budget_bytes, least.memory)


def refusal(name: str, budget_bytes: int, least: MemoryPlan) -> BudgetError:
    """The error for a budget that cannot be met."""
    held = [f"{b.nbytes:>14,}  {b.name}  {b.loc if b.loc.line else b.kind}" for b in least.buffers]
    return BudgetError(name, budget_bytes, least.peak_bytes, held[:8])


def _path(driver: Driver, args: Sequence[Any]) -> Iterator[Plan]:
    """The plans, in order of cost."""
    walk = Walk(driver, args)
    best = Plan(driver=driver, memory=plan_memory(walk))
    yield best
    found = candidates(driver, args)
    chunks: dict[Candidate, int] = {}
    if walk.records and found:
        chunks = dict.fromkeys(found, 1)
        best = _planned(driver, args, chunks)
        yield best
    for _ in range(_MOST_STEPS):
        step = _next(driver, args, found, chunks, best.memory.peak_bytes)
        if step is None:
            return
        chunks, best = step
        yield best


def _next(
    driver: Driver,
    args: Sequence[Any],
    found: Sequence[Candidate],
    chunks: Chunks,
    peak_bytes: int,
) -> tuple[dict[Candidate, int], Plan] | None:
    """The step that lowers the peak most; all sections at once where no single one does."""
    finer = {c: min(2 * chunks.get(c, 1), c.extent) for c in found}
    finer = {c: count for c, count in finer.items() if count > chunks.get(c, 1)}
    trials = [{**chunks, c: count} for c, count in finer.items()]
    if len(finer) > 1:
        trials.append({**chunks, **finer})
    plans = [(t, _planned(driver, args, t)) for t in trials]
    best = min(plans, key=lambda row: row[1].memory.peak_bytes, default=None)
    if best is None or best[1].memory.peak_bytes >= peak_bytes:
        return None
    return best


def _planned(driver: Driver, args: Sequence[Any], chunks: Chunks) -> Plan:
    made = Driver(with_sections(driver.function, chunks))
    return Plan(driver=made, memory=plan_memory(Walk(made, args)))
