"""Late binding: chooses the torch op of a Python-level call, once the operands' types are known.

In: the name of a Python-level call ("operator.add", "Tensor.sum") and abstract operands. Out: a
record and its operands in order.

    def f(v: Any): return v + 1         py.add(%v, %1): with a tensor for %v, torch.add
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Final, cast

from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.ops import registry
from lowtide.ops.binding import Default, Gather, bind
from lowtide.ops.library import is_left, may_be_kernels
from lowtide.specialise.abstract import (
    OPAQUE,
    Abs,
    Map,
    Pending,
    Place,
    Seq,
    concrete,
    constant,
    is_constant,
)
from lowtide.texpr.build import Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index

_SOURCES: Final = {
    "py.and": "operator.and_",
    "py.or": "operator.or_",
    "py.abs": "torch.abs",
    **{
        f"py.{name}": f"operator.{name}"
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "xor"),
            *("lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "invert"),
        )
    },
}
_IN_PLACE: Final = {
    f"operator.i{name.removeprefix('py.')}": name
    for name in _SOURCES
    if name not in ("py.abs", "py.neg", "py.pos", "py.invert")
}


def source_of(op_name: str) -> str:
    """Return the torch function that an op on Python values is for tensor operands; "" if there is
    none."""
    return _SOURCES.get(op_name, "")


def on_number(op: Op, changed: Abs) -> Op | None:
    """Return the op of `v = v + y` for `v += y` of a number; None if it changes a tensor, or only
    the run knows."""
    found = type_of(changed) or t.ANY
    name = _IN_PLACE.get(str(op.attrs["target"]), "")
    if not name or not (t.is_number(found) or found == t.COMPLEX):
        return None
    return Op(name=name, operands=op.operands, results=op.results, loc=op.loc)


def may_bind(op: Op) -> bool:
    """Return whether a call of PyTorch may have a record once its operands' types or sizes are
    known."""
    records = registry.lookup(str(op.attrs["target"]))
    vague = any(not _is_plain(v.type) for v in op.operands)
    left = [r for r in records if is_left(r)]
    return (vague and len(left) < len(records)) or any(map(may_be_kernels, left))


def _is_plain(type_: t.Type) -> bool:
    return not (t.is_dynamic(type_) or isinstance(type_, t.UnionType | t.OptionalType))


def bind_late(
    source: str, operands: Sequence[Abs], kwnames: Sequence[str]
) -> tuple[Any, list[Abs]] | None:
    """Return the record that accepts these operands, the last ones by name; None if there is
    none."""
    types = [type_of(x) for x in operands]
    if None in types:
        return None
    values = [Value("", type_) for type_ in types if type_ is not None]
    split = len(values) - len(kwnames)
    bound = bind(
        registry.lookup(source), values[:split], dict(zip(kwnames, values[split:], strict=True))
    )
    if bound is None or bound.record.name == "getitem":
        return None
    known = dict(zip(values, operands, strict=True))
    found: list[Abs] = []
    for slot in bound.slots:
        if isinstance(slot, Default):
            found.append(constant(slot.value))
        elif isinstance(slot, Gather):
            found.append(Abs(Seq(tuple, tuple(known[v] for v in slot.values))))
        else:
            found.append(known[slot])
    return bound.record, found


def is_instance(x: Abs, tested: t.Type) -> bool | None:
    """isinstance() of an abstract value; None where only the run knows."""
    if is_constant(x):
        return t.is_instance(concrete(x), tested)
    if isinstance(tested, t.UnionType):
        answers = [is_instance(x, member) for member in tested.elems]
        return True if True in answers else None if None in answers else False
    name = tested.name if isinstance(tested, t.ClassType) else getattr(tested, "cls", "")
    if name:
        if isinstance(x.value, Seq):
            return issubclass(x.value.kind, cast("type", python_objects.find(name)))
        return None  # of what class a tensor or a number is, is Python's to say
    if isinstance(x.value, Seq) and isinstance(tested, t.ListType) and x.value.kind is not list:
        return False
    known = type_of(x)
    return None if known is None else t.is_subtype(known, tested)


def type_of(x: Abs) -> t.Type | None:
    """Return the type of an abstract value; None where only the run knows."""
    match x.value:
        case Val():
            return t.TENSOR
        case Index():
            return t.INT
        case Expr():
            return t.FLOAT
        case Seq(kind, elems):
            types = [type_of(e) for e in elems]
            known = [e for e in types if e is not None]
            if len(known) != len(types):
                return None
            is_list = kind is list or not elems
            return t.ListType(t.join_all(known)) if is_list else t.TupleType(tuple(known))
        case Map(keys, elems):
            types = [type_of(e) for e in elems]
            known = [e for e in types if e is not None]
            key = t.join_all(t.type_of(k) or t.ANY for k in keys)
            return t.DictType(key, t.join_all(known)) if len(known) == len(types) else None
        case Pending():
            return None
        case value if value is OPAQUE:
            return None
        case enum.Enum() | Place():
            return None
        case value:
            return t.type_of(value)
