"""Tells whether a value of some IR type may be an operand of a torch op.

In: a parameter as a record of `lowtide.ops` writes it ("Tensor|Scalar", "int[]", optional), and a
Type. Out: a bool. Binding, which chooses the overload, and the verifier both use it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from lowtide.ir import types as t
from lowtide.ir.effects import Effects
from lowtide.ir.types import ListType, OptionalType, TupleType, Type, UnionType


class ParamLike(Protocol):
    """The members of a parameter that IR reads."""

    @property
    def name(self) -> str: ...
    @property
    def types(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> bool: ...


class RecordLike(Protocol):
    """The members of a torch op's record that IR reads; `lowtide.ops.registry.OpRecord` has
    them."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> Sequence[ParamLike]: ...
    @property
    def results(self) -> tuple[str, ...]: ...
    @property
    def kind(self) -> str: ...
    @property
    def eager(self) -> Callable[..., object]: ...
    def effects_of(self, operands: Sequence[object]) -> Effects: ...


_LEAF: dict[str, tuple[Type, ...]] = {
    "Tensor": (t.TENSOR,),
    "int": (t.INT, t.NUMBER),  # not a bool, which PyTorch refuses where it takes an int
    "float": (t.FLOAT, t.INT, t.BOOL, t.NUMBER),
    "bool": (t.BOOL, t.NUMBER),
    "complex": (t.COMPLEX,),
    "Scalar": (t.INT, t.FLOAT, t.BOOL, t.NUMBER, t.COMPLEX),
    "str": (t.STR,),
    "dtype": (t.DTYPE,),
    "device": (t.DEVICE, t.STR),
    "layout": (t.LAYOUT,),
    "memory_format": (t.MEMORY_FORMAT,),
    "Generator": (t.GENERATOR,),
}


def accepts(param: ParamLike, type_: Type) -> bool:
    """Return whether an operand of this type is valid for the parameter."""
    if type_ == t.NONE:
        return param.optional or "any" in param.types
    if isinstance(type_, OptionalType):
        return accepts(param, type_.elem)  # None is found out at run time, as in Python
    if isinstance(type_, UnionType):
        return all(accepts(param, e) for e in type_.elems)
    return any(_accepts(kind, type_) for kind in param.types)


def _accepts(kind: str, type_: Type) -> bool:
    if kind == "any" or type_ in (t.ANY, t.NEVER):
        return True
    if kind.endswith("[]"):
        return _accepts_list(kind.removesuffix("[]"), type_)
    return type_ in _LEAF.get(kind, ())


def _accepts_list(elem: str, type_: Type) -> bool:
    match type_:
        case ListType(e):
            return _accepts(elem, e)
        case TupleType(elems):
            return all(_accepts(elem, e) for e in elems)
        case _:
            return False


def result_type(text: str) -> Type:
    """Return the type of a record's result, whose text is such as "Tensor", "int[]", "Scalar",
    "Tensor?"."""
    if text.endswith("?"):
        return t.optional(result_type(text[:-1]))
    if text.endswith("[]"):
        return ListType(result_type(text[:-2]))
    aliases = {"Scalar": "number", "any": "Any"}
    return t.parse_type(aliases.get(text, text))
