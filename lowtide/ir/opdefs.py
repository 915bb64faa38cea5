"""The table of ops on Python values, and access to the records of torch ops.

In: an op, or its name. Out: the function that computes it (`run`), the type of its result, its
effects, and whether it may be shared or removed.

    find("py.add").run(2, 3)            ==  5
    find("py.add").result([INT, FLOAT]) ==  FLOAT       None: Python would raise TypeError
    torch_record("torch.sum")                           the record of `lowtide.ops.registry`
    effects_of(op)                      ==  Effects.DRAWS | Effects.RAISES       of torch.dropout

Lists, dicts and objects are references, as in Python. So an op that reads one has the effect READS,
and an op that returns one has the effect MAKES, whatever its row declares.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Sequence
from types import MappingProxyType
from typing import ClassVar, cast

from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.ir.effects import Effects, Makers, constant, own_effects
from lowtide.ir.python_ops import TABLE
from lowtide.ir.python_ops.row import OpDef
from lowtide.ir.signature import RecordLike

MAX_TRIPS = 2**63 - 1  # the trip count of a `while`
# operands that are running statistics, and the one that says whether they are written
STATISTICS = {"torch.batch_norm": (1, 2), "torch.instance_norm": (1, 2)}
OF_THE_BATCH = 5


class Indexing:
    """Encoding of `x[a, b:c, None, ..., mask]` in `torch.getitem` and in the `mutate` of an item.

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
        """Return the Python index that a spec and its operands encode."""
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
    """Return the op of this name on Python values, or None."""
    return TABLE.get(name)


def torch_record(op_name: str) -> RecordLike:
    """Return the record of the op printed as `torch.NAME`; raises KeyError."""
    return _records()(op_name.removeprefix("torch."))


@functools.cache
def _records() -> Callable[[str], RecordLike]:
    """Return the look-up of torch records. Their table lies in a higher layer, so it is imported by
    name."""
    importlib.import_module("lowtide.ops")
    registry = importlib.import_module("lowtide.ops.registry")
    return cast("Callable[[str], RecordLike]", registry.by_name)


_NO_MAKERS: Makers = MappingProxyType({})


def effects_of(op: Op, makers: Makers = _NO_MAKERS, fixed: Collection[Value] = ()) -> Effects:
    """Return what the op may do, as its table declares; for an op with blocks, also what these may
    do. `makers`: ops by their results, so that a rule can look up constants (`training=False`).
    `fixed`: lists that nothing changes, such as a shape."""
    if op.blocks:
        found = own_effects(op)
        for inner in (x for b in op.blocks for x in b.ops[:-1]):
            found |= effects_of(inner, makers, fixed)
        return found
    if op.name.startswith("torch."):
        return _of_record(op, makers)
    definition = TABLE.get(op.name)
    found = own_effects(op) if definition is None else definition.effects
    read = [v for v in op.operands if v.type != t.TENSOR and v not in fixed]
    if not all(t.is_immutable(v.type) for v in read):
        found |= Effects.READS
    if not all(t.is_immutable(v.type) for v in op.results):
        found |= Effects.MAKES
    return found


def _of_record(op: Op, makers: Makers) -> Effects:
    try:
        record = torch_record(op.name)
    except KeyError:
        return Effects.ALL
    if op.name == "torch.getitem" and op.operands[0].type != t.TENSOR:
        return Effects.RAISES | Effects.READS
    return record.effects_of([constant(v, makers) for v in op.operands])


_CHANGING = Effects.DRAWS | Effects.WRITES | Effects.MUTATES | Effects.ACTS


def is_shareable(op: Op, makers: Makers = _NO_MAKERS, fixed: Collection[Value] = ()) -> bool:
    """Return whether an equal op with the same operands can replace this one. Such an op changes
    nothing. It reads nothing that may change in between, except values of tensors, and it makes
    nothing that has an identity. `makers`, `fixed`: as in `effects_of`."""
    found = effects_of(op, makers, fixed)
    return not found & (_CHANGING | Effects.READS | Effects.MAKES)


def is_removable(op: Op, makers: Makers = _NO_MAKERS) -> bool:
    """Return whether the op may be removed when its results are not used. It may still raise, and a
    user may count on that; see `may_raise`."""
    return not effects_of(op, makers) & _CHANGING


def may_raise(op: Op, makers: Makers = _NO_MAKERS) -> bool:
    """Return whether the op may raise, so that it must run even if nothing reads its result. An op
    for certain types may raise where only the run knows the types."""
    types = [v.type for v in op.operands]
    vague = any(t.is_dynamic(type_) or isinstance(type_, t.OptionalType) for type_ in types)
    is_library = op.name in TABLE or op.name.startswith("torch.")
    if is_library and vague and op.name not in _FOR_ALL_TYPES:
        return True
    given = [constant(v, makers) for v in op.operands]
    match op.name:
        case "py.bool":
            return t.may_be_tensor(types[0])  # of one element
        case "dict.make":
            return not all(map(t.is_immutable, types[::2]))
        case "set.make":
            return not all(map(t.is_immutable, types))
        case "py.min" | "py.max" if len(types) > 1:
            return not all(map(t.is_number, types))
        case "py.floordiv" | "py.mod" if all(map(t.is_number, types)):
            return given[1] in (..., 0)
        case "list.slice" if all(type_ in (t.INT, t.NONE) for type_ in types[1:]):
            return given[3] in (..., 0)
        case _:
            return op.name in _HASHING or Effects.RAISES in effects_of(op, makers)


_FOR_ALL_TYPES = ("py.is", "py.is_not", "py.str", "py.repr")
_HASHING = ("py.contains", "set.of", "set.frozen", "dict.of")


def writes(op_name: str) -> bool:
    """Return whether the op changes its first operand, a Python value."""
    definition = TABLE.get(op_name)
    return op_name == "attr.set" or (definition is not None and definition.writes)


def has_kind(op_name: str, kinds: Sequence[str]) -> bool:
    """Return whether the op is a torch op whose record is of one of these kinds."""
    if not op_name.startswith("torch."):
        return False
    try:
        return torch_record(op_name).kind in kinds
    except KeyError:
        return False
