"""Copies constants into each region that reads them, so that its kernels know their values.

In, out: a Function. A constant that is made before an op that ends a region, and read after it, is
copied behind that op:

    %1 = const {value=1}                      %1 = const {value=1}
    %a = torch.add(%x, %y, %1)                %a = torch.add(%x, %y, %1)
    %b = call_torch(%a) {target=lgamma}       %b = call_torch(%a) {target=lgamma}
    %c = torch.add(%b, %y, %1)          →     %2 = const {value=1}
                                              %c = torch.add(%b, %y, %2)

Otherwise the second region would receive it as a runtime number, and compute x + n * y.
"""

from __future__ import annotations

from dataclasses import replace

from lowtide.ir.core import Block, Function, Op, Value, with_block
from lowtide.specialise.region_boundaries import ends_region


def with_near_constants(function: Function) -> Function:
    """See the module's text: in the outer block; what a loop's steps read is theirs."""
    known: dict[Value, Op] = {}
    near: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in function.block.ops:
        is_end = bool(ends_region(op))
        if not is_end and not op.blocks:
            for v in dict.fromkeys(op.operands):
                if v in known and v not in near:
                    near[v] = Value(v.name, v.type)
                    ops.append(replace(known[v], results=[near[v]]))
            op = replace(op, operands=[near.get(v, v) for v in op.operands])
        if op.name == "const":
            known[op.result] = op
            near[op.result] = op.result
        if is_end:
            near.clear()
        ops.append(op)
    return with_block(function, Block(function.block.args, ops))
