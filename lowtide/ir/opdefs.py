"""The table of ops on Python values, and the way to the records of torch ops.

In: an op's name. Out: what it computes (`run`), the type of its result, whether it may be moved.

    find("py.add").run(2, 3)            ==  5
    find("py.add").result([INT, FLOAT]) ==  FLOAT       None: Python would raise TypeError
    torch_record("torch.sum")                           the record of `lowtide.ops.registry`

Always holds: a pure op gives the same result for the same operands and changes none of them; it
may raise, as `py.floordiv` by 0 does. Lists, dicts and objects are references, as in Python: an op
that reads one is not pure, and one that `writes` is an effect.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, cast

from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.ir.python_ops import TABLE
from lowtide.ir.python_ops.row import OpDef
from lowtide.ir.signature import RecordLike

MAX_TRIPS = 2**63 - 1  # the trip count of a `while`
# operands that are running statistics, and the one that says whether they are written
STATISTICS = {"torch.batch_norm": (1, 2), "torch.instance_norm": (1, 2)}
OF_THE_BATCH = 5


class Indexing:
    """How `torch.getitem` and the `mutate` of an item encode `x[a, b:c, None, ..., mask]`.

    Attribute `spec` is a tuple with one word per item, in order; after x, the operands are the
    items laid flat:

    | word       | operands                     | Python            |
    | ---------- | ---------------------------- | ----------------- |
    | "int"      | 1: an int                    | `x[i]`            |
    | "slice"    | 3: start, stop, step, each an int or None | `x[a:b]` |
    | "none"     | 0                            | `x[None]`         |
    | "ellipsis" | 0                            | `x[...]`          |
    | "tensor"   | 1: a Tensor (indices or mask) or a list or tuple of ints or bools | `x[mask]` |
    | "bool"     | 1: a bool                    | `x[True]`         |

        x[1:n, None, t]  →  torch.getitem(%x, %1, %n, %none, %t) {spec=("slice", "none", "tensor")}
        x[i] = v         →  mutate(%x, %i, %v)
                              {target="Tensor.__setitem__", kwnames=(), spec=("int",)}
    """

    ARITY: ClassVar = {"int": 1, "slice": 3, "none": 0, "ellipsis": 0, "tensor": 1, "bool": 1}

    @staticmethod
    def index(spec: Sequence[str], operands: Sequence[object]) -> object:
        """The Python index that a spec and its operands mean."""
        items: list[object] = []
        rest = list(operands)
        for word in spec:
            count = Indexing.ARITY[word]
            mine, rest = rest[:count], rest[count:]
            items.append(_index_item(word, mine))
        return tuple(items) if len(items) != 1 else items[0]


def _index_item(word: str, operands: list[object]) -> object:
    match word:
        case "slice":
            return slice(*operands)
        case "none":
            return None
        case "ellipsis":
            return Ellipsis
        case _:
            return operands[0]


def find(name: str) -> OpDef | None:
    """The op of this name on Python values, or None."""
    return TABLE.get(name)


def all_defs() -> tuple[OpDef, ...]:
    """Every row of the table."""
    return tuple(TABLE.values())


_records: Callable[[str], RecordLike] | None = None


def use_records(by_name: Callable[[str], RecordLike] | None) -> None:
    """Puts another table of torch ops in place of `lowtide.ops` (None: back again)."""
    global _records
    _records = by_name


def torch_record(op_name: str) -> RecordLike:
    """The record of the op printed as `torch.NAME`; raises KeyError."""
    return (_records or _own_records())(op_name.removeprefix("torch."))


@functools.cache
def _own_records() -> Callable[[str], RecordLike]:
    """The table lies in a layer above this one, so it is looked up by name when first needed."""
    importlib.import_module("lowtide.ops")
    registry = importlib.import_module("lowtide.ops.registry")
    return cast("Callable[[str], RecordLike]", registry.by_name)


PURE_KINDS = ("pointwise", "reduction", "view", "contraction", "size")
_REMOVABLE_KINDS = (*PURE_KINDS, "factory", "copy")
_PURE = ("const", "enum.const", "tuple.make", "tuple.get", "unpack", "cast", "py.format")
_REMOVABLE = (*_PURE, "undef", "list.make", "dict.make", "set.make", "torch.getitem", "attr.get")


def is_shareable(op: Op, fixed: Collection[Value] = ()) -> bool:
    """Whether an equal op with the same operands could stand for this one: it is pure, and neither
    reads what may change in between (other than a tensor's values) nor makes something that has an
    identity. `fixed`: lists that nothing changes, such as a shape."""
    if op.name == "torch.getitem":
        return op.operands[0].type == t.TENSOR
    if has_kind(op.name, PURE_KINDS):
        return True
    definition = TABLE.get(op.name)
    if op.name not in _PURE and (definition is None or definition.writes):
        return False
    operands = [v for v in op.operands if v.type != t.TENSOR and v not in fixed]
    return all(t.is_immutable(v.type) for v in (*operands, *op.results))


def is_removable(op_name: str) -> bool:
    """Whether the op may go when its results are not used."""
    definition = TABLE.get(op_name)
    if op_name in _REMOVABLE or (definition is not None and not definition.writes):
        return True
    return has_kind(op_name, _REMOVABLE_KINDS)


def may_raise(op: Op) -> bool:
    """Whether a removable op may raise, so that a user who ignores its result still counts on it.
    A pointwise op of one tensor never does."""
    if has_kind(op.name, ("pointwise",)):
        return sum(v.type == t.TENSOR for v in op.operands) > 1
    return op.name in _RAISING or has_kind(op.name, ("view", "reduction", "contraction", "copy"))


_RAISING = (
    *("torch.getitem", "unpack", "list.get", "list.index", "dict.item", "py.int", "py.float"),
    *("py.truediv", "py.floordiv", "py.mod"),
)


def writes(op_name: str) -> bool:
    """Whether the op changes its first operand, a Python value."""
    definition = TABLE.get(op_name)
    return op_name == "attr.set" or (definition is not None and definition.writes)


def has_kind(op_name: str, kinds: Sequence[str]) -> bool:
    """Whether the op is a torch op whose record is of one of these kinds."""
    if not op_name.startswith("torch."):
        return False
    try:
        return torch_record(op_name).kind in kinds
    except KeyError:
        return False
