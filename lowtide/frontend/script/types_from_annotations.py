"""Annotations → types.

In: an annotation, evaluated or as text (with `from __future__ import annotations`). Out: a Type;
None if there is no annotation, or none that IR has a type for.

    Optional[torch.Tensor], torch.Tensor | None  →  Optional[Tensor]
    list[int], List[int], Sequence[int]          →  List[int]
"""

from __future__ import annotations

import collections
import collections.abc
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.types import ClassType, DictType, FutureType, ListType, TupleType, Type, UnionType

PLAIN: dict[object, Type] = {
    torch.Tensor: t.TENSOR,
    torch.nn.Parameter: t.TENSOR,
    int: t.INT,
    float: t.FLOAT,
    bool: t.BOOL,
    complex: t.COMPLEX,
    str: t.STR,
    None: t.NONE,
    type(None): t.NONE,
    torch.dtype: t.DTYPE,
    torch.device: t.DEVICE,
    torch.layout: t.LAYOUT,
    torch.memory_format: t.MEMORY_FORMAT,
    torch.Generator: t.GENERATOR,
    torch.Size: ListType(t.INT),
    list: ListType(t.ANY),
    dict: DictType(t.ANY, t.ANY),
    set: t.ANY,
    torch.futures.Future: FutureType(t.ANY),
    Any: t.ANY,
    object: t.ANY,
}


_VAGUE = (set, torch.nn.Parameter, torch.Size)  # an annotation means more than these
_LEGACY_TENSOR = type(torch.LongTensor)  # and of all its kind: their values are plain tensors


def type_from_annotation(annotation: object, names: Mapping[str, object]) -> Type | None:
    """Return the type of an annotation. `names`: where names in text are looked up."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, dict(names))  # the user's own annotation, in his module
        except Exception:
            return None
    try:
        if annotation in PLAIN:
            return PLAIN[annotation]
    except TypeError:
        return None
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return t.join_all(t.type_of(v) or t.ANY for v in typing.get_args(annotation))
    make = GENERIC.get(origin)
    if make is None:
        return _named_tuple(annotation, names) or _class(annotation)
    args = typing.get_args(annotation)
    if origin is tuple and len(args) == 2 and args[1] is ...:
        make, args = _list, args[:1]
    if origin is typing.Annotated:
        args = args[:1]
    found = [type_from_annotation(a, names) for a in args]
    known = [a for a in found if a is not None]
    return make(known) if len(known) == len(found) and (known or origin is tuple) else None


def tested_types(classes: object) -> list[Type] | None:
    """Return the types of an isinstance() test; None if IR has no type for one of them. A class
    with subclasses, or whose annotation type is less exact, stands for itself."""
    if isinstance(classes, tuple):
        members = cast("tuple[object, ...]", classes)
    elif isinstance(classes, types.UnionType):
        members = typing.get_args(classes)
    else:
        one = _tested(classes)
        return None if one is None else [one]
    found = [tested_types(m) for m in members]
    known = [types for types in found if types is not None]
    return [f for types in known for f in types] if len(known) == len(found) else None


def _tested(member: object) -> Type | None:
    origin: object = getattr(member, "__origin__", None)
    if isinstance(origin, type) and not typing.get_args(member):
        member = cast("type[object]", origin)  # `typing.Sequence`, which stands for a class
    if isinstance(member, type) and (member in _VAGUE or member not in PLAIN):
        return _named_tuple(member, {}) or ClassType(python_objects.name_of(member))
    return type_from_annotation(member, {})


def _class(annotation: object) -> Type | None:
    if isinstance(annotation, _LEGACY_TENSOR):
        return t.TENSOR
    if not isinstance(annotation, type) or issubclass(annotation, torch.Tensor):
        return None
    cls = cast("type[object]", annotation)
    if type.__subclasses__(cls):  # a value may be of one of these
        return t.ANY
    return ClassType(python_objects.name_of(cls))


def _union(args: list[Type]) -> Type:
    some = tuple(a for a in args if a != t.NONE)
    union = some[0] if len(some) == 1 else UnionType(some)
    return t.optional(union) if len(some) < len(args) else union


def _list(args: list[Type]) -> Type:
    return ListType(args[0])


GENERIC: dict[object, Callable[[list[Type]], Type]] = {
    typing.Union: _union,
    types.UnionType: _union,
    list: _list,
    collections.abc.Sequence: _list,
    collections.abc.Iterable: _list,
    tuple: lambda args: TupleType(tuple(args)),
    dict: lambda args: DictType(*args),
    collections.OrderedDict: lambda args: DictType(*args),
    collections.abc.Mapping: lambda args: DictType(*args),
    collections.abc.MutableMapping: lambda args: DictType(*args),
    set: lambda args: t.ANY,
    torch.futures.Future: lambda args: FutureType(args[0]),
    typing.Final: lambda args: args[0],
    typing.ClassVar: lambda args: args[0],
    typing.Annotated: lambda args: args[0],
}


def _named_tuple(annotation: object, names: Mapping[str, object]) -> Type | None:
    fields = getattr(annotation, "_fields", None)
    if not isinstance(annotation, type) or not isinstance(fields, tuple):
        return None
    labels = tuple(str(f) for f in fields)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elems = [field_type(annotation, f, names) or t.TENSOR for f in labels]
    return TupleType(tuple(elems), labels, python_objects.name_of(cast("object", annotation)))


def field_type(cls: type, field: str, names: Mapping[str, object]) -> Type | None:
    """Return the type that the class, or one of its bases, declares for a field."""
    for base in cls.__mro__:
        hints: dict[str, object] = vars(base).get("__annotations__", {})
        if field in hints:
            module = sys.modules.get(base.__module__)
            return type_from_annotation(hints[field], {**names, **(vars(module) if module else {})})
    return None
