"""Compiles operators and builtins on objects by inlining the methods of their classes.

In: operands of a class type. Out: the result of the method that Python would call. If that method
has no source, the op stays and Python runs it.

    a + b     →  the body of a's __add__; of b's __radd__ if a has none, or it gives NotImplemented
    -a        →  the body of __neg__
"""

from __future__ import annotations

import ast

from lowtide.errors import CompileError
from lowtide.frontend.script import classes
from lowtide.frontend.script.attempts import attempt
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import PythonObject
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ClassType

_DUNDERS = {
    "py.add": "add", "py.sub": "sub", "py.mul": "mul", "py.truediv": "truediv", "py.mod": "mod",
    "py.floordiv": "floordiv", "py.pow": "pow", "": "matmul", "py.and": "and", "py.or": "or",
    "py.xor": "xor", "py.lshift": "lshift", "py.rshift": "rshift", "py.lt": "lt", "py.le": "le",
    "py.gt": "gt", "py.ge": "ge", "py.eq": "eq", "py.ne": "ne",
}  # fmt: skip
_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def binary(c: Context, node: ast.AST, py_name: str, left: Value, right: Value) -> Value | None:
    """Compile an operator if one operand is an object; return None if neither is."""
    if not any(isinstance(v.type, ClassType) for v in (left, right)):
        return None
    name = _DUNDERS[py_name]
    mirrored = _MIRRORED.get(name, f"r{name}")
    sides = [(left, name, right), (right, mirrored, left)]
    if _is_derived(right, left):  # Python tries a subclass's method first
        sides.reverse()
    for own, method, other in sides:
        found = _operator_method(c, node, own, f"__{method}__", other)
        if found is not None:
            return found
    if name == "ne" and classes.method_of(left.type, "__eq__") is not None:
        equal = classes.call_method(c, node, left, "__eq__", [right])
        return c.py(node, "py.not", c.truth(c.as_value(equal, node)))
    result = t.BOOL if name in _MIRRORED else t.ANY
    return c.builder.emit(py_name or "py.matmul", [left, right], [result]).result


def _is_derived(value: Value, other: Value) -> bool:
    cls, base = classes.class_of(value.type), classes.class_of(other.type)
    return cls is not base and cls is not None and base is not None and issubclass(cls, base)


def _operator_method(
    c: Context, node: ast.AST, own: Value, method: str, other: Value
) -> Value | None:
    """Return the method's result; None if there is no method, or it may return NotImplemented."""
    fn = classes.method_of(own.type, method)
    if fn is None:
        return None
    if "NotImplemented" not in fn.__code__.co_names:
        return c.as_value(classes.call_method(c, node, own, method, [other]), node)
    found = attempt(c, lambda: _value_given(c, node, own, method, other))
    return None if isinstance(found, CompileError) else found


def _value_given(c: Context, node: ast.AST, own: Value, method: str, other: Value) -> Value | None:
    found = classes.call_method(c, node, own, method, [other])
    declines = isinstance(found, PythonObject) and found.obj is NotImplemented
    return None if declines else c.as_value(found, node)


def unary(c: Context, node: ast.AST, operand: Value, method: str) -> Value | None:
    """Compile a builtin or operator on one object: `len(p)`, `-p`; return None without a method."""
    if classes.method_of(operand.type, method) is None:
        return None
    return c.as_value(classes.call_method(c, node, operand, method, []), node)
