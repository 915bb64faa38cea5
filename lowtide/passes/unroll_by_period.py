"""Unrolls a loop by the period of its branches: with `if t % 2 == 0`, two steps become one.

In, out: a Function. Invariant: the same steps run in the same order.

    %h = loop(%n, %true, %h0):              %h1 = loop(%n // 2, %true, %h0):
      block(%t, %h1):                         block(%u, %h2):
        %even = py.eq(%t % 2, 0)                …      %t = %u * 2,      %even is true
        %h3 = if(%even) … …           →         …      %t = %u * 2 + 1,  %even is false
        yield(%true, %h3)                       yield(%true, %h4)
                                            %h = if(%n % 2 > 0):         if %n > 0 at all
                                              block(): …   %t = %n // 2 * 2, %even is true

The conditions that are decided are `(step + constant) % period`, compared with a constant or
converted to bool. Conditions with different periods are unrolled by the least common multiple.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lowtide.ir.core import Function, Op, Value, clone, walk
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.evolution import evolution, number_of
from lowtide.passes.first_steps import COMPARED, LONGEST, TURNED
from lowtide.passes.ir_queries import Makers, constant, makers_of
from lowtide.passes.split_iterations import replace_loops, split_iterations

LONGEST_PERIOD: Final = 8  # steps of a period


@dataclass(frozen=True, slots=True)
class _Periodic:
    """A condition: `(step + offset) % length`, compared with `limit`."""

    length: int
    offset: int
    test: str
    limit: int

    def holds(self, step: int) -> bool:
        """Return the condition's value in this step, and in each `length`-th step after it."""
        return COMPARED[self.test]((step + self.offset) % self.length, self.limit)


def unroll_by_period(fn: Function) -> Function:
    """Return the Function with such loops unrolled; see the module's text."""
    result = clone(fn)
    if not replace_loops(result.block, functools.partial(_unrolled, makers_of(result))):
        return fn
    return eliminate_dead_code(fold_constants(result))


def _unrolled(makers: Makers, loop: Op, _: list[Op]) -> list[Op] | None:
    """Return the unrolled loop and the ops of the remaining steps; None if the loop stays."""
    conditions = dict(_periodic_conditions(loop, makers))
    length = math.lcm(*(found.length for found in conditions.values()))
    size = sum(1 for inner in loop.blocks for _ in walk(inner))
    if not conditions or length > LONGEST_PERIOD or size * length > LONGEST:
        return None
    rounds = [{c: x.holds(step) for c, x in conditions.items()} for step in range(length)]
    return split_iterations(loop, each=rounds)


def _periodic_conditions(loop: Op, makers: Makers) -> Iterator[tuple[Value, _Periodic]]:
    """Yield the conditions of branches that depend only on the step modulo a period."""
    (body,) = loop.blocks
    goes_on = (loop.operands[1], body.terminator.operands[0])
    if any(constant(v, makers) is not True for v in goes_on):
        return
    for op in walk(body):
        if op.name == "if":
            found = _periodic(op.operands[0], body.args[0], makers)
            if found is not None:
                yield op.operands[0], found


def _periodic(condition: Value, step: Value, makers: Makers) -> _Periodic | None:
    maker = makers.get(condition)
    if maker is None:
        return None
    if maker.name == "py.bool":
        return _modulo(maker.operands[0], step, makers, "py.ne", 0)
    if maker.name == "py.not":
        inner = _periodic(maker.operands[0], step, makers)
        opposite = {"py.eq": "py.ne", "py.ne": "py.eq"}
        if inner is None or inner.test not in opposite:
            return None
        return _Periodic(inner.length, inner.offset, opposite[inner.test], inner.limit)
    if maker.name not in COMPARED:
        return None
    name, (a, b) = maker.name, maker.operands
    if isinstance(constant(a, makers), int):
        name, a, b = TURNED.get(name, name), b, a
    limit = constant(b, makers)
    return _modulo(a, step, makers, name, limit) if isinstance(limit, int) else None


def _modulo(value: Value, step: Value, makers: Makers, test: str, limit: int) -> _Periodic | None:
    maker = makers.get(value)
    if maker is None or maker.name != "py.mod":
        return None
    length = number_of(maker.operands[1], makers)
    if length is None or not 1 < length <= LONGEST_PERIOD:
        return None
    offset = evolution(maker.operands[0], step, makers).ahead
    return None if offset is None else _Periodic(length, offset, test, limit)
