"""A loop that asks before each step if there is another, of a number that is fixed, is counted.

In, out: a Function. Always holds: the number is from before the loop.

    %go: bool = py.lt(%0, %n)                      %x = loop(%n, %true, …)
    %x = loop(%endless, %go, …)               →      block(%i, …):
      block(%i, …):                                    …
        %next: bool = py.lt(%i + 1, %n)                yield(%true, …)
        yield(%next, …)
"""

from __future__ import annotations

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.passes.making import Makers, constant, make_constant, makers_of
from lowtide.passes.run import about


@about("loop")
def count_loops(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _count(result.block, makers_of(result))
    return result


def _count(block: Block, makers: Makers) -> None:
    kept: list[Op] = []
    for op in block.ops:
        length = _length(op, makers) if op.name == "loop" else None
        if length is not None:
            going, again = Value("", t.BOOL), Value("", t.BOOL)
            kept.append(make_constant(going, True, op))
            op.operands[:2] = [length, going]
            body = op.blocks[0]
            body.terminator.operands[0] = again
            body.ops.insert(0, make_constant(again, True, op))
        for inner in op.blocks:
            _count(inner, makers)
        kept.append(op)
    block.ops = kept


def _length(loop: Op, makers: Makers) -> Value | None:
    """The number of steps, where the loop is of this form."""
    trips, going = loop.operands[:2]
    (body,) = loop.blocks
    endless = constant(trips, makers)
    first, again = makers.get(going), makers.get(body.terminator.operands[0])
    if not isinstance(endless, int) or endless < opdefs.MAX_TRIPS or not first or not again:
        return None
    if first.name != "py.lt" or again.name != "py.lt":
        return None
    start, length = first.operands
    after, same = again.operands
    step = makers.get(after)
    counts = (
        step is not None
        and step.name == "py.add"
        and step.operands[0] is body.args[0]
        and constant(step.operands[1], makers) == 1
    )
    fixed = length.type == t.INT and same is length and constant(start, makers) == 0
    return length if counts and fixed else None
