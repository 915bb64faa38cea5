"""`d.keys()`, `d.values()` and `d.items()` where Python's view is more than a list.

In: operands of an operator, or a value that is returned or printed. Out: sets, or Python's own.

    d.keys() == {"a", "b"}     →  a comparison of sets
    d.keys() - done            →  a difference of sets
    a.items() == b.items()     →  a == b
    return d.keys()            →  py.call_method(%d) {name="keys"}

Invariant: a view is the result of an op in `VIEWS`: a list, made again where a name is read.
"""

from __future__ import annotations

import ast
from typing import Final

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Node
from lowtide.ir import types as t
from lowtide.ir.core import Op, Value
from lowtide.ir.python_ops.dicts import VIEWS

_ARITHMETIC: Final = frozenset({"py.sub", "py.and", "py.or", "py.xor"})
_EQUALITY: Final = frozenset({"py.eq", "py.ne"})
_ORDER: Final = frozenset({"py.lt", "py.le", "py.gt", "py.ge"})


def view_of(c: Context, found: Node) -> Op | None:
    """Return the op that made this view of a dict; None for other values."""
    maker = c.builder.makers.get(found) if isinstance(found, Value) else None
    return maker if maker is not None and maker.name in VIEWS else None


def shown(c: Context, found: Value) -> Value:
    """Return Python's own view in place of a list of its elements; other values as they are."""
    view = view_of(c, found)
    if view is None:
        return found
    name = view.name.removeprefix("dict.")
    return c.dynamic("py.call_method", list(view.operands), name=name, kwnames=())


def storable(c: Context, found: Node, node: ast.AST) -> Node:
    """Return the value to put into a container, an attribute or a result. Python's own views stand
    in place of views of a dict, also inside a tuple. Raises CompileError for an iterator: the
    compiled function has a list in its place, which the user would see."""
    if isinstance(found, Value) and c.is_iterator(found):
        problem = "an iterator, which can only be read, is put into a container or a result"
        raise c.error(node, problem, "`list(…)` around the iterator")
    maker = c.builder.makers.get(found) if isinstance(found, Value) else None
    if not isinstance(found, Value) or maker is None:
        return found
    if maker.name != "tuple.make" or not isinstance(found.type, t.TupleType):
        return shown(c, found)
    parts = [storable(c, part, node) for part in maker.operands]
    if all(a is b for a, b in zip(parts, maker.operands, strict=True)):
        return found
    values = [c.as_value(part, node) for part in parts]
    return c.builder.tuple_make(values, found.type.names, found.type.cls)


def storable_value(c: Context, node: ast.expr) -> Value:
    """Compile an expression whose value is put into a container."""
    return c.as_value(storable(c, c.expr(node), node), node)


def as_operands(
    c: Context, node: ast.AST, py_name: str, left: Value, right: Value
) -> tuple[Value, Value]:
    """Return both operands of a binary operator, sets in place of views."""
    views = [view_of(c, left), view_of(c, right)]
    found = [v for v in views if v is not None]
    if not found:
        return left, right
    kinds = {v.name for v in found}
    if kinds == {"dict.items"} and len(found) == 2 and py_name in _EQUALITY:
        return found[0].operands[0], found[1].operands[0]
    takes_sets = py_name in _ARITHMETIC | _EQUALITY | _ORDER
    if not takes_sets or "dict.values" in kinds:
        name = kinds.pop().removeprefix("dict.")
        problem = f"{name}() of a dict gives no list, and this operator does not take it"
        raise c.error(node, problem, "`list(…)` around it")
    joins = py_name in _ARITHMETIC  # the other operand of `keys() - xs` may be any iterable
    return (
        _as_set(c, node, left, joins or views[0] is not None),
        _as_set(c, node, right, joins or views[1] is not None),
    )


def _as_set(c: Context, node: ast.AST, value: Value, is_iterated: bool) -> Value:
    return c.py(node, "set.of", value) if is_iterated and value.type != t.NONE else value
