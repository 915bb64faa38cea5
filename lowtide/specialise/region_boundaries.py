"""Decides which ops end a region, so that PyTorch or Python runs them.

In: an op. Out: the reason, as a phrase that follows the op's name; "" if the op may be compiled.

    ends_region(torch.add)             ""
    ends_region(call_module)           "is a module that PyTorch runs: …"

Ops at the end of a region that only prepare operands (`only_prepares`) go to the next region.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from lowtide.ir import opdefs
from lowtide.ir.core import Op, Value, free_values, walk
from lowtide.ir.types import ClassType
from lowtide.ops.additions import ADDITIONS
from lowtide.specialise import assertions, late_binding
from lowtide.specialise.abstract import Abs, tensors_in
from lowtide.specialise.lifting import inplace
from lowtide.texpr.build import Unsupported, Val


class Stop(Unsupported):
    """Raised if an op ends the region. The message is the reason."""


SHORT_OPS: Final = 64  # tensor ops over all steps: loops with no more are unrolled

STOPPING: Final = {
    "mutate": "changes a tensor in place",
    "call_torch": "has no kernel",
    "print": "prints",
    "raise": "raises",
    "with": "enters a context manager",
    "section": "is done in chunks",
    "saved_product": "has a result that was saved",
    "attr.set": "changes an object",
    "object.new": "makes an object",
    "py.call": "calls a Python function",
    "enum.get": "looks up an enum",
    "future.done": "makes a future",
}
ITEM: Final = "Tensor.item"
_HOLDING: Final = ("tuple.make", "list.make", "dict.make")  # building a container reads no element
_STOPPING_FAMILIES: Final = {"set": "works on a set"}


def ends_region(op: Op) -> str:
    """Return why the op ends a region, "" if it need not. Writes need not if the region made the
    tensor. An `if` must if each branch has an op that must."""
    if op.name == "mutate" and (inplace.out_of_place(op) or inplace.addition(op)):
        return ""
    if op.name == "if" and all(any(map(ends_region, block.ops)) for block in op.blocks):
        return "has branches that are not compiled as a whole"
    return static_reason(op)


def static_reason(op: Op) -> str:
    """Return why the op ends a region, whatever the region has made; "" if it need not."""
    family = op.name.partition(".")[0]
    if op.name == "call_torch" and (
        late_binding.may_bind(op) or assertions.is_call(op) or is_item(op)
    ):
        return ""
    if op.name == "section" and op.attrs["chunks"] == 1:
        return "is computed again in the backward pass"
    if op.name in STOPPING or family in _STOPPING_FAMILIES:
        return STOPPING.get(op.name) or _STOPPING_FAMILIES[family]
    if op.name == "call_module":
        return f"is a module that PyTorch runs: {op.attrs['why']}"
    if op.name in ("attr.get", "py.call_method") and isinstance(op.operands[0].type, ClassType):
        return "reads an object"
    if op.name.startswith("torch."):
        try:
            record: Any = opdefs.torch_record(op.name)
        except KeyError:
            return "has no kernel"
        return "" if record.lower is not None else "has no kernel"
    return ""


def is_item(op: Op) -> bool:
    """Return whether the op reads the only element of a tensor as a number."""
    return op.name == "call_torch" and op.attrs.get("target") == ITEM


def only_prepares(op: Op) -> bool:
    """Return whether the op makes only numbers, or lists and tuples of existing values."""
    definition = opdefs.find(op.name)
    if op.blocks or adds_at_places(op) or (definition is not None and definition.writes):
        return False
    return not op.name.startswith("torch.") or opdefs.has_kind(op.name, ("size",))


def adds_at_places(op: Op) -> bool:
    """Return whether the op is a scatter that adds, such as `index_add`."""
    name = op.attrs.get("target", op.attrs.get("name", op.name))
    return str(name).rpartition(".")[2].removesuffix("_") in ADDITIONS


def reads_sums(op: Op, env: Mapping[Value, Abs], sums: Container[str]) -> bool:
    """Return whether the op reads the result of a scatter of this region; `sums`: their names."""
    if op.name in _HOLDING:
        return False
    found = (x.value for v in free_values([op]) if v in env for x in tensors_in(env[v]))
    return any(isinstance(x, Val) and x.name in sums for x in found)


def is_short(
    loop: Op, trips: object, env: Mapping[Value, Abs], is_within: bool, most: float
) -> bool:
    """Return whether to unroll the loop: all steps have at most `most` ops, each elementwise.

    `is_within`: it is inside a loop that is to be lifted. There a loop with writes is not unrolled:
    one iteration of the outer loop would write many parts of a tensor, none of them a row."""
    if is_within and any(op.name == "mutate" for block in loop.blocks for op in walk(block)):
        return False
    count = _written_out(loop, env) if isinstance(trips, int) else None
    return count is not None and isinstance(trips, int) and trips * count <= min(SHORT_OPS, most)


def _written_out(outer: Op, env: Mapping[Value, Abs]) -> int | None:
    """Return the number of tensor ops in the blocks, over all steps of inner loops. None: one op is
    not elementwise, or the number is unknown."""
    found, numbers = 0, dict[Value, int]()
    for op in (op for block in outer.blocks for op in block.ops):
        if op.name == "const" and isinstance(op.attrs["value"], int):
            numbers[op.results[0]] = op.attrs["value"]
        if op.blocks:
            x = op.operands[0] if op.name == "loop" else None
            trips = 1 if x is None else env[x].value if x in env else numbers.get(x)
            count = _written_out(op, env)
            if count is None or (count and not isinstance(trips, int)):
                return None
            found += trips * count if isinstance(trips, int) else 0
        elif op.name.startswith("torch."):
            if not opdefs.has_kind(op.name, ("pointwise", "view", "size", "factory")):
                return None
            found += 1
    return found


def about_a_loop(reason: str) -> str:
    """Return why the driver runs a loop, to follow the words "the loop"."""
    says_so = reason.startswith(("is not lifted", "loops as often"))
    return reason if says_so else f"is not lifted: {reason}"
