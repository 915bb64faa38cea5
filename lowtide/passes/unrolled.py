"""Gives each operand of an unrolled loop's body as a function of the iteration.

In: the ops of a block, the start of a run and its period. Out: a `Source` for each operand of the
first iteration, and the number of iterations for which it is right.

    %a = torch.getitem(%x, %0)             %x is Fixed, %0, %1, … are Counted(0, 1)
    %b = torch.add(%h, %a, %one)           %h, %b, %d, … are Carried(%h, Local(1, 0))
    %c = torch.getitem(%x, %1)        →    %a, %c, … are Local(0, 0)
    %d = torch.add(%b, %c, %one)

Invariant: in each of its iterations, a source gives the operand's value. Floating ops (see
`straight`) are not in the run, but are part of the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.passes.straight import FEWEST, NUMBERS, Slot, Straight, slots

MOST_STEPS_BACK: Final = 3  # an iteration reads values of so many before it

# op → the operands that may be another number in each iteration; None: all but the first
_COUNTING: Final[dict[str, Sequence[int] | None]] = {
    "torch.getitem": None,
    "mutate": None,
    "torch.select": (2,),
    "torch.narrow": (2,),
    "list.get": (1,),
    "torch.add": (0, 1),
    "torch.sub": (0, 1),
    "torch.mul": (0, 1),
    "torch.div": (0, 1),
    "torch.full": (1,),
    "torch.full_like": (1,),
    "torch.masked_fill": (2,),
    "torch.where": (1, 2),
    **{f"torch.{name}": (0, 1) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "py.add": (0, 1),
    "py.sub": (0, 1),
    "py.mul": (0, 1),
}


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same value, from before the run, in each iteration."""

    value: Value


@dataclass(frozen=True, slots=True)
class Counted:
    """The int `start + i * step` in iteration i."""

    start: int
    step: int


@dataclass(frozen=True, slots=True)
class Local:
    """A result of the op at this place of the same iteration."""

    offset: int
    result: int


@dataclass(frozen=True, slots=True)
class Made:
    """The result of a floating op like this one, applied to these operands."""

    op: Op
    operands: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Carried:
    """`first` in iteration 0, then what `then` was in the iteration before."""

    first: Value
    then: Source


Source = Fixed | Counted | Local | Made | Carried


def parts(source: Source) -> Iterator[Source]:
    """Yield the source and all sources in it."""
    yield source
    for x in source.operands if isinstance(source, Made) else ():
        yield from parts(x)
    if isinstance(source, Carried):
        yield from parts(source.then)


class Run:
    """Ops from `start` on that repeat every `period`, at most up to `stop`."""

    def __init__(self, straight: Straight, start: int, period: int, stop: int) -> None:
        self.straight = straight
        self.start = start
        self.period = period
        self.count = (stop - start) // period

    def iteration(self, value: Value) -> tuple[int, Local] | None:
        """Return the iteration that makes a value, and the place in it; None if outside of the
        run."""
        place = self.straight.places.get(value)
        if place is None or not 0 <= place[0] - self.start < self.count * self.period:
            return None
        k, offset = divmod(place[0] - self.start, self.period)
        return k, Local(offset, place[1])

    def column(self, offset: int, slot: int) -> list[Value]:
        """Return one operand in all iterations."""
        at = range(self.start + offset, self.start + self.count * self.period, self.period)
        return [self.straight.slots[k][slot].value for k in at]

    def sources(self) -> tuple[list[list[Source]], int] | None:
        """Return the sources of each operand of an iteration, and the number of iterations."""
        count, self.count = self.count, FEWEST  # a look at the first ones tells most
        first = self._all_sources()
        self.count = count
        return first if first is None or count == FEWEST else self._all_sources()

    def _all_sources(self) -> tuple[list[list[Source]], int] | None:
        found: list[list[Source]] = []
        count = self.count
        for offset in range(self.period):
            found.append([])
            for k, slot in enumerate(self.straight.slots[self.start + offset]):
                column = self.column(offset, k)[:count]
                source, holds = self.source(column, may_count(slot), MOST_STEPS_BACK)
                count = min(count, holds)
                if source is None or count < FEWEST:
                    return None
                found[-1].append(source)
        return found, count

    def source(self, values: Sequence[Value], counts: bool, back: int) -> tuple[Source | None, int]:
        """Return the source that gives most of these values, and how many. `values`: one per
        iteration, in order from the first."""
        best: tuple[Source | None, int] = (None, 0)
        for source, holds in self._sources(values, counts, back):
            if holds > best[1]:
                best = source, holds
        return best

    def _sources(
        self, values: Sequence[Value], counts: bool, back: int
    ) -> Iterator[tuple[Source | None, int]]:
        first = values[0]
        is_before = self.straight.last(first) < self.start
        place = self.iteration(first)
        if place is not None and place[0] == 0:
            yield place[1], self._in_step(values)
        if is_before:
            key = self.straight.key
            yield Fixed(first), _leading(key(v) == key(first) for v in values)
        if counts:
            yield self._counted(values)
        yield self._made(values, counts, back)
        if is_before and back and len(values) > 2:
            then, holds = self.source(values[1:], False, back - 1)
            if isinstance(then, Local | Carried) and _type_of(then, self) == first.type:
                yield Carried(first, then), holds + 1

    def _in_step(self, values: Sequence[Value]) -> int:
        """Return how many of the values are the same result of the same op, each in its own
        iteration."""
        places = self.straight.places
        first, result = places[values[0]]
        last = self.start + self.count * self.period
        wanted = range(first, last, self.period)
        return _leading(places.get(v) == (w, result) for v, w in zip(values, wanted, strict=False))

    def _counted(self, values: Sequence[Value]) -> tuple[Source | None, int]:
        numbers = [self._int(v) for v in values]
        first, second = numbers[0], numbers[1] if len(numbers) > 1 else None
        if first is None or second is None or first == second:
            return None, 0
        step = second - first
        holds = _leading(
            n is not None and n == first + k * step and (n < 0) == (first < 0)
            for k, n in enumerate(numbers)
        )  # x[-1] is the last row: what counts from the end always does
        return Counted(first, step), holds

    def _int(self, value: Value) -> int | None:
        op = self.straight.floating.get(value)
        number = op.attrs["value"] if op is not None and op.name == "const" else None
        return number if type(number) is int else None

    def _made(self, values: Sequence[Value], counts: bool, back: int) -> tuple[Source | None, int]:
        """Return the source of floating values of one structure, and for how many iterations it
        holds."""
        floating, structure = self.straight.floating, self.straight.structure
        like = floating.get(values[0])
        if like is None or not like.operands:
            return None, 0
        wanted, is_number = structure(like), like.name in NUMBERS
        alike: list[Op] = []
        for op in map(floating.get, values):
            if op is None or structure(op) != wanted:
                break
            alike.append(op)
        holds = len(alike)
        operands: list[Source] = []
        for k, slot in enumerate(slots(like)):
            column = [op.operands[k] for op in alike[:holds]]
            may = may_count(slot) and (counts or not is_number)
            source, count = self.source(column, may, back)
            holds = min(holds, count)
            if source is None:
                return None, 0
            operands.append(source)
        return Made(like, tuple(operands)), holds


def _type_of(source: Source, run: Run) -> t.Type:
    while isinstance(source, Carried):
        source = source.then
    assert isinstance(source, Local)
    return run.straight.ops[run.start + source.offset].results[source.result].type


def _leading(holds: Iterator[bool]) -> int:
    """Return how many are true before the first that is not."""
    count = 0
    for true in holds:
        if not true:
            break
        count += 1
    return count


def may_count(slot: Slot) -> bool:
    """Return whether the operand may be a different number in each iteration. An index, a factor or
    a bound may; an operand that decides about shapes may not."""
    if slot.value.type != t.INT:
        return False
    if slot.op.name in _COUNTING:
        places = _COUNTING[slot.op.name]
        if slot.op.name == "mutate" and slot.op.attrs.get("spec") is None:
            return False
        return slot.operand > 0 if places is None else slot.operand in places
    return False
