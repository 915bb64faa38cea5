"""Inlines a `with torch.no_grad():` block: its ops then read detached tensors.

In, out: a Function. Invariant: the results are equal and carry no gradients. A block that writes
to outer values, or has ops that PyTorch runs, stays.

    %m = call_torch() {target="torch.no_grad"}
    %t = with(%m) {                                 %d: Tensor = torch.detach(%x)
      (%_):                                    →    %t: Tensor = torch.exp(%d)
      %t: Tensor = torch.exp(%x)
      yield(%t)
    }

So a loss is in one region with the targets that it computes without gradients.
"""

from __future__ import annotations

from typing import Final

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, free_values, walk
from lowtide.passes.ir_queries import Makers, constant, drop, final, makers_of
from lowtide.passes.run import only_with

_CARRY_NONE: Final = (t.INT, t.FLOAT, t.BOOL, t.NUMBER, t.STR, t.NONE)
_OF_TENSORS: Final = ("list.make", "tuple.make")
_ALWAYS_NEW: Final = ("pointwise", "reduction", "contraction", "composite", "copy", "size")
# May be views, but are never the operand itself, as `x.float()` and `x.contiguous()` may be.
_VIEWS: Final = frozenset(
    f"torch.{name}"
    for name in (
        *("T", "mT", "mH", "t", "transpose", "permute", "movedim", "getitem", "select", "narrow"),
        *("view", "view_as", "reshape", "unflatten", "unsqueeze", "squeeze", "unbind", "split"),
        *("chunk", "expand", "expand_as", "broadcast_to", "diagonal", "Tensor.unfold", "einsum"),
    )
)


@only_with("with")
def inline_no_grad(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    makers, same = makers_of(result), dict[Value, Value]()
    managers = _visit(result.block, makers, same)
    for op in result.walk():
        op.operands = [final(v, same) for v in op.operands]
    used = {v for op in result.walk() for v in op.operands}
    drop(result.block, {makers[m] for m in managers - used})
    return result


def _visit(block: Block, makers: Makers, same: dict[Value, Value]) -> set[Value]:
    """Inline the blocks of `no_grad` that only compute. Return their context managers."""
    kept: list[Op] = []
    managers: set[Value] = set()
    for op in block.ops:
        for inner in op.blocks:
            managers |= _visit(inner, makers, same)
        if not _only_computes(op, makers):
            kept.append(op)
            continue
        (body,) = op.blocks
        *ops, end = body.ops
        managers.add(op.operands[0])
        kept += _detached(op, ops)
        same.update(zip(op.results, end.operands, strict=True))
    block.ops = kept
    return managers


def _only_computes(op: Op, makers: Makers) -> bool:
    """Return whether the op is a `no_grad` whose block computes the same values without it."""
    if op.name != "with" or len(op.blocks) != 1:
        return False
    manager, (body,) = makers.get(op.operands[0]), op.blocks
    if manager is None or manager.attrs.get("target") != "torch.no_grad" or manager.operands:
        return False
    ops = body.ops[:-1]
    outer = set(free_values(ops)) | set(body.args)
    if not all(v.type == t.TENSOR or v.type in _CARRY_NONE for v in outer - set(body.args)):
        return False
    given = {v for v in outer if v.type not in _CARRY_NONE}
    # Must not leave the block: containers, and views. In eager mode, a view of a leaf requires a
    # gradient even if it was made under `no_grad`; a view of a detached tensor does not.
    inside: set[Value] = set()
    for x in walk(body):
        if x is body.terminator or given.isdisjoint(x.operands):
            continue
        if x.name in _OF_TENSORS or x.name in _VIEWS:
            inside.update(x.results)
            given.update(x.results)
        elif x.name != "torch.detach" and not opdefs.has_kind(x.name, _ALWAYS_NEW):
            return False  # its result may be an operand itself
    leaving = {v for v in body.terminator.operands if v.type != t.TENSOR}
    if not given.isdisjoint(leaving) or not inside.isdisjoint(body.terminator.operands):
        return False
    return all(_is_harmless(x, makers) for x in walk(body))


def _is_harmless(op: Op, makers: Makers) -> bool:
    """Return whether the op neither reads the grad mode nor makes a tensor that requires a
    gradient."""
    if opdefs.has_kind(op.name, ("factory",)):
        flags = (v for v in op.operands if v.type == t.BOOL)
        return all(constant(v, makers) is False for v in flags)  # `requires_grad`
    known = op.name.startswith("torch.") or opdefs.is_removable(op, makers)
    return known or bool(op.blocks) or op.name == "yield"


def _detached(op: Op, ops: list[Op]) -> list[Op]:
    """Return the ops, after a `detach` of each outer tensor that they read."""
    stand_ins: dict[Value, Value] = {}
    made: list[Op] = []
    for v in free_values(ops):
        if v.type == t.TENSOR:
            stand_ins[v] = Value(v.name, t.TENSOR)
            made.append(Op(name="torch.detach", operands=[v], results=[stand_ins[v]], loc=op.loc))
    for x in ops:
        for inner in (x, *(o for b in x.blocks for o in walk(b))):
            inner.operands = [stand_ins.get(v, v) for v in inner.operands]
    return [*made, *ops]
