"""Overload resolution: the record that a call means, and its operands in canonical order.

In: records of `lowtide.ops.registry` and the types of the arguments as written. Out: the first
record that takes them all, with one slot for each of its parameters.

    x.sum(-1)  →  sum.dim:  self=%x · dim=Gather(%-1) · keepdim=Default(False) · dtype=…

Invariant: as many slots as parameters. A lone int for a list of ints, and the loose elements of
a variadic parameter, become a Gather: a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowtide.ir import types as t
from lowtide.ir.builder import Builder
from lowtide.ir.core import Value
from lowtide.ir.signature import accepts, result_type
from lowtide.ir.types import TupleType
from lowtide.ops.library import LIBRARY
from lowtide.ops.registry import REQUIRED, OpRecord, Param, lookup


@dataclass(frozen=True, slots=True)
class Default:
    """The parameter was left out: its default."""

    value: object


@dataclass(frozen=True, slots=True)
class Gather:
    """The elements of a list parameter that stood alone in the call."""

    values: tuple[Value, ...]


Slot = Value | Default | Gather


@dataclass(frozen=True, slots=True)
class Bound:
    """A record and what goes to each of its parameters."""

    record: OpRecord
    slots: tuple[Slot, ...]


def records_of(source: str) -> Sequence[OpRecord]:
    """Return the records of a function; one that is in both `torch` and `F` is known by either
    name. Not those of PyTorch's library, which are bound late."""
    root, _, name = source.partition(".")
    other = {"torch": "F", "F": "torch"}.get(root, root)
    found = lookup(source) or lookup(f"{other}.{name}")
    return [r for r in found if r.kind != LIBRARY]


def emit(builder: Builder, bound: Bound) -> list[Value]:
    """Adds the op that a call means; gives its results."""
    operands = [_operand(builder, slot) for slot in bound.slots]
    types = [result_type(r) for r in bound.record.results]
    results = builder.emit(f"torch.{bound.record.name}", operands, types).results
    for value, name in zip(results, bound.record.result_names, strict=False):
        value.name = name
    return results


def _operand(builder: Builder, slot: Slot) -> Value:
    match slot:
        case Gather(values):
            return builder.tuple_make(values)
        case Default(value):
            return builder.const(value)
        case _:
            return slot


def bind(
    records: Sequence[OpRecord], args: Sequence[Value], keywords: Mapping[str, Value]
) -> Bound | None:
    """Return the first record that takes these arguments, or None."""
    for record in records:
        slots = _bind_one(record.params, args, keywords)
        if slots is not None:
            return Bound(record, tuple(slots))
    return None


def _bind_one(
    params: Sequence[Param], args: Sequence[Value], keywords: Mapping[str, Value]
) -> list[Slot] | None:
    rest = list(args)
    left = dict(keywords)
    slots: list[Slot] = []
    for param in params:
        slot = _slot(param, rest, left)
        if slot is None:
            return None
        slots.append(slot)
    return None if rest or left else slots


def _slot(param: Param, rest: list[Value], left: dict[str, Value]) -> Slot | None:
    keyword = next((k for k in param.keywords if k in left), None)
    if keyword is not None:
        return _one(param, left.pop(keyword))
    if rest and not param.keyword_only:
        if param.variadic and len(rest) == 1 and rest[0].type == t.ANY:
            return None  # it may be the list of all: the run looks
        if param.variadic and _is_loose(rest):
            elems, rest[:] = tuple(rest), []
            made = TupleType(tuple(e.type for e in elems))
            return Gather(elems) if accepts(param, made) else None
        return _one(param, rest.pop(0))
    return None if param.default is REQUIRED else Default(param.default)


def _is_loose(rest: Sequence[Value]) -> bool:
    """Return whether the arguments are the elements themselves, and not one list of them."""
    return not isinstance(rest[0].type, t.ListType | TupleType)


def _one(param: Param, value: Value) -> Slot | None:
    if accepts(param, value.type):
        return value
    is_lone = value.type != t.TENSOR and accepts(param, TupleType((value.type,)))
    if is_lone:  # an int for a list of ints
        return Gather((value,))
    return None
