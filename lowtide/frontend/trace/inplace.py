"""Activations that write into their input, as plain ones, where nobody can tell.

In: a call such as `F.relu(x, inplace=True)`. Out: the record of the plain op, with its operands, or
None where another name for x's memory may be read later.

    %y: Tensor = torch.batch_norm(…)        %y: Tensor = torch.batch_norm(…)
    %z: Tensor = mutate(%y, True) …    →    %z: Tensor = torch.relu(%y, False)

Always holds: x was made in this run by an op that gives new memory, and only ops that make no views
have read it so far; later uses of the Python object mean the result anyway. Only activations, which
keep dtype and shape, are rewritten: others may promote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lowtide.frontend.script.binding import Bound, bind
from lowtide.ir.builder import Builder
from lowtide.ir.core import Op, Value, walk
from lowtide.ir.opdefs import has_kind
from lowtide.ops import registry

_FRESH_KINDS: Final = ("pointwise", "reduction", "contraction")
_FRESH_OPS: Final = (
    "torch.batch_norm", "torch.layer_norm", "torch.group_norm", "torch.instance_norm",
)  # fmt: skip
_READING_KINDS: Final = (*_FRESH_KINDS, "size")
_PLAIN: Final = {"Tensor.relu_": "F.relu", "torch.relu_": "F.relu", "F.relu_": "F.relu"}


def plain_form(
    builder: Builder, source: str, values: Sequence[Value], named: Mapping[str, Value]
) -> Bound | None:
    """The plain op that a changing call may be recorded as."""
    if not values or not _is_private(builder, values[0]):
        return None
    bound = bind(registry.lookup(_PLAIN.get(source, source)), values, named)
    if bound is None:
        return None
    names = [p.name for p in bound.record.params]
    if "inplace" not in names:
        return None
    slots = list(bound.slots)
    slots[names.index("inplace")] = builder.const(False)
    return Bound(bound.record, tuple(slots))


def _is_private(builder: Builder, value: Value) -> bool:
    maker = builder.makers.get(value)
    if maker is None or not _is_fresh(maker):
        return False
    users = (op for op in walk(builder.block) if value in op.operands)
    return all(_is_fresh(op) or has_kind(op.name, _READING_KINDS) for op in users)


def _is_fresh(op: Op) -> bool:
    """Whether the op's results have memory of their own."""
    if op.name == "call_torch":
        return str(op.attrs["target"]).startswith(("torch.conv", "F.conv"))
    if op.name in ("torch.positive", "torch.shape"):
        return False
    return op.name in _FRESH_OPS or has_kind(op.name, _FRESH_KINDS)
