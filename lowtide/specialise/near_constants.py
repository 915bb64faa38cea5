"""Copies constants into each region that reads them, so that its kernels know their values.

In, out: a Function. A constant, or a tuple of constants, that is made before an op that ends a
region, and read after it, is copied behind that op:

    %1 = const {value=1}                      %1 = const {value=1}
    %a = torch.add(%x, %y, %1)                %a = torch.add(%x, %y, %1)
    %b = call_torch(%a) {target=lgamma}       %b = call_torch(%a) {target=lgamma}
    %c = torch.add(%b, %y, %1)          →     %2 = const {value=1}
                                              %c = torch.add(%b, %y, %2)

Otherwise the second region would receive it as a runtime number, and compute x + n * y. A region
that records gradients may end between any two ops of a long block: there each op has copies of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from lowtide.ir.core import Block, Function, Op, Value, with_block
from lowtide.specialise.region_boundaries import ends_region, only_prepares

_LONG: Final = 32  # ops that compute something: fewer are one region, if nothing else ends it


def with_near_constants(function: Function) -> Function:
    """Return the function with constants near their users in the outer block. Loops keep theirs."""
    is_long = sum(not only_prepares(op) for op in function.block.ops) > _LONG
    known: dict[Value, Op] = {}
    near: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in function.block.ops:
        is_end = bool(ends_region(op))
        is_constant = op.name == "const" or (
            op.name == "tuple.make" and known.keys() >= {*op.operands}
        )
        if is_constant:
            known[op.result] = op
            near[op.result] = op.result
        elif not is_end and not op.blocks:
            for v in op.operands:
                ops += _copies(v, known, near)
            op = replace(op, operands=[near.get(v, v) for v in op.operands])
        if is_end or (is_long and not is_constant):
            near.clear()
        ops.append(op)
    return with_block(function, Block(function.block.args, ops))


def _copies(value: Value, known: Mapping[Value, Op], near: dict[Value, Value]) -> Iterator[Op]:
    """Yield copies of the ops that make a constant."""
    if value in near or value not in known:
        return
    maker = known[value]
    for v in maker.operands:
        yield from _copies(v, known, near)
    near[value] = Value(value.name, value.type)
    operands = [near[v] for v in maker.operands]
    yield replace(maker, operands=operands, results=[near[value]])
