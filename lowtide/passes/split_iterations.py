"""Splits a loop into parts in which the conditions of its branches are known.

In: a loop without an early exit, and the known conditions. Out: the ops that replace the loop: the
same steps in the same order.

    first={%c: True}, each=[{%c: False}]    the first step is peeled
    each=[{%c: True}], last={%c: False}     the last step is peeled
    each=[{%c: True}, {%c: False}]          the loop is unrolled by two; a remaining step follows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value
from lowtide.passes.ir_queries import copied_ops, if_it_runs, make_constant

Known: TypeAlias = Mapping[Value, bool]  # of conditions of branches


def split_iterations(
    loop: Op, *, first: Known | None = None, each: Sequence[Known], last: Known | None = None
) -> list[Op]:
    """Return the ops that replace the loop. `first`, `last`: conditions known in that step, which
    is peeled. `each`: those known in each step of an unrolled iteration (a *round*).

    At most one of these is allowed: `first`, `last`, more than one row of `each`."""
    assert (first is not None) + (last is not None) + (len(each) > 1) <= 1
    return _Split(loop, first, each, last).ops()


def replace_loops(block: Block, parts: Callable[[Op, list[Op]], list[Op] | None]) -> bool:
    """Replace loops, inner ones first, by what `parts` returns for a loop and the ops before it. If
    it returns None, the loop stays. Return whether a loop was replaced."""
    kept: list[Op] = []
    found = False
    for op in block.ops:
        for inner in op.blocks:
            found |= replace_loops(inner, parts)
        made = parts(op, kept) if op.name == "loop" else None
        found |= made is not None
        kept += [op] if made is None else made
    block.ops = kept
    return found


class _Split:
    def __init__(
        self, loop: Op, first: Known | None, each: Sequence[Known], last: Known | None
    ) -> None:
        self.loop = loop
        (self.body,) = loop.blocks
        self.first, self.each, self.last = first, each, last

    def ops(self) -> list[Op]:
        """Return the ops that replace the loop."""
        ops: list[Op] = []
        trips, going, *carried = self.loop.operands
        args = [Value(a.name, a.type) for a in self.body.args[1:]]
        results = _like(self.loop.results)
        if self.first is not None:
            index = self._constant(ops, 0, self.body.args[0].name)
            going, carried = self._step(ops, index, carried, self.first)
            yielded = self.body.terminator.operands[1:]
            for arg, result, v in zip(args, results, yielded, strict=True):
                if not t.is_subtype(t.NONE, v.type):
                    arg.type = v.type  # None before the loop, but not after a step
                result.type = arg.type
        one = rounds = length = trips
        if self.first is not None or self.last is not None:
            one = self._constant(ops, 1)
            rounds = self._number(ops, "py.sub", trips, one)
        period = len(self.each)
        if period > 1:
            length = self._constant(ops, period)
            rounds = self._number(ops, "py.floordiv", trips, length)
        ops.append(self._op("loop", [rounds, going, *carried], results, [self._round(args)]))
        if period > 1:
            left = self._number(ops, "py.mod", trips, length)
            done = self._number(ops, "py.mul", rounds, length)
            results = self._rest(ops, left, done, results)
        if self.last is not None:
            index = self._number(ops, "py.sub", trips, one, name=self.body.args[0].name)
            _, results = self._step(ops, index, results, self.last)
        return if_it_runs(self.loop, ops, results)

    def _round(self, args: list[Value]) -> Block:
        """Return a block with the steps of one round. Its index is the number of the round."""
        ops: list[Op] = []
        name = self.body.args[0].name
        index = begin = Value(name if self.first is None else "", t.INT)
        period, skipped = len(self.each), int(self.first is not None)
        if period > 1:
            begin = self._number(ops, "py.mul", index, self._constant(ops, period))
        going, carried = index, args
        for turn, known in enumerate(self.each):
            step = begin
            if turn + skipped:
                more = self._constant(ops, turn + skipped)
                step = self._number(ops, "py.add", begin, more, name=name)
            going, carried = self._step(ops, step, carried, known)
        ops.append(self._op("yield", [going, *carried], []))
        return Block([index, *args], ops)

    def _rest(
        self, ops: list[Op], left: Value, done: Value, carried: list[Value], turn: int = 0
    ) -> list[Value]:
        """Emit the steps of the incomplete last round, from step `turn` on, in nested `if`s: step
        `turn` is executed if more than `turn` steps are left."""
        limit = self._constant(ops, turn)
        is_left = self._number(ops, "py.gt", left, limit, kind=t.BOOL)
        inner: list[Op] = []
        index = done
        if turn:
            more = self._constant(inner, turn)
            index = self._number(inner, "py.add", done, more, name=self.body.args[0].name)
        _, found = self._step(inner, index, carried, self.each[turn])
        if turn + 2 < len(self.each):
            found = self._rest(inner, left, done, found, turn + 1)
        results = _like(self.loop.results)
        blocks = [
            Block([], [*made, self._op("yield", list(values), [])])
            for made, values in ((inner, found), ([], carried))
        ]
        ops.append(self._op("if", [is_left], results, blocks))
        return results

    def _step(
        self, ops: list[Op], index: Value, carried: list[Value], known: Known
    ) -> tuple[Value, list[Value]]:
        """Emit step `index`. Return whether the loop goes on, and the carried values."""
        mapping = dict(zip(self.body.args, (index, *carried), strict=True))
        ops += copied_ops(self.body, mapping, known)
        going, *found = ops.pop().operands
        return going, found

    def _constant(self, ops: list[Op], value: int, name: str = "") -> Value:
        ops.append(make_constant(Value(name, t.INT), value, self.loop))
        return ops[-1].result

    def _number(
        self, ops: list[Op], op: str, a: Value, b: Value, name: str = "", kind: t.Type = t.INT
    ) -> Value:
        ops.append(self._op(op, [a, b], [Value(name, kind)]))
        return ops[-1].result

    def _op(
        self, name: str, operands: list[Value], results: list[Value], blocks: Sequence[Block] = ()
    ) -> Op:
        return Op(
            name=name,
            operands=operands,
            results=results,
            blocks=list(blocks),
            loc=self.loop.loc,
        )


def _like(values: Sequence[Value]) -> list[Value]:
    return [Value(v.name, v.type) for v in values]
