"""Simplifies bools: `if c: True else: False` is c, `not (a >= b)` is `a < b`, and a flag that ends
a loop once it is set is False in every step.

In, out: a Function. Invariant: each bool has the same value. A loop that is left by `break`, or
that runs until `done`, then has the condition of a `while`.

    %done.1 = loop(%endless, %true, %false):          loop(%endless, %true):
      block(%i, %done):                                 block(%i):
        %end = py.ge(%k, %n)
        %done.2 = if(%end): yield(%true)          →
                  else: yield(%done)
        %go = py.not(%done.2)                             %go = py.lt(%k, %n)
        yield(%go, %done.2)                               yield(%go)
"""

from __future__ import annotations

from typing import Final

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.passes.ir_queries import Makers, constant, final, make_constant, makers_of
from lowtide.passes.run import only_with

_OPPOSITE: Final = {
    "py.lt": "py.ge", "py.ge": "py.lt", "py.gt": "py.le", "py.le": "py.gt",
    "py.eq": "py.ne", "py.ne": "py.eq",
}  # fmt: skip


@only_with("loop")
def simplify_conditions(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    truths = _Conditions(makers_of(result))
    truths.block(result.block)
    for op in result.walk():
        op.operands = [final(v, truths.same) for v in op.operands]
    return result


class _Conditions:
    def __init__(self, makers: Makers) -> None:
        self.makers = makers
        self.same: dict[Value, Value] = {}

    def block(self, block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            if op.name == "loop":
                self.loop(op)
            for inner in op.blocks:
                self.block(inner)
            kept += [op, *self.choice(op)] if op.name == "if" else [self.negation(op)]
        block.ops = kept

    def loop(self, op: Op) -> None:
        """Replace a carried flag in the body by the value that the loop's condition requires."""
        (body,) = op.blocks
        going, *yielded = body.terminator.operands
        maker = self.makers.get(going)
        is_negated = maker is not None and maker.name == "py.not"
        flag = maker.operands[0] if maker is not None and is_negated else going
        rows = zip(op.operands[2:], body.args[1:], yielded, strict=True)
        for init, arg, after in rows:
            if after is flag and constant(init, self.makers) is (not is_negated):
                known = Value(arg.name, t.BOOL)
                body.ops.insert(0, make_constant(known, not is_negated, op))
                self.makers[known] = body.ops[0]
                self.same[arg] = known

    def choice(self, op: Op) -> list[Op]:
        """New negations of an `if`'s condition, for results that are its negation."""
        condition = final(op.operands[0], self.same)
        if condition.type != t.BOOL:
            return []
        ends = (block.terminator.operands for block in op.blocks)
        opposite = Value("", t.BOOL)
        made: list[Op] = []
        for result, *chosen in zip(op.results, *ends, strict=True):
            answers = [constant(final(v, self.same), self.makers) for v in chosen]
            if answers == [True, False] and all(type(a) is bool for a in answers):
                self.same[result] = condition
            elif answers == [False, True] and all(type(a) is bool for a in answers):
                self.same[result] = opposite
                made = [Op(name="py.not", operands=[condition], results=[opposite], loc=op.loc)]
                self.makers[opposite] = made[0]
        return [self.negation(x) for x in made]

    def negation(self, op: Op) -> Op:
        """Return `not (a < b)` of ints as a comparison."""
        if op.name != "py.not":
            return op
        operand = final(op.operands[0], self.same)
        maker = self.makers.get(operand)
        if maker is None:
            return op
        if maker.name == "py.not":
            self.same[op.result] = maker.operands[0]
        elif maker.name in _OPPOSITE and all(v.type == t.INT for v in maker.operands):
            op.name, op.operands = _OPPOSITE[maker.name], list(maker.operands)
        return op
