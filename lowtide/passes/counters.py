"""Induction variables: an int to which each step adds the same is computed from the step's number.

In, out: a Function. Invariant: the variable has the same value in each step.

    %x, %k = loop(%n, %true, %x0, %a):             %x = loop(%n, %true, %x0):
      block(%i, %y, %k1):                            block(%i, %y):
        %z = torch.getitem(%y, %k1)          →         %1 = py.mul(%i, %2)
        %k2: int = py.add(%k1, %2)                     %k1: int = py.add(%a, %1)
        yield(%true, %z, %k2)                          %z = torch.getitem(%y, %k1)
    …%k…                                           …%a + 2 * %n…

After a loop that may end early, the carried value is read.
"""

from __future__ import annotations

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.passes.evolution import evolution
from lowtide.passes.ir_queries import Makers, constant, final, make_constant, makers_of
from lowtide.passes.run import only_with


@only_with("loop")
def count_by_steps(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    makers, same = makers_of(result), dict[Value, Value]()
    _visit(result.block, makers, same)
    for op in result.walk():
        op.operands = [final(v, same) for v in op.operands]
    return result


def _visit(block: Block, makers: Makers, same: dict[Value, Value]) -> None:
    kept: list[Op] = []
    for op in block.ops:
        kept.append(op)
        if op.name == "loop":
            kept += _formulas(op, makers, same)
        for inner in op.blocks:
            _visit(inner, makers, same)
    block.ops = kept


def _formulas(loop: Op, makers: Makers, same: dict[Value, Value]) -> list[Op]:
    """Replace the counters in the body. Return the ops that compute their values after the loop."""
    trips, going, *inits = loop.operands
    (body,) = loop.blocks
    goes_on, *yielded = body.terminator.operands
    is_counted = constant(going, makers) is True and constant(goes_on, makers) is True
    before: list[Op] = []
    after: list[Op] = []
    rows = zip(inits, body.args[1:], yielded, loop.results, strict=True)
    for init, arg, value, result in rows:
        if not arg.type == init.type == t.INT:
            continue
        step = evolution(value, arg, makers).ahead
        if not step:
            continue
        before += _number(arg, init, body.args[0], step, loop, makers, same)
        if is_counted:
            zero, steps = Value("", t.INT), Value("", t.INT)
            after.append(make_constant(zero, 0, loop))
            after.append(Op(name="py.max", operands=[trips, zero], results=[steps], loc=loop.loc))
            after += _number(result, init, steps, step, loop, makers, same)
    body.ops[:0] = before
    return after


def _number(
    value: Value,
    init: Value,
    steps: Value,
    step: int,
    loop: Op,
    makers: Makers,
    same: dict[Value, Value],
) -> list[Op]:
    """Return `init + steps * step`, which replaces `value`."""
    ops: list[Op] = []
    found = steps
    if step != 1:
        factor, found = Value("", t.INT), Value("", t.INT)
        ops.append(make_constant(factor, step, loop))
        ops.append(Op(name="py.mul", operands=[steps, factor], results=[found], loc=loop.loc))
    if constant(init, makers) != 0:
        total = Value(value.name, t.INT)
        ops.append(Op(name="py.add", operands=[init, found], results=[total], loc=loop.loc))
        found = total
    same[value] = found
    makers.update((op.result, op) for op in ops)
    return ops
