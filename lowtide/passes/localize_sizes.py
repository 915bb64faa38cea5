"""Copies a size computation to directly before a loop, if another loop lies in between.

In, out: a Function. Invariant: no op changes the size of a tensor; otherwise nothing is done.

    %n: int = torch.size.dim(%x, %0)                %n: int = torch.size.dim(%x, %0)
    %a = loop(%n, …)                                %a = loop(%n, …)
    %b = loop(%n, …)                           →    %m: int = torch.size.dim(%x, %0)
                                                    %b = loop(%m, …)

Each loop, and each branch, may become a region of its own. A region that receives `n` as an int no
longer knows that it is `x.size(0)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lowtide.ir.core import Block, Function, Op, Value, clone, clone_op, free_values
from lowtide.passes.ir_queries import RESIZING, Makers, makers_of

_OF_SIZES: Final = ("torch.size.dim", "py.add", "py.sub", "py.mul", "py.floordiv", "const")


def localize_sizes(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    if not any(op.attrs.get("target") in RESIZING for op in result.walk()):
        _ask(result.block, makers_of(result), set())
    return result


def _ask(block: Block, makers: Makers, outside: set[Value]) -> None:
    """Read sizes within branches. `outside`: values from before the `if` whose branch the block
    is."""
    kept: list[Op] = []
    before = set(outside)  # also values made before the last loop of this block
    for op in block.ops:
        made = {r for x in kept for r in x.results}
        for inner in op.blocks:
            _ask(inner, makers, outside | made if op.name == "if" else set())
        if op.name == "loop":
            stand_ins: dict[Value, Value] = {}
            for value in free_values([op]):
                if value in before and _is_of_sizes(value, makers):
                    kept += _copies(value, makers, stand_ins)
            _replace(op, stand_ins)
            before.update(r for x in kept for r in x.results)
        kept.append(op)
    block.ops = kept


def _is_of_sizes(value: Value, makers: Makers) -> bool:
    """Return True if the number is computed from sizes and constants only."""
    maker = makers.get(value)
    if maker is None or maker.name not in _OF_SIZES:
        return False
    return maker.name == "torch.size.dim" or all(_is_of_sizes(v, makers) for v in maker.operands)


def _copies(value: Value, makers: Makers, stand_ins: dict[Value, Value]) -> Iterator[Op]:
    """Copies of the ops that compute a number."""
    maker = makers[value]
    if value in stand_ins:
        return
    for operand in maker.operands:
        if operand in makers and makers[operand].name in _OF_SIZES:
            yield from _copies(operand, makers, stand_ins)
    made = clone_op(maker, stand_ins)
    stand_ins[value] = made.result
    yield made


def _replace(op: Op, stand_ins: dict[Value, Value]) -> None:
    op.operands = [stand_ins.get(v, v) for v in op.operands]
    for block in op.blocks:
        for inner in block.ops:
            _replace(inner, stand_ins)
