"""Separates the ops of a block whose order matters from those that may float.

In: a block. Out: `Straight`: the ordered ops, a label for what each does, the operands of each.

    %0 = const                             floats
    %a = torch.getitem(%x, %0)             floats, if x is from outside and no op changes a tensor
    %b = torch.add(%h, %a, %1)             place 0, reads %h, %a, %1
    %c = call_torch(%b)                    place 1

Invariant: a floating op gives the same result wherever its operands exist; ops with equal labels
compute the same function of their operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, walk
from lowtide.ir.effects import Effects, own_effects
from lowtide.ir.literals import print_literal

FEWEST: Final = 4  # iterations of a loop
NUMBERS: Final = ("const", "tuple.make", "py.add", "py.sub", "py.mul")
_VIEWS: Final = ("torch.select", "torch.getitem", "list.get", "torch.size.dim")
# what writes into a tensor is `mutate`; lists of rows stay as they are
_STILL: Final = ("call_torch", "list.append", "list.extend", "list.insert")
_DEEPEST: Final = 30  # `k = k + n`, for long, is no expression of an index
_BASIC: Final = {"int", "slice", "none", "ellipsis"}


@dataclass(frozen=True, slots=True)
class Slot:
    """An operand of an op, or of one nested in it, that is made outside of the op."""

    op: Op
    operand: int

    @property
    def value(self) -> Value:
        """Return the value in this slot."""
        return self.op.operands[self.operand]


def slots(op: Op) -> list[Slot]:
    """Return the operands that an op reads, those of its blocks included, in the order of
    `clone_op`."""
    if not op.blocks:
        return [Slot(op, k) for k in range(len(op.operands))]
    inner = [o for block in op.blocks for o in walk(block)]
    own = {a for o in (op, *inner) for block in o.blocks for a in block.args}
    own.update(r for o in inner for r in o.results)
    found = (Slot(o, k) for o in (op, *inner) for k in range(len(o.operands)))
    return [s for s in found if s.value not in own]


class Straight:
    """The ops of a block that have a place, `ops`, and those that float."""

    def __init__(self, block: Block) -> None:
        self.floating = _floating(block)
        self.ops = [op for op in block.ops if not self._floats(op)]
        self.slots = [slots(op) for op in self.ops]
        self.places = {r: (k, j) for k, op in enumerate(self.ops) for j, r in enumerate(op.results)}
        self._kinds: dict[Value, str] = {}
        self._last: dict[Value, int] = {}
        self._leaves: dict[Value, frozenset[Value]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._structures: dict[int, int] = {}
        self._keys: dict[Value, object] = {}
        self.loose = [self._label(k, strict=False) for k in range(len(self.ops))]
        self.strict = [self._label(k, strict=True) for k in range(len(self.ops))]

    def _floats(self, op: Op) -> bool:
        return bool(op.results) and op.results[0] in self.floating

    def _label(self, k: int, *, strict: bool) -> int:
        """Return a label, equal for ops that do the same with the values that they read. `strict`:
        the values themselves are equal, except results of the block."""
        op = self.ops[k]
        read = [s.value for s in self.slots[k]]
        known = tuple(
            id(v) if strict and v not in self.places and v not in self.floating else self.kind(v)
            for v in read
        )
        return self._number((self.structure(op), known))

    def _number(self, key: tuple[object, ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def structure(self, op: Op) -> int:
        """Return a number, equal for ops that differ only in the values that they read and make."""
        found = self._structures.get(id(op))
        if found is None:
            found = self._structures[id(op)] = self._number(_structure(op))
        return found

    def key(self, value: Value) -> object:
        """Return a key, equal for values that are surely the same: constants, and values made from
        them."""
        found = self._keys.get(value)
        if found is None:
            op = self.floating.get(value)
            found = value
            if op is not None:
                found = self._number((self.structure(op), *map(self.key, op.operands)))
            self._keys[value] = found
        return found

    def kind(self, value: Value) -> str:
        """Return a key that is equal for values which may be one operand in two iterations."""
        found = self._kinds.get(value)
        if found is None:
            op = self.floating.get(value)
            if op is None or op.name != "const" or value.type == t.INT:
                found = str(value.type)
            else:
                found = print_literal(op.attrs["value"])
            self._kinds[value] = found
        return found

    def last(self, value: Value) -> int:
        """Return the place of the op from which on the value exists."""
        if value in self.places:
            return self.places[value][0]
        found = self._last.get(value)
        if found is None:
            op = self.floating.get(value)
            found = -1 if op is None else max((self.last(v) for v in op.operands), default=-1)
            self._last[value] = found
        return found

    def leaves(self, value: Value) -> frozenset[Value]:
        """Return the values with a place from which a floating value is computed."""
        if value not in self.floating:
            return frozenset({value})
        found = self._leaves.get(value)
        if found is None:
            operands = self.floating[value].operands
            found = frozenset(x for v in operands for x in self.leaves(v))
            self._leaves[value] = found
        return found

    def readers(self) -> dict[Value, list[int]]:
        """Return the places at which each value with a place is read, in order."""
        found: dict[Value, list[int]] = {}
        for k, read in enumerate(self.slots):
            for value in {x for s in read for x in self.leaves(s.value)}:
                found.setdefault(value, []).append(k)
        return found


def _structure(op: Op) -> tuple[object, ...]:
    """Return a key of the op without the values that it reads."""
    attrs = tuple((k, print_literal(v)) for k, v in op.attrs.items())
    types = tuple(str(r.type) for r in op.results)
    if not op.blocks:
        return (op.name, attrs, types, len(op.operands))
    own: dict[Value, int] = {}
    return (op.name, attrs, types, len(op.operands), tuple(_shape_of(b, own) for b in op.blocks))


def _shape_of(block: Block, own: dict[Value, int]) -> tuple[object, ...]:
    _number(block.args, own)
    rows: list[object] = [tuple(str(a.type) for a in block.args)]
    for op in block.ops:
        attrs = tuple((k, print_literal(v)) for k, v in op.attrs.items())
        reads = tuple(own.get(v, -1) for v in op.operands)
        inner = tuple(_shape_of(b, own) for b in op.blocks)
        types = tuple(str(r.type) for r in op.results)
        rows.append((op.name, attrs, reads, inner, types))
        _number(op.results, own)
    return tuple(rows)


def _number(values: Sequence[Value], own: dict[Value, int]) -> None:
    """Gives each value the next number."""
    for v in values:
        own[v] = len(own)


# -- floating ops --


def _floating(block: Block) -> dict[Value, Op]:
    """Constants and arithmetic on them; views of tensors, where nothing changes in place."""
    found: dict[Value, Op] = {}
    depth: dict[Value, int] = {}
    made = {r: op for op in block.ops for r in op.results}
    is_still = not any(_changes(o, made) for o in walk(block))
    groups = Counter((op.name, op.operands[0]) for op in block.ops if op.name in _VIEWS)
    for op in block.ops:
        if op.name in NUMBERS:
            floats = "cls" not in op.attrs and all(_is_plain(v) for v in op.results)
            floats = floats and (not op.name.startswith("py.") or _is_int(op))
            floats = floats and not _is_collected(op)
        elif is_still and op.name in _VIEWS:
            base = op.operands[0]
            many = base not in made or groups[op.name, base] >= FEWEST
            floats = many and _is_view(op, made) and all(v in found for v in op.operands[1:])
        else:
            floats = False
        deep = 1 + max((depth.get(v, 0) for v in op.operands), default=0)
        if floats and deep <= _DEEPEST:
            depth.update((r, deep) for r in op.results)
            found.update((r, op) for r in op.results)
    return found


def _is_plain(value: Value) -> bool:
    """Return whether the value can be made a second time. A list cannot: it has an identity."""
    return isinstance(value.type, t.TupleType) or t.is_immutable(value.type)


def _is_collected(op: Op) -> bool:
    """Return whether the op makes a tuple that may collect tensors of the iterations."""
    return op.name == "tuple.make" and sum(v.type == t.TENSOR for v in op.operands) >= FEWEST


def _is_int(op: Op) -> bool:
    return op.name.startswith("py.") and all(v.type == t.INT for v in (*op.operands, *op.results))


def _is_view(op: Op, made: Mapping[Value, Op]) -> bool:
    if op.name == "torch.getitem":
        return _BASIC.issuperset(cast("tuple[str, ...]", op.attrs["spec"]))
    if op.name == "list.get":
        rows = made.get(op.operands[0])
        return rows is not None and rows.name == "torch.unbind"
    return True


def _changes(op: Op, makers: Mapping[Value, Op]) -> bool:
    """Return whether the op may change a tensor, or how PyTorch computes."""
    done = own_effects(op) if op.blocks else opdefs.effects_of(op, makers)
    return op.name not in _STILL and bool(done & (Effects.WRITES | Effects.MUTATES))
