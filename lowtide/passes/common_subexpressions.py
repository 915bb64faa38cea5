"""Common subexpression elimination: an op that repeats an earlier one is replaced by its result.

In, out: a Function. Invariant: only ops without effects are shared, so that two dropouts draw
two masks (see `opdefs.is_shareable`). Results of torch ops are shared only if nothing in the
function writes into a tensor; sizes then count as fixed. Tensors that leave the function are not
merged, since the caller may write into one of two.

    %1: int = const {value=1}
    %a: Tensor = torch.add(%x, %y, %1)      %1: int = const {value=1}
    %2: int = const {value=1}          →  %a: Tensor = torch.add(%x, %y, %1)
    %b: Tensor = torch.add(%x, %y, %2)      %c: Tensor = torch.mul(%a, %a)
    %c: Tensor = torch.mul(%a, %b)

An op in a block may reuse a value of an enclosing block, which dominates it, and not the reverse.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.ir.literals import print_literal
from lowtide.passes.ir_queries import changes_in, makers_of, may_change

Key = tuple[object, ...]


def eliminate_common_subexpressions(fn: Function) -> Function:
    """Return the function with equal pure ops computed once."""
    result = clone(fn)
    makers = makers_of(result)
    changes = changes_in(result, makers)
    fixed = {
        v for op in result.walk() if op.name.startswith("torch.") for v in op.results
    }  # PyTorch's tuples and sizes, whatever their type says
    leaving = _leaving(result)

    def key(op: Op) -> Key | None:
        if op.blocks or not opdefs.is_shareable(op, makers, fixed) or may_change(op, changes):
            return None
        return None if _may_escape(op, leaving) else key_of(op)

    share(result.block, ChainMap[Key, list[Value]](), {}, key)
    return result


def _leaving(fn: Function) -> set[Value]:
    """Return the values that the caller, or another op, may refer to or share memory with."""
    found: set[Value] = set()
    for op in reversed(list(fn.walk())):  # users first
        keeps = opdefs.has_kind(op.name, ("view", "copy", "composite")) or op.name in _HOLDERS
        if (keeps and found.isdisjoint(op.results)) or _forgets(op):
            continue
        found.update(op.operands)
    return found


_HOLDERS = ("tuple.make", "tuple.get", "list.make", "dict.make", "unpack", "cast", "torch.getitem")


def _forgets(op: Op) -> bool:
    """Return whether the results of the op have nothing of its operands in them: no alias, no
    reference."""
    if op.name.startswith("torch."):
        return opdefs.has_kind(op.name, ("pointwise", "reduction", "contraction", "size"))
    definition = opdefs.find(op.name)
    pure = (
        definition is not None and not definition.writes and op.name not in ("py.is", "py.is_not")
    )
    return pure and all(t.is_immutable(r.type) and r.type != t.TENSOR for r in op.results)


def share(
    block: Block,
    known: ChainMap[Key, list[Value]],
    stand_ins: MutableMapping[Value, Value],
    shared_by: Callable[[Op], Key | None],
) -> None:
    """Replace ops by equal ones. `shared_by`: equal for ops of which one can replace the other;
    None if none can. It is called with each op in order, with an op whose blocks may run again
    before these, too."""
    kept: list[Op] = []
    for op in block.ops:
        op.operands = [stand_ins.get(v, v) for v in op.operands]
        if op.blocks and op.name != "if":
            shared_by(op)
        for inner in op.blocks:
            share(inner, known.new_child(), stand_ins, shared_by)
        key = shared_by(op)
        if key is not None and key in known:
            stand_ins.update(zip(op.results, known[key], strict=True))
            continue
        if key is not None:
            known[key] = op.results
        kept.append(op)
    block.ops = kept


def _may_escape(op: Op, leaving: set[Value]) -> bool:
    """Return whether the op makes a tensor that the caller may see or change. `leaving`: such
    values."""
    made = op.name.startswith("torch.") and not opdefs.has_kind(op.name, ("size",))
    return made and not leaving.isdisjoint(op.results)


def key_of(op: Op) -> Key:
    """Return what is equal for ops that have equal operands and attributes."""
    attrs = tuple((k, print_literal(v)) for k, v in op.attrs.items())
    types = tuple(r.type for r in op.results)
    return (op.name, tuple(id(v) for v in op.operands), attrs, types)
