"""Peels the last step of a loop where it takes another branch than all earlier steps.

In, out: a Function. Invariant: the same steps run in the same order.

    %h = loop(%n, %true, %h0):               %h = if(%n > 0):
      block(%t, %h1):                          block():
        %more = py.lt(%t, %n - 1)                %h2 = loop(%n - 1, %true, %h0):
        %h3 = if(%more) … …           →            block(%t, %h1): …        as where %more is true
        yield(%true, %h3)                        …                          of %t = %n - 1
                                               block():
                                                 yield(%h0)

The conditions that are decided compare `step + constant` with `number of steps + constant`. If the
last two or three steps differ, they are peeled one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir.core import Function, Op, Value, clone, walk
from lowtide.passes.constants import fold_constants
from lowtide.passes.evolution import Evolution, evolution, number_of
from lowtide.passes.first_steps import COMPARED, LONGEST, TURNED
from lowtide.passes.ir_queries import Makers, constant, makers_of
from lowtide.passes.run import only_with
from lowtide.passes.split_iterations import replace_loops, split_iterations

MOST_STEPS: Final = 3  # done after a loop

_LONG_BEFORE: Final[Mapping[str, bool]] = {  # the end, a comparison with it is this
    "py.lt": True, "py.le": True, "py.ne": True, "py.ge": False, "py.gt": False, "py.eq": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of a condition: in all steps but the last, None if these do not agree yet; in the last."""

    earlier: bool | None
    last: bool

    def opposite(self) -> _Answer:
        """Return the answer for the negated condition."""
        return _Answer(None if self.earlier is None else not self.earlier, not self.last)


@only_with("loop")
def peel_last_steps(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    for _ in range(MOST_STEPS):
        if not replace_loops(result.block, functools.partial(_peeled, makers_of(result))):
            break
        result = fold_constants(result)
    return result


def _peeled(makers: Makers, loop: Op, _: list[Op]) -> list[Op] | None:
    """Return the loop without its last step, and that step; None if that tells nothing."""
    answers = dict(_answers(loop, makers))
    if not answers:
        return None
    earlier = {c: a.earlier for c, a in answers.items() if a.earlier is not None}
    return split_iterations(loop, each=[earlier], last={c: a.last for c, a in answers.items()})


def _answers(loop: Op, makers: Makers) -> Iterator[tuple[Value, _Answer]]:
    """Yield the conditions of branches that differ between the last step and the others."""
    (body,) = loop.blocks
    trips = constant(loop.operands[0], makers)
    if isinstance(trips, int) and trips >= opdefs.MAX_TRIPS:
        return
    goes_on = (loop.operands[1], body.terminator.operands[0])
    ops = list(walk(body))
    if len(ops) > LONGEST or any(constant(v, makers) is not True for v in goes_on):
        return
    for op in ops:
        if op.name == "if":
            found = _answer(op.operands[0], loop, makers)
            if found is not None and found.earlier != found.last:
                yield op.operands[0], found


def _answer(condition: Value, loop: Op, makers: Makers) -> _Answer | None:
    maker = makers.get(condition)
    if maker is None:
        return None
    if maker.name == "py.not":
        inner = _answer(maker.operands[0], loop, makers)
        return None if inner is None else inner.opposite()
    if maker.name not in COMPARED:
        return None
    step = loop.blocks[0].args[0]
    name, (a, b) = maker.name, maker.operands
    left, right = (_through_range(v, step, makers) for v in (a, b))
    if left.ahead is None:
        name, left, right = TURNED.get(name, name), right, left
    trips = _through_range(loop.operands[0], step, makers)
    if left.ahead is None or trips.base is None or (right.base, right.step) != (trips.base, 0):
        return None
    return _compared(name, right.offset - trips.offset - left.offset)


def _compared(name: str, end: int) -> _Answer | None:
    """Return the answer of `t < steps + end`, or another comparison. The last t is `steps - 1`."""
    test, long_before = COMPARED[name], _LONG_BEFORE[name]
    is_equality = name in ("py.eq", "py.ne")
    agree = end >= -1 if is_equality else test(-2, end) == long_before
    if not agree and not -MOST_STEPS <= end < -1:
        return None
    return _Answer(long_before if agree else None, test(-1, end))


def _through_range(value: Value, step: Value, makers: Makers) -> Evolution:
    """Return how the value changes with the step. The length of a range is expressed by the end of
    the range: a loop that runs has as many steps as its range says, or more."""
    found = evolution(value, step, makers)
    maker = None if found.base is None else makers.get(found.base)
    if maker is None or maker.name != "py.range_len":
        return found
    first, stop, by = maker.operands
    begin = number_of(first, makers)
    if begin is None or number_of(by, makers) != 1:
        return found
    end = _through_range(stop, step, makers)
    return found if end.step or found.step else end.more(found.offset - begin)
