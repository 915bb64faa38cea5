"""Rerolls: makes a loop of ops that an unrolled Python loop left.

In, out: a Function. Invariant: the same ops run in the same order on the same values, except for
constants and views of tensors that nothing writes.

    %a = torch.getitem(%x, %0)                 %outs = list.make()
    %1 = torch.mul(%h, %a)                     %h9 = loop(%n, %true, %h)
    %b = torch.getitem(%x, %1)                   block(%i, %g):
    %2 = torch.mul(%1, %b)              →          %a = torch.getitem(%x, %i)
    …                                              %1 = torch.mul(%g, %a)
    %4 = torch.mul(%3, %d)                         list.append(%outs, %1)
    torch.stack([%1, %2, %3, %4])                  yield(%true, %1)
                                               torch.stack(%outs)

PyTorch's capture and `lt.trace` record what a Python loop did, not the loop. Ops that repeat with a
period are candidates (`repeats`). `unrolled` gives each operand as a function of the iteration; if
it cannot, or if a value of a middle iteration is read outside, nothing is done. After a loop was
found, the search repeats, since an inner loop is one op of the outer loop.
"""

from __future__ import annotations

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, clone_op
from lowtide.ir.types import ListType
from lowtide.passes.repeats import Collected, Plan, Search
from lowtide.passes.straight import Straight, slots
from lowtide.passes.unrolled import Carried, Counted, Fixed, Local, Made, Source


def reroll(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    changed = _reroll(result.block)
    return result if changed else fn


def _reroll(block: Block) -> bool:
    changed = False
    for inner in [b for op in block.ops for b in op.blocks]:
        changed |= _reroll(inner)
    while _once(block):
        changed = True
    return changed


def _once(block: Block) -> bool:
    straight = Straight(block)
    plans = list(Search(straight).plans())
    if plans:
        block.ops = _Writer(straight, plans).ops()
    return bool(plans)


class _Writer:
    """The ops of the block, runs replaced."""

    def __init__(self, straight: Straight, plans: list[Plan]) -> None:
        self.straight = straight
        self.plans = {p.run.start: p for p in plans}
        self.lists = {id(x.op): x for p in plans for x in p.lists}
        self.grown: dict[int, Value] = {}  # by list op
        self.stand_ins: dict[Value, Value] = {}
        self.floating = dict(straight.floating)
        self.placed: set[Value] = set()
        self.kept: list[Op] = []

    def ops(self) -> list[Op]:
        """Return the block's new ops."""
        k = 0
        while k < len(self.straight.ops):
            plan = self.plans.get(k)
            if plan is not None:
                self.loop(plan)
                k = plan.stop
                continue
            op = self.straight.ops[k]
            listed = self.lists.get(id(op))
            if listed is not None:
                self.list_op(listed)
            else:
                self.keep(op)
            k += 1
        return self.kept

    def keep(self, op: Op) -> None:
        """Adds an op, floating ones that it reads before it."""
        for slot in slots(op):
            slot.op.operands[slot.operand] = self.now(slot.value)
        self.kept.append(op)

    def now(self, value: Value) -> Value:
        """Return the value that replaces an old one. Emits a floating op at its first use."""
        value = self.stand_ins.get(value, value)
        op = self.floating.get(value)
        if op is not None and value not in self.placed:
            self.placed.update(op.results)
            self.keep(op)
        return value

    def constant(self, value: object, type_: t.Type, like: Op) -> Value:
        made = Op(name="const", attrs={"value": value}, results=[Value("", type_)], loc=like.loc)
        self.kept.append(made)
        return made.result

    def list_op(self, listed: Collected) -> None:
        """Replace an op that makes a list by ops that add the items that follow the loop."""
        op, xs = listed.op, self.grown[id(listed.op)]
        for v in listed.after:
            self.keep(_append(xs, v, op))
        if not listed.is_reversed:
            self.stand_ins[op.result] = xs
            return
        none = self.constant(None, t.NONE, op)
        operands = [xs, none, none, self.constant(-1, t.INT, op)]
        made = Value(op.result.name, xs.type)
        self.stand_ins[op.result] = made
        self.kept.append(Op(name="list.slice", operands=operands, results=[made], loc=op.loc))

    def loop(self, plan: Plan) -> None:
        """Emit the run as a loop."""
        first = self.straight.ops[plan.run.start]
        for listed in plan.lists:
            name, type_ = listed.op.result.name, listed.op.result.type
            xs = Value(name, type_ if isinstance(type_, ListType) else ListType(t.TENSOR))
            self.grown[id(listed.op)] = xs
            self.keep(
                Op(
                    name="list.make",
                    operands=list(listed.before),
                    results=[xs],
                    loc=listed.op.loc,
                )
            )
        body = _Body(self, plan, first)
        trips = self.constant(plan.run.count, t.INT, first)
        self.kept.append(
            Op(
                name="loop",
                operands=[trips, body.going, *body.firsts],
                results=body.results,
                blocks=[body.block],
                loc=first.loc,
            )
        )


class _Body:
    """The block of a loop: the ops of the first iteration, their operands by their sources."""

    def __init__(self, writer: _Writer, plan: Plan, like: Op) -> None:
        self.writer = writer
        self.plan = plan
        self.like = like
        self.going = writer.constant(True, t.BOOL, like)
        self.index = Value("i", t.INT)
        self.block = Block([self.index])
        self.firsts: list[Value] = []
        self.results: list[Value] = []
        self._made: dict[Source, Value] = {}
        self._carried: list[Source] = []  # what the next iteration starts from
        self._fill()

    def _fill(self) -> None:
        run = self.plan.run
        for offset, sources in enumerate(self.plan.sources):
            op = self.writer.straight.ops[run.start + offset]
            made = clone_op(op, {})
            operands = [self.value(s) for s in sources]
            for slot, value in zip(slots(made), operands, strict=True):
                slot.op.operands[slot.operand] = value
            self.block.ops.append(made)
            self._made.update((Local(offset, k), r) for k, r in enumerate(made.results))
        for listed in self.plan.lists:
            xs = self.writer.grown[id(listed.op)]
            for item in listed.items:
                self.block.ops.append(_append(xs, self.value(item), self.like))
        k = 0
        while k < len(self._carried):  # what is carried for two iterations is carried twice
            self.value(self._carried[k])
            k += 1
        for source, value in self.plan.ends.items():
            self._end(source, value)
        operands = [self.going, *map(self.value, self._carried)]
        self.block.ops.append(Op(name="yield", operands=operands, loc=self.like.loc))

    def _end(self, source: Source, value: Value) -> None:
        """Make the value of the last iteration a result of the loop."""
        if source not in self._carried:
            undefined = Value("", t.NEVER)
            self.writer.kept.append(Op(name="undef", results=[undefined], loc=self.like.loc))
            self._carry(undefined, source, value)
        self.writer.stand_ins[value] = self.results[self._carried.index(source)]

    def _carry(self, first: Value, then: Source, like: Value) -> Value:
        argument = Value(like.name, like.type)
        self.firsts.append(first)
        self.block.args.append(argument)
        self.results.append(Value(like.name, like.type))
        self._carried.append(then)
        return argument

    def value(self, source: Source) -> Value:
        """Return the value of a source in the body of the loop."""
        if source not in self._made:
            self._made[source] = self._value(source)
        return self._made[source]

    def _value(self, source: Source) -> Value:
        match source:
            case Fixed(value):
                return self.writer.now(value)
            case Counted(start, step):
                return self._counted(start, step)
            case Made(op, operands):
                made = clone_op(op, {})
                made.operands = [self.value(s) for s in operands]
                self.block.ops.append(made)
                return made.result
            case Carried(first, then):
                return self._carry(self.writer.now(first), then, first)
            case Local():
                raise AssertionError("a value of a later op of the iteration")

    def _counted(self, start: int, step: int) -> Value:
        found = self.index
        if step != 1:
            found = self._arithmetic("py.mul", found, step)
        return found if start == 0 else self._arithmetic("py.add", found, start)

    def _arithmetic(self, name: str, a: Value, number: int) -> Value:
        operands = [a, self.writer.constant(number, t.INT, self.like)]
        made = Op(name=name, operands=operands, results=[Value("", t.INT)], loc=self.like.loc)
        self.block.ops.append(made)
        return made.result


def _append(xs: Value, item: Value, like: Op) -> Op:
    return Op(name="list.append", operands=[xs, item], results=[Value("", t.NONE)], loc=like.loc)
