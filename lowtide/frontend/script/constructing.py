"""Constructor calls: `cls(args)` of a class, an enum, a dataclass, a named tuple.

In: the class, and compiled arguments. Out: ops, and the body of `__init__`.

    Point(1, 2)     →  %p: Class['m.Point'] = object.new {cls='m.Point'}, then __init__'s body
    Color(1)        →  enum.const, or enum.get where only the run knows the value
    Pair(a, b)      →  tuple.make(%a, %b) {cls='m.Pair'}
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from lowtide.frontend.script import classes
from lowtide.frontend.script.arguments import default_value
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import storable
from lowtide.frontend.script.nodes import Call, Node
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.types_from_annotations import field_type
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import ClassType, DictType


def construct(
    c: Context, node: ast.AST, cls: type[Any], args: Sequence[Node], keywords: Mapping[str, Node]
) -> Node:
    """Compile `cls(args)`."""
    is_enum: bool = issubclass(cls, enum.Enum)
    if is_enum:
        return _enum_by_value(c, node, cls, args)
    if hasattr(cls, "__dataclass_fields__") and _init_is_generated(cls):
        return _make_dataclass(c, node, cls, args, keywords)
    init = inspect.getattr_static(cls, "__init__", None)
    made = _new(c, cls)
    if isinstance(init, FunctionType):
        c.assumed.note_member(cls.__mro__, "__init__")
        c.inline(init, node, [made, *args], keywords)
    elif args or keywords:
        raise c.error(node, f"{cls.__name__}() takes no arguments", f"{cls.__name__}()")
    return made


def can_construct(cls: type[Any]) -> bool:
    """Return whether objects of the class are made by Python code that can be compiled."""
    if issubclass(cls, enum.Enum):
        return True
    if issubclass(cls, BaseException) or cls.__module__ in ("builtins", "collections"):
        return False
    init = inspect.getattr_static(cls, "__init__", None)
    own_new = inspect.getattr_static(cls, "__new__", None) is not inspect.getattr_static(
        object, "__new__"
    )
    return not own_new and (isinstance(init, FunctionType) or init is object.__init__)


def _new(c: Context, cls: type) -> Value:
    name = python_objects.name_of(cls)
    return c.builder.emit("object.new", (), [ClassType(name)], cls=name).result


def _enum_by_value(c: Context, node: ast.AST, cls: type[enum.Enum], args: Sequence[Node]) -> Node:
    known = c.constant(args[0]) if len(args) == 1 else None
    for member in cls:
        if is_literal(known) and member.value == known:
            return classes.enum_member(c, member)
    return classes.enum_lookup(c, node, cls, "value", args[0])


def _init_is_generated(cls: type) -> bool:
    init = inspect.getattr_static(cls, "__init__", None)
    return isinstance(init, FunctionType) and init.__code__.co_filename.startswith("<")


def _make_dataclass(
    c: Context, node: ast.AST, cls: type, args: Sequence[Node], keywords: Mapping[str, Node]
) -> Node:
    made = _new(c, cls)
    signature = inspect.signature(cls)
    fields = dataclasses.fields(cast("Any", cls))
    try:
        bound = signature.bind(*args, **keywords).arguments
    except TypeError as error:
        raise c.error(node, f"{cls.__name__}(): {error}", f"{cls.__name__}{signature}") from error
    for field in fields:
        if field.name in bound:
            value: Node = bound[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            value = _from_factory(c, node, field.default_factory)
        elif field.init:
            value = default_value(c, node, field.name, field.default)
        else:
            continue  # the class has it, or __post_init__ sets it
        stored = c.as_value(storable(c, value, node), node)
        classes.declare(c, ClassType(python_objects.name_of(cls)), field.name, stored)
        _set_field(c, cls, made, field.name, stored)
    for_init = {k: p for k, p in signature.parameters.items() if k not in {f.name for f in fields}}
    given = [
        bound[k] if k in bound else default_value(c, node, k, p.default)
        for k, p in for_init.items()
    ]
    if classes.method_of(made.type, "__post_init__") is not None:
        classes.call_method(c, node, made, "__post_init__", given)
    return made


def _set_field(c: Context, cls: type, made: Value, name: str, value: Value) -> None:
    frozen = cast("Any", cls).__dataclass_params__.frozen
    c.effect("attr.set", made, value, name=name, **({"frozen": True} if frozen else {}))


def _from_factory(c: Context, node: ast.AST, factory: object) -> Node:
    if factory is list:
        return c.builder.list_make([])
    if factory is dict:
        return c.builder.emit("dict.make", (), [DictType(t.NEVER, t.NEVER)]).result
    if isinstance(factory, FunctionType):
        return c.inline(factory, node, [])
    if isinstance(factory, type) and can_construct(factory):
        return construct(c, node, factory, [], {})
    raise c.error(node, f"the default_factory {factory!r} is not compiled", "`list` or a `def`")


def named_tuple(c: Context, cls: type, call: Call) -> Node:
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    defaults: dict[str, object] = getattr(cls, "_field_defaults", {})
    given = dict(zip(fields, call.args, strict=False)) | call.keywords
    values: list[Value] = []
    if len(call.args) > len(fields) or not set(call.keywords) <= set(fields):
        raise c.error(
            call.node, f"{cls.__name__}() takes {', '.join(fields)}", "one value for each"
        )
    for name in fields:
        if name in given:
            declared = field_type(cls, name, c.frame.names)
            value = as_declared(c, given[name], declared)
            values.append(c.as_value(value, call.node))
        elif name in defaults:
            found = default_value(c, call.node, name, defaults[name])
            values.append(c.as_value(found, call.node))
        else:
            raise c.error(call.node, f"{cls.__name__}() lacks {name!r}", f"`{name}=…`")
    return c.builder.tuple_make(values, fields, python_objects.name_of(cls))
