"""Replaces an in-place activation by the plain op, where no alias sees the write.

In, out: a Function. Invariant: the tensor that is written was just made, in memory of its own,
and has no alias (`ir/aliases.is_observable`); any other write stays a `mutate`. Only activations,
which preserve dtype and shape, are rewritten: other ops may promote.

    %y: Tensor = torch.batch_norm(…)                  %y: Tensor = torch.batch_norm(…)
    %z: Tensor = mutate(%y, True) {"F.relu", …}   →   %z: Tensor = torch.relu(%y, False)
    %a: Tensor = torch.add(%y, %z, %1)                %a: Tensor = torch.add(%z, %z, %1)

Then the kernel that reads a convolution's result also computes the activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from lowtide.ir import types as t
from lowtide.ir.aliases import is_observable
from lowtide.ir.core import Block, Function, Op, Value, clone, walk
from lowtide.ir.signature import accepts
from lowtide.ops.registry import REQUIRED, OpRecord, lookup
from lowtide.passes.ir_queries import Makers, constant, makers_of
from lowtide.passes.run import only_with

_FLAG: Final = "inplace"
_PLAIN: Final = {"Tensor.relu_": "F.relu", "torch.relu_": "F.relu", "F.relu_": "F.relu"}


@only_with("mutate")
def make_private_writes_plain(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _visit(result.block, makers_of(result))
    return result


def _visit(block: Block, makers: Makers) -> None:
    k = 0
    while k < len(block.ops):
        op = block.ops[k]
        for inner in op.blocks:
            _visit(inner, makers)
        made = _plain(op, makers) if op.name == "mutate" else []
        if made and not is_observable(block, k):
            block.ops[k : k + 1] = made
            k += len(made) - 1
            makers.update((r, new) for new in made for r in new.results)
            _replace(block.ops[k + 1 :], op.operands[0], op.result)
        k += 1


def _replace(ops: Sequence[Op], old: Value, new: Value) -> None:
    for op in walk(Block([], list(ops))):
        op.operands = [new if v is old else v for v in op.operands]


def _plain(op: Op, makers: Makers) -> list[Op]:
    """Return the op without the write, after its constants; [] if there is none."""
    target = str(op.attrs["target"])
    kwnames = cast("tuple[str, ...]", op.attrs["kwnames"])
    count = len(op.operands) - len(kwnames)
    named = dict(zip(kwnames, op.operands[count:], strict=True))
    for record in lookup(_PLAIN.get(target, target)):
        found = _operands(record, op.operands[:count], named)
        if found is None or (target not in _PLAIN and not _says_so(record, found, makers)):
            continue
        made: list[Op] = []
        for k, (param, x) in enumerate(zip(record.params, found, strict=True)):
            if x is None or param.name == _FLAG:
                value: Any = False if param.name == _FLAG else param.default
                made.append(_const(value, op))
                found[k] = made[-1].result
        name, operands = f"torch.{record.name}", [x for x in found if x is not None]
        return [*made, Op(name=name, operands=operands, results=op.results, loc=op.loc)]
    return []


def _says_so(record: OpRecord, operands: Sequence[Value | None], makers: Makers) -> bool:
    """Return whether the flag of the call is the constant True."""
    rows = zip(record.params, operands, strict=True)
    flag = next((x for p, x in rows if p.name == _FLAG), None)
    return flag is not None and constant(flag, makers) is True


def _operands(
    record: OpRecord, given: Sequence[Value], named: dict[str, Value]
) -> list[Value | None] | None:
    """Return the operand of each parameter, None for a default; None if it is no call of this
    record."""
    params, left = record.params, dict(named)
    if all(p.name != _FLAG for p in params) or len(given) > len(params):
        return None
    found: list[Value | None] = list(given)
    for p in params[len(given) :]:
        found.append(next((left.pop(k) for k in p.keywords if k in left), None))
    rows = list(zip(params, found, strict=True))
    if left or any(x is None and p.default is REQUIRED for p, x in rows):
        return None
    return found if all(x is None or accepts(p, x.type) for p, x in rows) else None


def _const(value: Any, like: Op) -> Op:
    type_ = t.type_of(value)
    assert type_ is not None
    return Op(name="const", attrs={"value": value}, results=[Value("", type_)], loc=like.loc)
