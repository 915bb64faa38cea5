"""Finds runs of ops that are the iterations of an unrolled loop.

In: the ops of a block, as `Straight`. Out: `Plan`s: where each loop begins, its period and number
of iterations, its operands (`unrolled`), the lists that it fills, its results that are read later.

    a b c  a b c  a b c  a b c  d      one plan: from place 0, period 3, 4 iterations

Invariant: plans do not overlap, and no list is filled by two. Outside of the run, only lists
read a result of an iteration other than the last one and those that the last one carries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lowtide.ir.core import Op, Value, walk
from lowtide.passes.straight import FEWEST, Straight
from lowtide.passes.unrolled import MOST_STEPS_BACK, Carried, Local, Made, Run, Source, parts

FEWEST_OPS: Final = 12  # in all: less is compiled as fast as it is
LONGEST_PERIOD: Final = 1000
MOST_LOOKS: Final = 400_000  # at ops, which takes about two seconds
_LOOSE_ENDS: Final = 2  # of a list, besides the items of the loop
_LISTS: Final = ("list.make", "tuple.make")
_JOINS: Final = ("torch.stack", "torch.cat")
_MULTIPLES: Final = range(1, 5)


@dataclass(frozen=True, slots=True)
class Collected:
    """A list op, the items that the loop appends in each iteration, those before and after it."""

    op: Op
    items: tuple[Source, ...]
    before: tuple[Value, ...]
    after: tuple[Value, ...]
    is_reversed: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that is a loop, and what each operand of its first iteration is."""

    run: Run
    sources: list[list[Source]]
    lists: list[Collected]
    ends: dict[Source, Value]  # read after the run: what the source is in the last iteration

    @property
    def stop(self) -> int:
        """The place after the run."""
        return self.run.start + self.run.count * self.run.period

    def cost(self) -> tuple[int, int, int]:
        """Return a sort key. The plan with the least is most likely the loop that was written."""
        operands = {s for row in self.sources for s in row}
        carried = {s for x in operands for s in parts(x) if isinstance(s, Carried)}
        loose = sum(len(x.before) + len(x.after) for x in self.lists)
        return len(carried) + loose + len(self.ends), -self.run.count, self.run.start


def _size(run: Run, sources: list[list[Source]]) -> int:
    """Return the number of ops of an iteration, those in its blocks included."""
    floating = {s for row in sources for x in row for s in parts(x) if isinstance(s, Made)}
    ops = run.straight.ops[run.start : run.start + run.period]
    return len(floating) + len(ops) + sum(1 for op in ops for b in op.blocks for _ in walk(b))


class Search:
    """Looks through the ops of one block."""

    def __init__(self, straight: Straight) -> None:
        self.straight = straight
        self.readers = straight.readers()
        self.taken = [False] * len(straight.ops)
        self.claimed: set[int] = set()  # lists that a plan grows
        self.looks = MOST_LOOKS
        self.furthest = [self.last_reader(op) for op in straight.ops]
        self.items: dict[Value, dict[int, int]] = {}  # in which lists a value is, and where
        for place, op in enumerate(straight.ops):
            for k, value in enumerate(op.operands if op.name in _LISTS else ()):
                self.items.setdefault(value, {}).setdefault(place, k)

    def last_reader(self, op: Op) -> int:
        """Return the place of the last op that reads a result of `op`, lists aside; -1 if none
        does."""
        readers = (k for v in op.results for k in self.readers.get(v, ()))
        ops = self.straight.ops
        return max((k for k in readers if ops[k].name not in _LISTS), default=-1)

    def plans(self) -> Iterator[Plan]:
        """Runs that do not meet."""
        for period in self.periods():
            for start, stop in self.stretches(period):
                while start + (FEWEST - 1) * period <= stop and self.looks > 0:
                    plan = self.first(start, stop, period)
                    if plan is None:
                        break
                    self.take(plan)
                    yield plan
                    start = plan.stop

    def take(self, plan: Plan) -> None:
        for k in range(plan.run.start, plan.stop):
            self.taken[k] = True
        self.claimed.update(id(x.op) for x in plan.lists)

    def periods(self) -> list[int]:
        """Distances at which an op is done again."""
        last: dict[int, int] = {}
        found: set[int] = set()
        for k, label in enumerate(self.straight.strict):
            if label in last:
                found.update((k - last[label]) * m for m in _MULTIPLES)
            last[label] = k
        longest = min(LONGEST_PERIOD, len(self.straight.ops) // (FEWEST - 1))
        return sorted(p for p in found if p <= longest)

    def stretches(self, period: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of places in which each op equals the op one period later."""
        labels = self.straight.strict
        start = None
        for k in range(len(labels) - period + 1):
            same = k + period < len(labels) and labels[k] == labels[k + period]
            if same and start is None:
                start = k
            elif not same and start is not None:
                if k - start >= (FEWEST - 2) * period:
                    yield start, k + period
                start = None

    def first(self, start: int, stop: int, period: int) -> Plan | None:
        """Return the first run between `start` and `stop`, beginning where the written loop most
        likely did."""
        last = stop - (FEWEST - 1) * period
        for k in range(start, last + 1):
            found = self.plan(k, period)
            if found is None and k >= period:
                found = self.plan(k - period, period)  # its first iteration may read other values
            if found is not None:
                return self.best(found, stop)
        return None

    def best(self, found: Plan, stop: int) -> Plan:
        """Return the plan with the likeliest beginning and end of the same loop."""
        period = found.run.period
        for _ in range(MOST_STEPS_BACK):
            spare = min(period - 1, max(0, stop - found.stop))
            begin = found.run.start
            others = (self.plan(j, period) for j in range(begin - period, begin + spare + 1))
            better = min((x for x in (found, *others) if x is not None), key=Plan.cost)
            if better.run.start >= begin:
                return better
            found = better
        return found

    def plan(self, start: int, period: int) -> Plan | None:
        """Return the loop that begins at `start`, with as many iterations as there are; else
        None."""
        if start < 0 or self.looks <= 0:
            return None
        labels, stop = self.straight.loose, start
        while stop + period < len(labels) and labels[stop] == labels[stop + period]:
            if self.taken[stop] or self.taken[stop + period]:
                break
            stop += 1
        stop += period
        if (stop - start) // period < FEWEST:
            return None
        if any(k >= stop for k in self.furthest[start : start + period]):
            return None  # the first iteration is read from outside
        if not all(self.is_even(k, period, stop) for k in range(start, start + period)):
            return None
        self.looks -= FEWEST * period
        run = Run(self.straight, start, period, stop)
        found = run.sources()
        while found is not None and found[1] >= FEWEST:
            sources, run.count = found
            if run.count * _size(run, sources) < FEWEST_OPS:
                return None
            lists = list(self.lists(run))
            count, ends = self.ends(run, lists, _delayed(sources))
            if count == run.count:
                return Plan(run, sources, lists, ends)
            found = sources, count
        return None

    def is_even(self, start: int, period: int, stop: int) -> bool:
        """Return whether the iterations fill lists evenly: at equal distances, with few other
        items."""
        places: list[dict[int, int]] = [{}, {}, {}]
        for k, found in zip(range(start, stop, period), places, strict=False):
            for value in self.straight.ops[k].results:
                found.update(self.items.get(value, {}))
        count = (stop - start) // period
        for place in {x for found in places for x in found if x >= stop}:
            first, second, third = (found.get(place) for found in places)
            if first is None or second is None or third is None:
                return False
            width, size = second - first, len(self.straight.ops[place].operands)
            if third - second != width or size > count * abs(width) + _LOOSE_ENDS:
                return False
        return True

    def after(self, run: Run) -> Iterator[tuple[Value, int, Local, int]]:
        """Yield each value of the run that is read after it, with its iteration, place and
        reader."""
        stop = run.start + run.count * run.period
        for k in range(run.start, stop):
            for value in self.straight.ops[k].results:
                made = run.iteration(value)
                assert made is not None
                for reader in self.readers.get(value, ()):
                    if reader >= stop:
                        yield value, *made, reader

    def ends(
        self, run: Run, lists: list[Collected], delayed: dict[tuple[Local, int], Source]
    ) -> tuple[int, dict[Source, Value]]:
        """Return how many iterations the run may have, and which values of the last one are read
        later. A value that is read later must be of the last iteration, or still carried then;
        otherwise the run ends with its iteration."""
        count = run.count
        found: dict[Source, Value] = {}
        loose = {id(x.op): {e for v in x.after for e in self.straight.leaves(v)} for x in lists}
        for value, iteration, local, reader in self.after(run):
            kept = loose.get(id(self.straight.ops[reader]))
            if kept is not None and value not in kept:
                continue
            source = delayed.get((local, run.count - 1 - iteration))
            if iteration == run.count - 1:
                source = local
            if source is None:
                count = min(count, iteration + 1)
            else:
                found[source] = value
        return count, found

    def lists(self, run: Run) -> Iterator[Collected]:
        """Yield the lists of values that iterations give."""
        seen: set[int] = set()
        for _, iteration, _, reader in self.after(run):
            op = self.straight.ops[reader]
            if iteration < run.count - 1 and reader not in seen and id(op) not in self.claimed:
                seen.add(reader)
                found = self.collected(run, op) if self.is_list(op) else None
                if found is not None:
                    yield found

    def is_list(self, op: Op) -> bool:
        """Return whether the op makes a list, or a tuple whose readers treat it as a list."""
        if op.name != "tuple.make":
            return op.name == "list.make"
        users = [self.straight.ops[k] for k in self.readers.get(op.result, ())]
        read = [self.straight.slots[k][0].value for k in self.readers.get(op.result, ())]
        return all(u.name in _JOINS for u in users) and all(v is op.result for v in read)

    def collected(self, run: Run, op: Op) -> Collected | None:
        """Return the items that iterations give to a list, in order or reversed; None if they do
        not."""
        for is_reversed in (False, True):
            items = op.operands[::-1] if is_reversed else op.operands
            made = [run.iteration(v) for v in items]
            for begin, width in _columns(made, run.count):
                end = begin + width * run.count
                before, after = items[:begin], items[end:]
                if begin < 0 or end > len(items) or len(before) + len(after) > _LOOSE_ENDS:
                    continue
                if any(self.straight.last(v) >= run.start for v in before):
                    continue
                columns = [items[begin + k : end : width] for k in range(width)]
                sources = [run.source(c, False, MOST_STEPS_BACK) for c in columns]
                given = tuple(s for s, holds in sources if s is not None and holds == run.count)
                if len(given) == width:
                    return Collected(op, given, tuple(before), tuple(after), is_reversed)
        return None


def _delayed(sources: list[list[Source]]) -> dict[tuple[Local, int], Source]:
    """Return what is carried for the next iteration, by place in the iteration and distance in
    iterations."""
    found: dict[tuple[Local, int], Source] = {}
    for source in {p for row in sources for s in row for p in parts(s)}:
        if isinstance(source, Carried):
            local, ago = source.then, 0
            while isinstance(local, Carried):
                local, ago = local.then, ago + 1
            if isinstance(local, Local):
                found.setdefault((local, ago), source.then)
    return found


def _columns(made: list[tuple[int, Local] | None], count: int) -> Iterator[tuple[int, int]]:
    """Yield the places at which items may begin to repeat, each with its period."""
    start = next((k for k, m in enumerate(made) if m is not None), None)
    first = None if start is None else made[start]
    if start is None or first is None or first[0] != 0:
        return
    repeated = (1, first[1])
    width = next((k - start for k, m in enumerate(made) if m == repeated), None)
    if width is not None:
        yield start, width
        yield start - width, width  # they are of the iteration before
