"""Finds the cheapest plan whose predicted peak is within a budget.

In: a Driver, the arguments of a call, a number of bytes. Out: a `Plan`, which has a Driver of the
rewritten Function. Raises BudgetError with the least peak of all plans.

Plans are tried in a fixed order, the cheapest first:

    the program as it is
    … with branches folded whose conditions the arguments decide (`decided`)
    … with channels-last images (`channels_last`)
    training: segments recomputed as a whole (`segments`), with ever fewer bytes (`cheapest`).
      After the chunks if chunks free half of all bytes; never if they free three quarters
    chunks: each step doubles those of the section that lowers the peak most. In training, chunks
      are recomputed: only some of them first, or all but saved products (`products`)
    kernels whose tiles need the least work memory
    all of these once more, with short loops unrolled

The first plan that fits is taken, so a smaller budget never gives a larger peak.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lowtide.budget.channels_last import to_channels_last
from lowtide.budget.cheapest import FEWER, cheapest
from lowtide.budget.decided import decided, with_unrolled_loops
from lowtide.budget.dry_run import DryRun
from lowtide.budget.effects import ObservedEffects
from lowtide.budget.find import candidates
from lowtide.budget.memory import MemoryPlan, plan_memory
from lowtide.budget.outer import Outer
from lowtide.budget.products import Choice, is_product, worth_keeping
from lowtide.budget.rewrite import NOTHING, UNKNOWN, Counts, Kept, Made, with_sections
from lowtide.budget.segments import Cutter
from lowtide.diagnostics import faults
from lowtide.diagnostics.progress import progress, say
from lowtide.errors import BudgetError
from lowtide.execute.backend import Tiles
from lowtide.execute.block_plan import BlockPlan
from lowtide.execute.candidate import Candidate
from lowtide.execute.driver import Driver
from lowtide.ir.core import Function, Value
from lowtide.tables import format_bytes

_MOST_STEPS: Final = 24
_MOST_TRIED: Final = 8  # sections; of more, all are refined together
_FACTORS: Final = (2, 16)  # by which a step multiplies the number of chunks
_HALF: Final = 0.5  # share of the allocated bytes that chunks free: then chunks before segments
_MOST: Final = 0.75  # the same: no segments
_LARGE: Final = 16  # sections with 1/16 of the allocated bytes run in chunks inside segments first
_CHUNKS: Final = 4  # the first number of chunks inside segments, and the factor of each step
_BEFORE: Final = 1.15  # the next search starts at the best limit so far times this
_SHARES: Final = (0.75, 0.5, 0.25, 0.0)  # chunks that are not recomputed; 0.0: a single one
_WITH_PRODUCTS: Final = (0.5, 0.0, None)  # the same if products are saved; None: no chunk
_MOST_KEPT: Final = 8  # chunks that are not recomputed, each of which a dry run executes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A driver and its predicted memory. `ends`: where and why the prediction stops, "" if it is
    complete."""

    driver: Driver
    memory: MemoryPlan
    ends: str

    @property
    def peak_bytes(self) -> int:
        """The predicted peak of allocated bytes."""
        return self.memory.peak_bytes


def search(driver: Driver, args: Sequence[Any], budget_bytes: int, name: str = "") -> Plan:
    """Return the first plan that fits. Raises BudgetError if none does. `name`: of the function, in
    the error's message. Operands that each call computes (`driver.computed`) count."""
    name = name or driver.function.name
    least: Plan | None = None
    with progress(f"lowtide: a plan of {name} in {format_bytes(budget_bytes)}"):
        for tried, plan in enumerate(_path(driver, args, budget_bytes), 1):
            if plan.peak_bytes <= budget_bytes:
                return plan
            if least is None or plan.peak_bytes < least.peak_bytes:
                least = plan
            say(f"{tried} tried, the best has {format_bytes(least.peak_bytes)}")
    assert least is not None
    raise refusal(name, budget_bytes, least.memory)


def path(driver: Driver, args: Sequence[Any]) -> Iterator[Plan]:
    """Yield all plans, the cheapest first."""
    return _path(driver, args, math.inf)


def _path(driver: Driver, args: Sequence[Any], budget_bytes: float) -> Iterator[Plan]:
    """Yield plans, the cheapest first, without those that are certain to exceed the budget."""
    computed = driver.computed_among(args)
    driver = Driver(driver.function, tiles=driver.tiles)
    dry_run = DryRun(driver, args, computed)
    yield _plan(driver, dry_run)
    function = _rewritten(driver, lambda: decided(driver, args), "decided branches")
    driver = Driver(function, tiles=driver.tiles)
    trials = _Trials(driver, args, computed)
    yield trials.plan({})
    function = _rewritten(
        driver, lambda: to_channels_last(Outer(driver, args)), "the layout of images"
    )
    if function is not driver.function:
        driver = Driver(function, tiles=driver.tiles)
        trials = _Trials(driver, args, computed)
        yield trials.plan({})
    yield from _strategies(trials, dry_run.records, budget_bytes)
    function = _rewritten(driver, lambda: with_unrolled_loops(driver, args), "unrolling of loops")
    if function is not driver.function:
        trials = _Trials(Driver(function, tiles=driver.tiles), args, computed)
        yield trials.plan({})
        yield from _strategies(trials, dry_run.records, budget_bytes)


def _strategies(trials: _Trials, records: bool, budget_bytes: float) -> Iterator[Plan]:
    """Yield the plans of one program with chunks, and with segments if gradients are recorded."""
    parts = _parts(trials.driver, trials.args, records)
    found, cutter = parts.runs, parts.cutter
    trials.choices = parts.choices
    strategies = [_in_chunks(trials, found, cutter, budget_bytes)]
    if cutter is not None:
        trials.known = replace(
            trials.known,
            sources=functools.cache(cutter.effects.sources),
            form_of=cutter.outer.form_of,
            is_product=functools.cache(functools.partial(is_product, cutter.outer)),
        )
        freed = sum(map(cutter.outer.inner_bytes, found)) / max(sum(cutter.outer.made_bytes), 1)
        if freed < _MOST:
            strategies.insert(0 if freed < _HALF else 1, _in_segments(trials, cutter, found))
    for strategy in strategies:
        yield from strategy


def _in_segments(trials: _Trials, cutter: Cutter, found: Sequence[Candidate]) -> Iterator[Plan]:
    """Yield plans with more and more recomputed segments; then the same with sections in chunks."""
    outer = cutter.outer
    large = [c for c in found if _LARGE * outer.inner_bytes(c) >= sum(outer.made_bytes)]
    chunks: dict[Candidate, int] = {}
    least = _Least()
    yield from _with_segments(trials, cutter, chunks, least)
    for step in range(1, _MOST_STEPS):
        chunks_before, peak_before = chunks, least.peak_bytes
        for parts in (large, found):  # the large ones first: they free most
            finer = chunks | {c: c.more(1, _CHUNKS**step) for c in parts}
            if finer != chunks:
                chunks = finer
                yield from _with_segments(trials, cutter, chunks, least)
        if chunks == chunks_before or (step > 1 and least.peak_bytes == peak_before):
            break


@dataclass(slots=True)
class _Least:
    """The least peak so far, and the limit in bytes (`cheapest`) that led to it."""

    peak_bytes: float = math.inf
    most_bytes: float = math.inf

    def see(self, peak_bytes: int, most_bytes: float) -> None:
        if peak_bytes < self.peak_bytes:
            self.peak_bytes, self.most_bytes = peak_bytes, most_bytes


def _with_segments(
    trials: _Trials, cutter: Cutter, chunks: Counts, least: _Least
) -> Iterator[Plan]:
    """Yield plans with these chunks and with segments for a falling limit of bytes. It starts near
    the limit that gave the least peak so far: a higher one would not lower the peak."""
    before = list[Candidate]()
    most_bytes = min(cutter.set_chunked(chunks), _BEFORE * least.most_bytes)
    while (segments := cheapest(cutter, most_bytes := most_bytes * FEWER)) is not None:
        if segments != before:
            before = segments
            plan = trials.plan({**dict.fromkeys(segments, 1), **chunks})
            least.see(plan.peak_bytes, most_bytes)
            yield plan
        if not segments:
            break  # nothing is left to recompute


def _in_chunks(
    trials: _Trials, found: Sequence[Candidate], cutter: Cutter | None, budget_bytes: float
) -> Iterator[Plan]:
    """Yield plans with more and more chunks. `cutter`: None unless gradients are recorded."""
    records = cutter is not None
    chunks: dict[Candidate, int] = {}
    best = trials.plan(chunks)
    recompute_all: Plan | None = None
    if records and found:
        chunks = dict.fromkeys(found, 1)
        best = recompute_all = trials.plan(chunks)
    for _ in range(_MOST_STEPS):
        step = _next(trials, found, chunks, best.peak_bytes)
        if step is None:
            break
        chunks, best = step
        if records and best.peak_bytes <= budget_bytes:
            yield from (trials.plan(chunks, kept) for kept in _keeping(chunks, trials.choices))
        if recompute_all is not None:  # costs more than recomputing some chunks only
            yield recompute_all
            recompute_all = None
        yield best
    if recompute_all is not None:
        yield recompute_all
    yield trials.plan(chunks, tiles="least")


def _plan(driver: Driver, dry_run: DryRun) -> Plan:
    return Plan(
        driver=driver, memory=plan_memory(dry_run), ends="" if dry_run.fails else dry_run.ends
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """The candidates for chunks; if gradients are recorded, also the cutter of segments and the
    products that are worth saving."""

    runs: Sequence[Candidate] = ()
    cutter: Cutter | None = None
    choices: Mapping[Candidate, Sequence[Choice]] = field(
        default_factory=dict[Candidate, Sequence[Choice]]
    )


def _parts(driver: Driver, args: Sequence[Any], records: bool) -> _Parts:
    try:
        outer = Outer(driver, args)
        runs = candidates(outer)
        if not records:
            return _Parts(runs=runs)
        return _Parts(
            runs=runs,
            cutter=Cutter(ObservedEffects(outer)),
            choices={c: worth_keeping(outer, c) for c in runs},
        )
    except Exception as fault:
        faults.survive(fault, f"{driver.function.name}: chunks and recomputation")
        return _Parts()


def _rewritten(driver: Driver, make: Callable[[], Function | None], what: str) -> Function:
    """Return the rewritten function, or the driver's own if the rewrite fails."""
    try:
        return make() or driver.function
    except Exception as fault:
        faults.survive(fault, f"{driver.function.name}: {what}")
        return driver.function


class _Trials:
    """Makes plans of one program. They share the bodies of sections and their block plans."""

    def __init__(self, driver: Driver, args: Sequence[Any], computed: Container[int]) -> None:
        self.driver = driver
        self.args = args
        self._computed = computed
        self.known = UNKNOWN
        self.choices: Mapping[Candidate, Sequence[Choice]] = {}
        self._bodies: Made = {}
        self._inner: dict[Tiles, dict[int, BlockPlan]] = {}
        self._plans: dict[tuple[frozenset[tuple[Candidate, int]], Tiles], Plan] = {}

    def plan(
        self,
        chunks: Counts,
        kept: Kept = NOTHING,
        tiles: Tiles | None = None,
    ) -> Plan:
        tiles = tiles or self.driver.tiles
        key = frozenset(chunks.items()), tiles
        plan = self._plans.get(key) if kept is NOTHING else None
        if plan is None:
            function = with_sections(self.driver.function, chunks, self._bodies, kept, self.known)
            made = Driver(function, self._inner.setdefault(tiles, {}), tiles)
            plan = _plan(made, DryRun(made, self.args, self._computed))
            if kept is NOTHING:
                self._plans[key] = plan
        return plan


def _next(
    trials: _Trials, found: Sequence[Candidate], chunks: Counts, peak_bytes: int
) -> tuple[dict[Candidate, int], Plan] | None:
    """Return the number of chunks that lowers the peak most, and its plan; None if none lowers it.

    Steps by the larger factor are tried only if none by the smaller one lowers the peak. With many
    sections, all are refined together: each trial is a dry run."""
    for factor in _FACTORS:
        finer = {c: c.more(chunks.get(c, 1), factor) for c in found}
        finer = {c: count for c, count in finer.items() if count > chunks.get(c, 1)}
        few = finer if len(finer) <= _MOST_TRIED else {}
        steps = [{**chunks, c: count} for c, count in few.items()]
        if len(finer) > 1:
            steps.append({**chunks, **finer})
        plans = [(step, trials.plan(step)) for step in steps]
        best = min(plans, key=lambda row: row[1].peak_bytes, default=None)
        if best is not None and best[1].peak_bytes < peak_bytes:
            return best
    return None


def _keeping(chunks: Counts, choices: Mapping[Candidate, Sequence[Choice]]) -> Iterator[Kept]:
    """Yield what is saved rather than recomputed, the choice with the least recomputation first."""
    parts = [c for c, count in chunks.items() if count > 1 and c.carried is None]
    rows = [_recompute_share(parts, chunks, choices, share, None) for share in _SHARES]
    for level in range(max((len(choices.get(c, ())) for c in parts), default=0)):
        rows += [_recompute_share(parts, chunks, choices, share, level) for share in _WITH_PRODUCTS]
    seen: list[Kept] = []
    for _, kept in sorted(rows, key=lambda row: row[0]):
        if parts and kept not in seen:
            yield kept
            seen.append(kept)


def _recompute_share(
    parts: Sequence[Candidate],
    chunks: Counts,
    choices: Mapping[Candidate, Sequence[Choice]],
    share: float | None,
    level: int | None,
) -> tuple[float, Kept]:
    """Return the share of the work that is recomputed, and what is saved.

    `share`: of the chunks that are not recomputed. `level`: index into each section's `choices`.
    """
    counts: dict[Candidate, int] = {}
    products: dict[Candidate, tuple[Value, ...]] = {}
    recomputed = 0.0
    for c in parts:
        left = 1.0
        if share is not None:
            counts[c] = min(max(int(share * chunks[c]), 1), _MOST_KEPT)
            left -= counts[c] / chunks[c]
        lists = choices.get(c, ())
        if level is not None and lists:
            choice = lists[min(level, len(lists) - 1)]
            products[c] = choice.values
            left *= 1 - choice.share
        recomputed += left / len(parts)
    return recomputed, Kept(chunks=counts, products=products)


def refusal(name: str, budget_bytes: int, least: MemoryPlan) -> BudgetError:
    """Return the error for the case that no plan fits. `least`: the plan with the least peak."""
    rows = [(b.nbytes, b.name, b.loc if b.loc.line else b.kind) for b in least.buffers]
    held = [f"{nbytes:>14,}  {name}  {place}" for nbytes, name, place in sorted(rows, key=_largest)]
    return BudgetError(name, budget_bytes, least.peak_bytes, held[:8])


def _largest(row: tuple[int, str, object]) -> int:
    return -row[0]
