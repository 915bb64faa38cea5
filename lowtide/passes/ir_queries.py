"""Helpers of passes: which op makes a value, which ops use it, and small edits of blocks.

makers = makers_of(fn)          # value → the op whose result it is
users = users_of(fn)            # value → the ops that read it
constant(value, makers)         # 2, if the value is `const {value=2}`
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeAlias

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone_op, walk
from lowtide.ir.effects import Effects, constant, own_effects

Makers: TypeAlias = dict[Value, Op]
Users: TypeAlias = defaultdict[Value, list[Op]]
# what gives a tensor other sizes
RESIZING = {
    f"Tensor.{name}_"
    for name in ("resize", "resize_as", "set", "t", "transpose", "swapaxes", "squeeze", "unsqueeze")
} | {"Tensor.data.__set__"}


def makers_of(fn: Function) -> Makers:
    """Return the op of each result. Parameters and arguments of blocks have none."""
    return {r: op for op in fn.walk() for r in op.results}


def users_of(fn: Function) -> Users:
    """Return the ops that read each value, once for each operand."""
    found: Users = defaultdict(list)
    for op in fn.walk():
        for value in op.operands:
            found[value].append(op)
    return found


def final(value: Value, stand_ins: Mapping[Value, Value]) -> Value:
    """Return the last replacement of a value, following the chain."""
    while value in stand_ins:
        value = stand_ins[value]
    return value


def drop(block: Block, ops: Set[Op]) -> None:
    """Removes ops from a block and from the blocks inside it."""
    block.ops = [op for op in block.ops if op not in ops]
    for op in block.ops:
        for inner in op.blocks:
            drop(inner, ops)


def with_inner(*ops: Op) -> Iterator[Op]:
    """These ops, and those in their blocks."""
    return walk(Block([], list(ops)))


class Changes(enum.Flag):
    """The ways in which the ops of a function may change existing tensors."""

    NONE = 0
    VALUES = enum.auto()
    SIZES = enum.auto()


def changes_in(fn: Function, makers: Makers) -> Changes:
    """Return how the ops of the function may change existing tensors."""
    found = Changes.NONE
    for op in fn.walk():
        done = own_effects(op) if op.blocks else opdefs.effects_of(op, makers)
        if Effects.WRITES in done:
            found |= Changes.VALUES
        if op.attrs.get("target") in RESIZING or f"Tensor.{op.attrs.get('name')}" in RESIZING:
            found |= Changes.SIZES
    return found


def may_change(op: Op, changes: Changes) -> bool:
    """Return True if the op may give another result later, because it reads tensors that may
    change."""
    if opdefs.has_kind(op.name, ("size",)):
        return Changes.SIZES in changes
    reads = op.name.startswith("torch.") or any(v.type == t.TENSOR for v in op.operands)
    return reads and Changes.VALUES in changes


def make_constant(result: Value, value: object, like: Op) -> Op:
    """Return `%result = const(value)`"""
    return Op(name="const", attrs={"value": value}, results=[result], loc=like.loc)


def reverses_list(op: Op, makers: Makers) -> bool:
    """Return True for `xs[::-1]`."""
    if op.name != "list.slice":
        return False
    return [constant(v, makers) for v in op.operands[1:]] == [None, None, -1]


def copied_ops(body: Block, mapping: dict[Value, Value], known: Mapping[Value, bool]) -> list[Op]:
    """Copies of a body's ops with their operands mapped, and constants for `known` conditions."""
    made = [clone_op(op, mapping) for op in body.ops]
    answers = {mapping[c]: answer for c, answer in known.items()}
    for op in with_inner(*made):
        if len(op.results) == 1 and op.result in answers:
            op.name, op.operands, op.attrs = "const", [], {"value": answers[op.result]}
    return made


def if_it_runs(loop: Op, ops: list[Op], results: Sequence[Value]) -> list[Op]:
    """Replaces a loop: `if trips > 0`, the ops and `results`; else the loop's initial values."""
    trips, _, *inits = loop.operands
    none, runs = Value("", t.INT), Value("", t.BOOL)
    done = Op(name="yield", operands=list(results), loc=loop.loc)
    unchanged = Block([], [Op(name="yield", operands=list(inits), loc=loop.loc)])
    return [
        make_constant(none, 0, loop),
        Op(name="py.gt", operands=[trips, none], results=[runs], loc=loop.loc),
        Op(
            name="if",
            operands=[runs],
            results=loop.results,
            blocks=[Block([], [*ops, done]), unchanged],
            loc=loop.loc,
        ),
    ]
