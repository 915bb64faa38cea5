"""Chooses the branches whose conditions are known before the call, such as `if self.training`.

In: a Function with its values on the meta device. Out: a Function without these `if`s.

    if training:                   x = y + 1
        count.add_(1)        →
    x = y + 1
"""

from __future__ import annotations

from lowtide.budget.outer import Outer
from lowtide.errors import Loc
from lowtide.ir import opdefs
from lowtide.ir.aliases import written_by
from lowtide.ir.core import Block, Function, Op, Value, clone_op, with_block


def with_branches_chosen(outer: Outer) -> Function:
    """Return the function; the same one if no condition of an `if` is known."""
    mapping, ops, is_changed = dict[Value, Value](), list[Op](), False
    for op in outer.ops:
        condition = outer.known.get(op.operands[0]) if op.name == "if" else None
        if not isinstance(condition, bool) or op.operands[0] not in outer.fixed:
            ops.append(clone_op(op, mapping))
            continue
        is_changed = True
        branch = op.blocks[0 if condition else 1]
        ops += [clone_op(o, mapping) for o in branch.ops[:-1]]
        given = branch.terminator.operands
        mapping.update((r, mapping.get(v, v)) for r, v in zip(op.results, given, strict=True))
    if not is_changed:
        return outer.function
    return with_block(outer.function, Block(outer.function.block.args, ops))


def first_write(outer: Outer) -> Loc | None:
    """Return where the program first changes a tensor that is not its own, None if it does not."""
    for op in outer.function.walk():
        if op.name in opdefs.STATISTICS:
            written = outer.statistics(op) if op in outer.ops else op.operands
        else:
            written = written_by(op)
        if written:
            return op.loc
    return None
