"""Attributes and items of Python objects from outside the function: of globals, closures, classes.

In: an object that is known while compiling, and a name or a subscript. Out: the present value,
assumed to stay; for a computed attribute the body of its property, or an op that reads it each
time.

    CONFIG.rate       a constant, looked at again in each call
    CONFIG.doubled    the body of the property, with CONFIG for self
    METER.count       py.call() {target="functools.partial"}     a property that does not compile
    SCALES[0]         py.call, then an op for the item           an array of NumPy
"""

from __future__ import annotations

import ast
import enum
import functools
import inspect
from types import FunctionType
from typing import Any, Final, cast

import torch

from lowtide.frontend.script import classes
from lowtide.frontend.script.attempts import attempt_or
from lowtide.frontend.script.captured import capture
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, ITEM_OF
from lowtide.frontend.script.nodes import Node, PythonObject, describe
from lowtide.frontend.script.outside import may_change, still_finds
from lowtide.frontend.script.remedies import INDEXED, alike
from lowtide.frontend.script.source import mark_of, unwrap
from lowtide.frontend.script.subscripts import index_items, load
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value

_ABSENT: Final = object()
_ANNOTATIONS: Final = ("typing", "types", "typing_extensions")


def object_attribute(c: Context, node: ast.AST, base: PythonObject, name: str) -> Node:
    """Compile `base.name`."""
    if (id(base.obj), name) in c.assumed.assigned:
        return _ask(c, getattr, base.obj, name, t.ANY)
    if may_change(base.obj) and (member := _computed(base.obj, name)) is not None:
        return _computed_attribute(c, node, base, name, member)
    if not hasattr(base.obj, name):
        near = alike(name, dir(base.obj), "the name of an attribute that exists")
        raise c.error(node, f"{describe(base)} has no attribute {name!r}", near)
    path = f"{base.path}.{name}" if base.path else ""
    found: object = getattr(base.obj, name)
    own: object = getattr(base.obj, "__dict__", None)  # of a class it is none that can be kept
    scope = cast("dict[str, object]", own) if type(own) is dict else {}
    if isinstance(found, torch.Tensor) and scope.get(name) is found:
        return capture(c, scope, name, t.TENSOR)
    if may_change(base.obj):
        if not still_finds(base.obj, name, found):
            return _ask(c, getattr, base.obj, name, t.ANY)
        c.assumed.note(base.obj, name, found)
    return c.python_object(node, found, path)


def has_attribute(c: Context, base: PythonObject, name: str) -> Value:
    """Compile `hasattr(base, name)`."""
    if may_change(base.obj) and _computed(base.obj, name) is not None:
        return _ask(c, hasattr, base.obj, name, t.BOOL)
    is_there = hasattr(base.obj, name)
    if may_change(base.obj):
        c.assumed.note_presence(base.obj, name, is_there)
    return c.const(is_there)


def _computed(obj: object, name: str) -> object | None:
    """Return the property, or other descriptor written in Python, behind the attribute."""
    if isinstance(obj, enum.EnumMeta):
        return None
    found = inspect.getattr_static(obj, name, _ABSENT)
    of_class = inspect.getattr_static(type(obj), name, _ABSENT)
    is_own = found is not of_class and not isinstance(obj, type)  # it lies in the object itself
    if isinstance(of_class, property):
        return of_class
    if found is _ABSENT or is_own or isinstance(found, property):
        return None  # a property of the class itself is an object there
    kind = cast("type[object]", type(found))
    is_python = isinstance(getattr(kind, "__get__", None), FunctionType)
    is_ours = mark_of(found, "__lowtide_function__") is not None
    return found if is_python and not is_ours else None


def _computed_attribute(
    c: Context, node: ast.AST, base: PythonObject, name: str, member: object
) -> Node:
    def ask(_: str) -> Node:
        return _ask(c, getattr, base.obj, name, t.ANY)

    if not isinstance(member, property) or member.fget is None:
        return ask("")
    getter = unwrap(member.fget)
    c.assumed.note_class(base.obj)
    c.assumed.note_member(type(base.obj).__mro__, name)
    return attempt_or(c, lambda: c.inline(getter, node, [base]), ask, lambda _: True)


def _ask(c: Context, ask: object, obj: object, name: str, type_: t.Type) -> Value:
    """Compile a call of Python's own builtin on the attribute at run time."""
    question = _questions.setdefault(
        (ask, id(obj), name), functools.partial(cast("Any", ask), obj, name)
    )
    target = python_objects.name_of(question)
    return c.builder.emit("py.call", (), [type_], target=target, kwnames=()).result


_questions: dict[tuple[object, int, str], object] = {}  # they keep the objects, and so their ids


def object_item(c: Context, node: ast.Subscript, base: PythonObject) -> Node:
    """Compile `base[items]`: of an enum or a type its meaning, of other objects Python's item."""
    obj = base.obj
    if isinstance(obj, enum.EnumMeta):
        return classes.enum_lookup(c, node, obj, "name", c.expr(node.slice))
    if isinstance(obj, type) or type(obj).__module__ in _ANNOTATIONS:
        return _annotation(c, node)
    if not hasattr(obj, "__getitem__"):
        raise c.error(node, f"{describe(base)} has no items", INDEXED)
    held = c.as_value(base, node)
    items = index_items(c, node.slice, held.type)
    return load(c, node, held, items)


def _annotation(c: Context, node: ast.Subscript) -> Node:
    """Return `List[Tensor]` in the place of a value: an argument of annotate or isinstance."""
    try:
        return PythonObject(eval(ast.unparse(node), dict(c.frame.names)))
    except Exception as error:
        raise c.error(
            node, f"`{ast.unparse(node)}` cannot be used here: {error}", "a type"
        ) from error


ATTRIBUTE_OF[PythonObject] = object_attribute
ITEM_OF[PythonObject] = object_item
