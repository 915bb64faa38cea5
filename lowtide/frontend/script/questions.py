"""Builtins that ask what a value is, `isinstance`, `type`, `hasattr`, `getattr`, `callable`; and
`setattr`.

In: a call of such a builtin on a compiled value. Out: a constant where its type tells, else an op
that tests it when the program runs.

    isinstance(n, int)     →  const True                     n: int
    isinstance(v, str)     →  py.isinstance(%v) {type="str"}  v: Any
    hasattr(p, "name")     →  py.call(%p, %"name") {target="builtins.hasattr"}
"""

from __future__ import annotations

from typing import Any, cast

import torch

from lowtide.frontend.script import classes, language
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context, NotKnown
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.expressions import value_attribute
from lowtide.frontend.script.module_state import join_path
from lowtide.frontend.script.narrowing import exact_class, is_instance_of_any, members, python_class
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, STORE_OF
from lowtide.frontend.script.nodes import Call, ModuleRef, Node, PythonObject
from lowtide.frontend.script.outer_objects import has_attribute, object_attribute
from lowtide.frontend.script.outside import Presence
from lowtide.frontend.script.types_from_annotations import tested_types
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import OptionalType


def _isinstance(c: Context, call: Call) -> Node:
    found, cls = call.args
    if isinstance(found, ModuleRef) and isinstance(cls, PythonObject):
        c.assumed.note_class(found.module)
        return c.const(isinstance(found.module, cast("Any", cls.obj)))
    value = classes.as_found(c, shown(c, c.as_value(found, call.node)), by_class=True)
    if not isinstance(cls, PythonObject):
        raise c.error(
            call.node, "isinstance() takes a class, or a tuple of classes", "a class by name"
        )
    tested = tested_types(cls.obj)
    if tested is None:
        raise c.error(
            call.node, "isinstance() takes a class, or a tuple of classes", "a class by name"
        )
    answers = {is_instance_of_any(member, tested) for member in members(value.type)}
    if len(answers) == 1 and None not in answers:
        return c.const(answers.pop())
    others = {
        is_instance_of_any(member, tested) for member in members(value.type) if member != t.NONE
    }
    if isinstance(value.type, OptionalType) and len(others) == 1 and None not in answers:
        return c.py(call.node, "py.is_not" if others.pop() else "py.is", value, c.const(None))
    text = str(tested[0] if len(tested) == 1 else t.UnionType(tuple(tested)))
    return c.builder.emit("py.isinstance", [value], [t.BOOL], type=text).result


def _issubclass(c: Context, call: Call) -> Node:
    """Compile `issubclass(A, B)` of classes that are known while compiling."""
    found, of = call.args
    if not isinstance(found, PythonObject) or not isinstance(of, PythonObject):
        raise c.error(call.node, "issubclass() of a class that the run decides", "isinstance()")
    return c.const(issubclass(cast("Any", found.obj), cast("Any", of.obj)))


def _type(c: Context, call: Call) -> Node:
    """Compile `type(x)`: a constant if the type in the program is exact, else computed at run
    time."""
    if len(call.args) != 1:
        raise c.error(call.node, "type() that creates a class is not compiled", "a global class")
    (found,) = call.args
    if isinstance(found, ModuleRef):
        c.assumed.note_class(found.module)
        return PythonObject(type(found.module))
    found = (
        classes.as_found(c, shown(c, found), by_class=True) if isinstance(found, Value) else found
    )
    cls = exact_class(found.type) if isinstance(found, Value) else None
    if cls is not None:
        return PythonObject(cls)
    return _ask_python(c, class_of_value, c.as_value(found, call.node))


def class_of_value(value: object) -> type:
    """Return `type(value)`, when the program runs."""
    return type(value)


def _getattr(c: Context, call: Call) -> Node:
    found, name = call.args[0], c.constant(call.args[1])
    if not isinstance(name, str):
        problem, remedy = "getattr() with a computed name is not compiled", "the attribute itself"
        raise NotKnown(problem, c.frame.source.loc(call.node), remedy)
    if isinstance(found, ModuleRef) and (len(call.args) == 2 or hasattr(found.module, name)):
        return ATTRIBUTE_OF[ModuleRef](c, call.node, found, name)
    if isinstance(found, ModuleRef):
        _rely_on_presence(c, found, name)
        return call.args[2]
    if isinstance(found, PythonObject):
        is_there = len(call.args) == 2 or c.constant(has_attribute(c, found, name)) is not False
        return object_attribute(c, call.node, found, name) if is_there else call.args[2]
    value = shown(c, c.as_value(found, call.node))
    if len(call.args) == 3 and not _class_has(value, name):
        return _ask_python(c, getattr, value, name, c.as_value(call.args[2], call.node))
    return value_attribute(c, call.node, value, name)


def _setattr(c: Context, call: Call) -> Node:
    """Return `setattr(module, "name", value)`, the same as an assignment."""
    found, name, value = call.args[0], c.constant(call.args[1]), call.args[2]
    if type(found) not in STORE_OF or not isinstance(name, str):
        raise c.error(
            call.node,
            "setattr() is compiled only for modules, with a constant name",
            "an assignment",
        )
    STORE_OF[type(found)](c, call.node, found, name, value)
    return c.const(None)


def _hasattr(c: Context, call: Call) -> Node:
    found, name = call.args[0], c.constant(call.args[1])
    if not isinstance(name, str):
        raise c.error(
            call.node, "hasattr() with a computed name is not compiled", "a constant name"
        )
    if isinstance(found, PythonObject):
        return has_attribute(c, found, name)
    if isinstance(found, ModuleRef):
        _rely_on_presence(c, found, name)
        return c.const(hasattr(found.module, name))
    value = shown(c, c.as_value(found, call.node))
    return c.const(True) if _class_has(value, name) else _ask_python(c, hasattr, value, name)


def _class_has(value: Value, name: str) -> bool:
    """Return whether all values of this type have the attribute through their class."""
    cls = None if isinstance(value.type, OptionalType) else python_class(value.type)
    return cls is not None and any(name in vars(base) for base in cls.__mro__)


def _ask_python(c: Context, ask: object, value: Value, *more: object) -> Value:
    """Compile a call of Python's own builtin, if types do not decide the answer."""
    operands = [value, *(m if isinstance(m, Value) else c.const(m) for m in more)]
    type_ = t.BOOL if ask in (hasattr, callable) else t.ANY
    name = python_objects.name_of(ask)
    return c.builder.emit("py.call", operands, [type_], target=name, kwnames=()).result


def _rely_on_presence(c: Context, ref: ModuleRef, name: str) -> None:
    """Rely on a module having, or lacking, an attribute that its class does not define."""
    if c.modules is not None and not hasattr(type(ref.module), name):
        c.modules.guard("has", join_path(ref.path, name))
        c.assumed.note_read(ref.module, name, Presence(hasattr(ref.module, name)))


def _callable(c: Context, call: Call) -> Node:
    found = call.args[0]
    if not isinstance(found, Value):
        return c.const(not isinstance(found, PythonObject) or callable(found.obj))
    known = c.const(True) if _class_has(found, "__call__") else None
    return known or _ask_python(c, callable, found)


BUILTINS.update(
    {
        callable: _callable,
        isinstance: _isinstance,
        issubclass: _issubclass,
        type: _type,
        getattr: _getattr,
        hasattr: _hasattr,
        setattr: _setattr,
        torch.jit.isinstance: _isinstance,
        language.isinstance: _isinstance,
    }
)
