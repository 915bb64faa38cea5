"""Attributes and methods of objects. `class_operators` has operators, `constructing` constructors.

In: values of a class type, and the Python class. Out: ops; methods are inlined.

    p.norm()            →  the method's body, with self = %p
    p.x                 →  attr.get(%p) {name='x'}

Invariant: at run time an object is an instance of the user's own class, so Python can run what
is not compiled, such as the `__eq__` of a dataclass.
"""

from __future__ import annotations

import ast
import enum
import inspect
import sysconfig
from collections.abc import Mapping, Sequence
from types import FunctionType, MemberDescriptorType
from typing import Any, cast

import torch

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.declared_in_methods import declared_in_init
from lowtide.frontend.script.decorators import IGNORED, modifier
from lowtide.frontend.script.nodes import Method, Node, PythonObject, describe
from lowtide.frontend.script.outside import may_change
from lowtide.frontend.script.remedies import alike, of_class
from lowtide.frontend.script.source import read_source
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import ClassType, DictType, ListType, Type

_ABSENT = object()


def class_of(type_: Type) -> type[Any] | None:
    """Return the Python class for a class type, None for other types."""
    if not isinstance(type_, ClassType):
        return None
    try:
        found = python_objects.find(type_.name)
    except KeyError:
        return None
    return cast("type[Any]", found) if isinstance(found, type) else None


def enum_member(c: Context, member: enum.Enum) -> Value:
    """Return a constant: a member of an enum, or several flags together."""
    name = python_objects.name_of(type(member))
    if member.name not in type(member).__members__:
        operands = [c.const(member.value)]
        return c.builder.emit("enum.get", operands, [ClassType(name)], enum=name, by="value").result
    return c.builder.emit("enum.const", (), [ClassType(name)], enum=name, member=member.name).result


def enum_lookup(c: Context, node: ast.AST, cls: type, by: str, key: Node) -> Node:
    """Return the enum member for a name or value that is known at run time."""
    name = python_objects.name_of(cls)
    operands = [c.as_value(key, node)]
    return c.builder.emit("enum.get", operands, [ClassType(name)], enum=name, by=by).result


def get_attribute(c: Context, node: ast.AST, base: Node, name: str) -> Node:
    """Compile `base.name` of an object."""
    assert isinstance(base, Value)
    owner = base
    if isinstance(base.type, t.OptionalType):
        base = c.builder.emit("cast", [base], [base.type.elem]).result
    cls = class_of(base.type)
    found = inspect.getattr_static(cls, name, _ABSENT) if cls is not None else _ABSENT
    if cls is None or isinstance(found, MemberDescriptorType):
        return _read(c, base, name)
    if isinstance(found, FunctionType | property | staticmethod | classmethod):
        c.assumed.note_member(cls.__mro__, name)
        if not isinstance(found, property):  # the object may have its own
            c.assumed.called.setdefault(owner, set()).add(name)
    is_enum: bool = issubclass(cls, enum.Enum)
    if is_enum and name in ("name", "value"):
        return _enum_attribute(c, base, cls, name)
    if isinstance(found, property) and modifier(found.fget) in IGNORED:
        return c.dynamic("attr.get", [base], name=name)
    if isinstance(found, property):
        return c.inline(cast("FunctionType", found.fget), node, [base])
    if isinstance(found, staticmethod):
        return PythonObject(found.__func__)
    if isinstance(found, FunctionType | classmethod):
        return Method(base, name)
    if found is _ABSENT and not _has_instance_attribute(c, cls, name):
        if method_of(base.type, "__getattr__") is not None:
            return c.by_getattr(base, name)  # the object may have one of its own by then
        if not may_change(cls):  # of a package: SimpleNamespace, say, which declares nothing
            return c.dynamic("attr.get", [base], name=name)
        declared = f"an attribute that {cls.__name__} declares or assigns"
        names = {*dir(cls), *annotations_of(cls), *_assigned_in(cls)}
        near = of_class(cls, name, names, declared)
        raise c.error(node, f"{describe(base)} has no attribute {name!r}", near)
    return _read(c, base, name)


def _read(c: Context, base: Value, name: str) -> Value:
    type_ = attribute_type(c, base.type, name)
    return c.builder.emit("attr.get", [base], [type_], name=name).result


def as_found(c: Context, value: Value, *, by_class: bool = False) -> Value:
    """Return the value as it is tested: an object's attribute may hold something other than its
    class declares. A test for None is then made at run time. With `by_class`, so is a class test if
    Python takes an int for a float; `attr.get` raises for anything else that was not declared."""
    maker = c.builder.makers.get(value)
    cls = class_of(maker.operands[0].type) if maker and maker.name == "attr.get" else None
    if cls is None or t.is_dynamic(value.type) or issubclass(cls, enum.Enum | torch.nn.Module):
        return value
    if by_class and value.type != t.FLOAT:
        c.builder.emit("use", [value])
        return value
    return c.builder.emit("cast", [value], [t.ANY]).result


def set_attribute(c: Context, node: ast.AST, base: Node, value: Node) -> None:
    """Compile `base.name = value`. `node`: the target."""
    assert isinstance(node, ast.Attribute)
    name = node.attr
    if isinstance(base, Value) and isinstance(base.type, t.OptionalType):
        base = c.builder.emit("cast", [base], [base.type.elem]).result
    if isinstance(base, Value) and base.type == t.TENSOR and name in SET_OF_TENSORS:
        stored, target = c.as_value(value, node), f"Tensor.{name}.__set__"
        c.builder.emit("mutate", [base, stored], [t.NONE], target=target, kwnames=())
        return
    if not isinstance(base, Value) or not (
        isinstance(base.type, ClassType) or t.is_dynamic(base.type)
    ):
        problem = f"`{ast.unparse(node)} = ...`: {describe(base)} takes no attributes"
        raise c.error(node, problem, _set_instead(base))
    stored = c.as_value(value, node)
    cls = class_of(base.type)
    found = inspect.getattr_static(cls, name, None) if cls is not None else None
    if isinstance(found, property):
        c.assumed.note_member(cast("type", cls).__mro__, name)
        if found.fset is None:
            raise c.error(node, f"the property {name!r} has no setter", f"@{name}.setter")
        c.inline(cast("FunctionType", found.fset), node, [base, stored])
        return
    if isinstance(base.type, ClassType):
        declare(c, base.type, name, stored)
    c.effect("attr.set", base, stored, name=name)


IN_PLACE = ("data", "grad", "real", "imag")  # of a tensor: what can be changed in place
SET_OF_TENSORS = (*IN_PLACE, "requires_grad")  # what `x.name = …` sets


def _set_instead(base: Node) -> str:
    if not isinstance(base, Value) or not t.is_tensor(base.type):
        return "an object of a class that has the attribute"
    return "a function marked `@lt.ignore` that sets it"


def declare(c: Context, owner: ClassType, name: str, value: Value) -> None:
    """Note the type of an attribute; `[]` takes the type that the class declares."""
    declared = _declared(owner, name)
    if declared is None:
        before = c.attributes.get((owner.name, name), t.NEVER)
        c.attributes[owner.name, name] = t.join(before, value.type)
    elif isinstance(declared, ListType | DictType) and type(declared) is type(value.type):
        c.builder.widen(value, t.join(declared, value.type))


def attribute_type(c: Context, owner: Type, name: str) -> Type:
    """Return an attribute's type: as declared, as assigned so far, as the class's default, else
    Any."""
    if not isinstance(owner, ClassType):
        return t.ANY
    seen = c.attributes.get((owner.name, name)) or _type_of_default(owner, name)
    return _declared(owner, name) or seen


def _type_of_default(owner: ClassType, name: str) -> Type:
    """Return the type of `class Config: scale = 1.0`; an instance may override the value."""
    found = inspect.getattr_static(class_of(owner), name, None)
    return (t.type_of(found) or t.ANY) if isinstance(found, bool | int | float | str) else t.ANY


def _declared(owner: ClassType, name: str) -> Type | None:
    cls = class_of(owner)
    if cls is None:
        return None
    for base in cls.__mro__:
        hints = inspect.get_annotations(base)
        if name in hints:
            module = inspect.getmodule(base)
            return type_from_annotation(hints[name], vars(module) if module else {})
    return declared_in_init(cls, name)


def annotations_of(cls: type) -> Mapping[str, object]:
    """Return the fields that a class declares."""
    return {k: v for base in cls.__mro__ for k, v in inspect.get_annotations(base).items()}


def _is_assigned(c: Context, cls: type, name: str) -> bool:
    return (python_objects.name_of(cls), name) in c.attributes


def _has_instance_attribute(c: Context, cls: type, name: str) -> bool:
    """Return whether the class declares or assigns it; assignments elsewhere are unknown."""
    known = name in annotations_of(cls) or _is_assigned(c, cls, name)
    return known or name in _assigned_in(cls)


def _assigned_in(cls: type) -> set[str]:
    found: set[str] = set()
    for base in cls.__mro__:
        for member in base.__dict__.values():
            code = getattr(member, "__code__", None)
            found.update(code.co_names if code is not None else ())
    return found


def _enum_attribute(c: Context, base: Value, cls: type[enum.Enum], name: str) -> Value:
    maker = c.builder.makers.get(base)
    if maker is not None and maker.name == "enum.const":
        known = getattr(cls[str(maker.attrs["member"])], name)
        if is_literal(known):
            return c.const(known)
    kinds = [t.type_of(getattr(m, name)) or t.ANY for m in cls]
    kinds += [t.NONE] if issubclass(cls, enum.Flag) and name == "name" else []
    return c.builder.emit("attr.get", [base], [t.join_all(kinds)], name=name).result


_STDLIB = sysconfig.get_path("stdlib")  # an Enum's __str__, a dataclass's __repr__ are Python's


# ---- methods --------------------------------------------------------------------------------


def method_of(type_: Type, name: str) -> FunctionType | None:
    """Return the method of this name if its source can be inlined."""
    cls = class_of(type_)
    found = inspect.getattr_static(cls, name, None) if cls is not None else None
    if isinstance(found, classmethod):
        found = cast("Any", found).__func__
    if not isinstance(found, FunctionType) or modifier(found) in IGNORED:
        return None
    file = found.__code__.co_filename
    return None if file.startswith(("<", _STDLIB)) else found


def call_method(
    c: Context,
    node: ast.AST,
    receiver: Value,
    name: str,
    args: Sequence[Node],
    keywords: Mapping[str, Node] | None = None,
) -> Node:
    """Compile `receiver.name(args)`: inlined if there is source, else called by Python."""
    fn = method_of(receiver.type, name)
    if fn is not None:
        first: Node = receiver
        cls = class_of(receiver.type)
        assert cls is not None
        c.assumed.note_member(cls.__mro__, name)
        if isinstance(inspect.getattr_static(cls, name, None), classmethod):
            first = PythonObject(cls)
        return c.inline(fn, node, [first, *args], keywords or {})
    cls = class_of(receiver.type)
    if cls is not None and not hasattr(cls, name):
        near = alike(name, dir(cls), f"a method of {cls.__name__}")
        raise c.error(node, f"{describe(receiver)} has no method {name!r}", near)
    named = {k: c.as_value(v, node) for k, v in (keywords or {}).items()}
    operands = [receiver, *(c.as_value(a, node) for a in args), *named.values()]
    return c.dynamic("py.call_method", operands, name=name, kwnames=tuple(named))


def iterated(c: Context, node: ast.AST, value: Value) -> Node | None:
    """Return the elements of a loop over an object: Python's iterator, as a list."""
    return c.py(node, "py.iter", value) if is_iterable(value.type) else None


def is_iterable(type_: Type) -> bool:
    """Return whether it is a class whose objects Python can run over."""
    cls = class_of(type_)
    return cls is not None and (hasattr(cls, "__iter__") or hasattr(cls, "__getitem__"))


def entered_type(c: Context, manager: Type) -> Type:
    """Return the type of x in `with manager as x`."""
    fn = method_of(manager, "__enter__")
    if fn is None:
        return t.ANY
    annotation = inspect.signature(fn).return_annotation
    if annotation is not inspect.Signature.empty:
        return type_from_annotation(annotation, fn.__globals__) or t.ANY
    source = read_source(fn).node
    first = source.args.args[0].arg
    returned = [n.value for n in ast.walk(source) if isinstance(n, ast.Return)]
    gives_self = all(isinstance(r, ast.Name) and r.id == first for r in returned)
    return (manager if gives_self else t.ANY) if returned else t.NONE
