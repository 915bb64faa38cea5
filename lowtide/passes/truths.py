"""An `if` that only chooses between True and False is its condition; `not (a >= b)` is `a < b`; a
flag that ends a loop once it is set is not set in any step.

In, out: a Function. Always holds: the same truths. So a loop that is left by `break`, or runs until
`done`, asks what a `while` asks.

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
from lowtide.passes.making import Makers, constant, final, make_constant, makers_of
from lowtide.passes.run import about

_OPPOSITE: Final = {
    "py.lt": "py.ge", "py.ge": "py.lt", "py.gt": "py.le", "py.le": "py.gt",
    "py.eq": "py.ne", "py.ne": "py.eq",
}  # fmt: skip


@about("loop")
def simplify_truths(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    truths = _Truths(makers_of(result))
    truths.block(result.block)
    for op in result.walk():
        op.operands = [final(v, truths.same) for v in op.operands]
    return result


class _Truths:
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
        """What its condition says of the flags that it carries holds in each step."""
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
        """Negations of an `if`'s condition, for results that are this."""
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
        """`not (a < b)`, of ints, as a comparison."""
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
