"""Sums what a mask selects without selecting it: `d[mask].sum()`, `d[mask].mean()`.

In, out: a Function. Invariant: only sums and means of all that is selected read the selection, and
nothing is changed in place in between.

    %1: Tensor = torch.getitem(%d, %mask)
    %2: Tensor = torch.mean(%1, None, False, None)   →   %2: Tensor = torch.masked_mean(%d, %mask)

A kernel can then compute the mask and the values; the selection has a size that depends on the
data, and would end a region. An index that is no mask is gathered, as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.ir.differentiated import differentiated
from lowtide.passes.ir_queries import Makers, constant, makers_of, users_of

_SUMS: Final = {"torch.sum": "torch.masked_sum", "torch.mean": "torch.masked_mean"}
_OF_ALL: Final = [None, False, None]  # dims, keepdim, dtype


def sum_masked(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    makers, users = makers_of(result), users_of(result)
    kept_as_they_are = differentiated(result)

    def visit(block: Block) -> None:
        selections: dict[Value, Op] = {}
        for pos, op in enumerate(block.ops):
            for inner in op.blocks:
                visit(inner)
            if _selects(op) and op.result not in kept_as_they_are:
                readers = users[op.result]
                if readers and all(_sums(r, makers) for r in readers):
                    last = _last(block.ops, readers)
                    if last is not None and _is_undisturbed(block.ops[pos:last], makers):
                        selections[op.result] = op
        for op in block.ops:
            made = selections.get(op.operands[0]) if op.operands else None
            if made is not None:
                op.name, op.operands = _SUMS[op.name], list(made.operands)
        block.ops = [op for op in block.ops if not (op.results and op.results[0] in selections)]

    visit(result.block)
    return result


def _selects(op: Op) -> bool:
    is_by_one = op.name == "torch.getitem" and op.attrs["spec"] == ("tensor",)
    return is_by_one and op.operands[1].type == t.TENSOR  # not a list, not None


def _sums(op: Op, makers: Makers) -> bool:
    return op.name in _SUMS and [constant(v, makers) for v in op.operands[1:]] == _OF_ALL


def _last(ops: Sequence[Op], readers: Sequence[Op]) -> int | None:
    """Return the position of the last reader, None if one is in another block."""
    places = {id(op): pos for pos, op in enumerate(ops)}
    found = [places.get(id(op)) for op in readers]
    return None if None in found else max(pos for pos in found if pos is not None)


def _is_undisturbed(ops: Sequence[Op], makers: Makers) -> bool:
    return all(not op.blocks and opdefs.is_removable(op, makers) for op in ops)
