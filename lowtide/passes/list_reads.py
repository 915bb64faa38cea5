"""Share reads of lists: `xs[i]` and `len(xs)` are computed once, until an op may change a list.

In, out: a Function. Only lists of numbers and strings, and lists of such lists, are considered.

    %a: int = list.get(%xs, %i)           %a: int = list.get(%xs, %i)
    %b: int = list.get(%xs, %i)      →    %s: int = py.add(%a, %a)
    %s: int = py.add(%a, %b)              %c: None = list.set(%xs, %i, %s)
    %c: None = list.set(%xs, %i, %s)      %d: int = list.get(%xs, %i)
    %d: int = list.get(%xs, %i)

Two variables may be names of one list, so that an op which changes any list ends all sharing.
"""

from __future__ import annotations

from collections import ChainMap

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Function, Op, Value, clone
from lowtide.ir.effects import Effects, own_effects
from lowtide.passes.common_subexpressions import Key, key_of, share
from lowtide.passes.ir_queries import Makers, makers_of

_READS = ("list.get", "py.len")
_PLAIN = (t.INT, t.FLOAT, t.BOOL, t.STR)


def share_list_reads(fn: Function) -> Function:
    """Return the function with equal reads of unchanged lists computed once."""
    result = clone(fn)
    makers = makers_of(result)
    changing = {op for op in result.walk() if _may_change_list(op, makers)}
    last: list[Op | None] = [None]  # the latest op that may have changed a list

    def key(op: Op) -> Key | None:
        if op in changing:
            last[0] = op
        return (*key_of(op), last[0]) if _reads_plain_list(op) else None

    share(result.block, ChainMap[Key, list[Value]](), {}, key)
    return result


def _reads_plain_list(op: Op) -> bool:
    if op.name not in _READS or not isinstance(op.operands[0].type, t.ListType):
        return False
    kinds = t.types_in(op.operands[0].type)
    return all(kind in _PLAIN or isinstance(kind, t.ListType) for kind in kinds)


def _may_change_list(op: Op, makers: Makers) -> bool:
    """Return whether the op, or one in its blocks, may change a list or run Python code."""
    done = own_effects(op) if op.blocks else opdefs.effects_of(op, makers)
    return (
        Effects.MUTATES in done
        or op.name == "print"
        or any(_may_change_list(x, makers) for block in op.blocks for x in block.ops)
    )
