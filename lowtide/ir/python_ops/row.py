"""The record of one op on Python values, and the type rules that several families share.

    OpDef(name="py.len", run=len, result=always(INT))

A type rule takes the types of the operands, and returns that of the result or None.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type, UnionType

ResultType = Callable[[Sequence[Type]], Type | None]
Run = Callable[..., object]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDef:
    """One op: the operands go positionally to `run`; `result` is None where Python would raise
    TypeError. One that MUTATES changes its first operand."""

    name: str
    run: Run
    result: ResultType
    effects: Effects = Effects.NONE

    @property
    def writes(self) -> bool:
        """Return whether the op changes its first operand."""
        return Effects.MUTATES in self.effects


def always(result: Type) -> ResultType:
    """Return a rule that gives this type for all operands."""
    return lambda _: result


def lenient(rule: ResultType) -> ResultType:
    """Any gives Any, and so does a union that the rule does not take; an Optional counts as its
    element, None being found out at run time."""

    def of(operands: Sequence[Type]) -> Type | None:
        plain = [o.elem if isinstance(o, OptionalType) else o for o in operands]
        if any(o in (t.ANY, t.NEVER) for o in plain):
            return t.ANY
        found = rule(plain)
        vague = any(isinstance(o, UnionType | ClassType) for o in plain)
        return t.ANY if found is None and vague else found

    return of


def of_tensors(rule: ResultType) -> ResultType:
    """Return the rule for numbers, extended to tensors. With a tensor operand the result is a
    tensor."""

    def of(operands: Sequence[Type]) -> Type | None:
        if not any(map(t.is_tensor_or_number, operands)):
            return rule(operands)
        found: list[Type] = []
        for each in itertools.product(*map(_members, operands)):
            result = t.TENSOR if t.TENSOR in each else rule(each)
            if result is not None:
                found.append(result)
        return t.join_all(found) if found else None

    return of


def _members(type_: Type) -> tuple[Type, ...]:
    match type_:
        case UnionType(elems):
            return elems
        case OptionalType(elem):
            return _members(elem)
        case _:
            return (type_,)


def element(type_: Type) -> Type | None:
    """Return the type of the elements of an iteration over this type; None if it has none."""
    match type_:
        case ListType(elem):
            return elem
        case TupleType(elems):
            return t.join_all(elems)
        case DictType(key):
            return key
        case t.STR:
            return t.STR
        case t.ANY | t.NEVER:
            return t.ANY
        case _:
            return None


def joined_list(operands: Sequence[Type]) -> Type | None:
    """Return the type of a list with the elements of all operands."""
    elems: list[Type] = []
    for operand in operands:
        elem = element(operand)
        if elem is None:
            return None
        elems.append(elem)
    return ListType(t.join_all(elems))
