"""A list that each step copies and extends becomes one list that each step appends to.

In, out: a Function. Invariant: nothing else refers to the list that the loop starts with, and
nothing in the loop reads a list of an earlier step.

    outs = [h] + outs            →      fresh.append(h)               outs = fresh[::-1]
    outs = [*outs, h]            →      fresh.append(h)               outs = fresh
    hs = hs + [f(hs[-1])]        →      fresh.append(f(fresh[-1]))    hs = fresh
    outs += [h]                  →      outs.append(h)
    torch.stack(xs[::-1])        →      torch.stack(xs).flip(0)

Then the loop carries no list, and the items can become the rows of one tensor.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, free_values
from lowtide.ir.types import ListType, TupleType
from lowtide.passes.ir_queries import make_constant, makers_of, reverses_list, users_of, with_inner

_READERS: Final = ("torch.stack", "list.get", "py.len", "list.slice")
_LITERALS: Final = ("list.make", "tuple.make")
_OWN: Final = (*_READERS, "list.append", "list.extend")


def grow_in_place(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _Lists(result).block(result.block)
    return result


class _Reversed(NamedTuple):
    """A list that holds the items of another, from either end."""

    of: Value
    is_reversed: bool


class _Lists:
    def __init__(self, fn: Function) -> None:
        self.makers = makers_of(fn)
        self.uses = Counter(v for op in fn.walk() for v in op.operands)
        self.users = users_of(fn)
        self.stand_ins: dict[Value, Value] = {}

    def block(self, block: Block) -> None:
        kept: list[Op] = []
        turned: dict[Value, _Reversed] = {}  # while neither has changed
        for op in block.ops:
            op.operands = [self.stand_ins.get(v, v) for v in op.operands]
            for inner in op.blocks:
                self.block(inner)
            before: list[Op] = []
            after: list[Op] = []
            if op.name == "torch.stack" and op.operands[0] in turned:
                after = self.flipped(op, turned[op.operands[0]])
            elif op.name == "loop":
                for place in reversed(range(2, len(op.operands))):
                    self.grow(op, place, before, after)
            touched: set[Value] = set()
            if op.name not in _READERS:
                touched.update(op.operands, free_values([op]))
            turned = {r: x for r, x in turned.items() if touched.isdisjoint((r, x.of))}
            for made in (op, *after):
                if self.is_private_reversed(made):
                    xs = made.operands[0]
                    below = turned.get(xs, _Reversed(xs, False))
                    turned[made.result] = _Reversed(below.of, not below.is_reversed)
            added = self.extended_by(op)
            kept += [*before, *([op] if added is None else added), *after]
        block.ops = kept

    def grow(self, loop: Op, place: int, before: list[Op], after: list[Op]) -> None:
        """Makes a carried list one that is added to, if it is built so."""
        (body,) = loop.blocks
        carried, end = body.args[place - 1], body.terminator
        start = self.makers.get(loop.operands[place])
        grown = self.makers.get(end.operands[place - 1])
        if not isinstance(carried.type, ListType) or start is None or grown is None:
            return
        if start.name != "list.make" or self.uses[start.result] != 1:
            return
        if grown.name != "py.add" or grown not in body.ops:
            return
        copies = [self.copy_of(v) for v in grown.operands]
        parts = [
            v if op is None else op.operands[0]
            for v, op in zip(grown.operands, copies, strict=True)
        ]
        if carried not in parts:
            return
        at_end = parts[0] is carried
        position = body.ops.index(grown)
        reads = _uses(body.ops[:position], carried) + _uses(body.ops[position:-1], grown.result)
        reads = [op for op in reads if op not in copies] if at_end else []
        if len(reads) + 2 != self.uses[carried] + self.uses[grown.result]:
            return  # the old list is read after it has grown, say
        if any(op.name not in _READERS for op in reads):
            return
        added, copied = self.makers.get(parts[at_end]), copies[at_end] is not None
        literals = _LITERALS if copied else ("list.make",)  # list + tuple is an error
        if added is None or added.name not in literals or self.uses[added.result] != 1:
            return
        unread = [op for op in copies if op is not None]
        if not all(op in body.ops for op in unread):
            return
        fresh = Value(carried.name, loop.results[place - 2].type)
        first = list(start.operands) if at_end else start.operands[::-1]
        made = Op(name="list.make", operands=first, results=[fresh], loc=start.loc)
        self.makers[fresh] = made
        before.append(made)
        for op in reads:
            same = (carried, grown.result)
            op.operands = [fresh if v in same else v for v in op.operands]
        self.users[fresh] += reads
        items = added.operands if at_end else added.operands[::-1]
        body.ops[:] = [op for op in body.ops if op not in unread]
        position = body.ops.index(grown)
        body.ops[position : position + 1] = _appends(fresh, items, grown)
        result = loop.results[place - 2]
        for values, index in ((loop.operands, place), (body.args, place - 1)):
            del values[index]
        del end.operands[place - 1], loop.results[place - 2]
        if at_end:
            self.stand_ins[result] = fresh
            self.users[fresh] += self.users[result]
        else:
            after += self.reverse_list(fresh, result, loop)

    def copy_of(self, value: Value) -> Op | None:
        """Return the op that copies a list, if only one op reads the copy: `[*xs, h]` copies xs."""
        maker = self.makers.get(value)
        is_copy = maker is not None and maker.name == "list.of" and self.uses[value] == 1
        return maker if is_copy else None

    def extended_by(self, op: Op) -> list[Op] | None:
        """Return `xs += [a, b]` as ops that append each item, or None."""
        if op.name != "list.extend" or self.uses[op.result]:
            return None
        xs, more = op.operands
        made = self.makers.get(more)
        if made is None or made.name != "list.make" or self.uses[more] != 1:
            return None
        return _appends(xs, made.operands, op)

    def reverse_list(self, xs: Value, result: Value, like: Op) -> list[Op]:
        none, step = Value("", t.NONE), Value("", t.INT)
        found = [
            make_constant(none, None, like),
            make_constant(step, -1, like),
            Op(
                name="list.slice",
                operands=[xs, none, none, step],
                results=[result],
                loc=like.loc,
            ),
        ]
        self.makers.update((r, op) for op in found for r in op.results)
        return found

    def is_private_reversed(self, op: Op) -> bool:
        """Return whether the op is `xs[::-1]` of a private list."""
        return reverses_list(op, self.makers) and self.is_private(op.operands[0])

    def is_private(self, xs: Value) -> bool:
        """Return whether the function makes the list, and nothing else refers to it."""
        maker = self.makers.get(xs)
        users = self.users[xs]
        return (
            maker is not None
            and maker.name in ("list.make", "list.slice")
            and all(xs not in u.operands or u.name in _OWN for u in users)
            and not any(xs in u.operands[1:] for u in users)
        )

    def flipped(self, stack: Op, turned: _Reversed) -> list[Op]:
        """Stack the rows in the order of the original list. Return the ops that flip the result."""
        dim = stack.operands[1]
        stack.operands = [turned.of, dim]
        if not turned.is_reversed:
            return []
        (result,) = stack.results
        stack.results = [Value("", result.type)]
        dims = Value("", TupleType((t.INT,)))
        return [
            Op(name="tuple.make", operands=[dim], results=[dims], loc=stack.loc),
            Op(
                name="torch.flip",
                operands=[stack.result, dims],
                results=[result],
                loc=stack.loc,
            ),
        ]


def _uses(ops: list[Op], value: Value) -> list[Op]:
    """Return the ops that read a value, those in blocks included, once for each operand."""
    return [op for op in with_inner(*ops) for v in op.operands if v is value]


def _appends(xs: Value, items: list[Value], like: Op) -> list[Op]:
    return [
        Op(name="list.append", operands=[xs, v], results=[Value("", t.NONE)], loc=like.loc)
        for v in items
    ]
