"""Modules and functions that are chosen at run time.

In: a `Chosen`: `self.layers[i]`, `self.a if flag else self.b`, `f = relu if flag else tanh`. Out:
one `if` for each candidate, around its use.

    self.blocks[name](x)  →  %y = if(%name == "a"): the ops of a
                                  else: if(%name == "b"): the ops of b
                                        else: raise(%name) {exception="KeyError"}

Invariant: the index is computed once, at the place of the choice.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import value_attribute
from lowtide.frontend.script.flow import choose
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, CALL_OF, VALUE_OF
from lowtide.frontend.script.nodes import Call, Chosen, Node, PythonObject, describe
from lowtide.frontend.script.remedies import CALLABLES
from lowtide.ir import types as t
from lowtide.ir.core import Value


def _one_of(
    c: Context, node: ast.AST, chosen: Chosen, compile_one: Callable[[Node], Node]
) -> Value:
    """Compile one use for each candidate; return the result of the one that is chosen at run
    time."""
    count = len(chosen.nodes)

    def from_member(k: int) -> Value:
        if k == count:
            return _out_of_range(c, chosen)
        is_last_way = chosen.index.type == t.BOOL and k == count - 1
        one = lambda: c.as_value(compile_one(chosen.nodes[k]), node)  # noqa: E731
        if is_last_way:
            return one()
        return choose(c, node, _is_turn(c, node, chosen, k), one, lambda: from_member(k + 1))

    return from_member(0)


def _is_turn(c: Context, node: ast.AST, chosen: Chosen, k: int) -> Value:
    if chosen.index.type == t.BOOL:
        return chosen.index
    if chosen.keys:
        return c.py(node, "py.eq", chosen.index, c.const(chosen.keys[k]))
    from_end = c.const(k - len(chosen.nodes))
    forward = c.py(node, "py.eq", chosen.index, c.const(k))
    return c.py(node, "py.or", forward, c.py(node, "py.eq", chosen.index, from_end))


def _out_of_range(c: Context, chosen: Chosen) -> Value:
    if chosen.keys:
        c.builder.emit("raise", [chosen.index], exception="KeyError")
    else:
        operands, template = [chosen.index], "index {0} is out of range"  # as nn.ModuleList says
        message = c.builder.emit("py.format", operands, [t.STR], template=template).result
        c.builder.emit("raise", [message], exception="IndexError")
    return c.builder.undef()


def _chosen_call(c: Context, chosen: Chosen, call: Call) -> Node:
    def call_one(found: Node) -> Node:
        if type(found) not in CALL_OF:
            raise c.error(call.node, f"{describe(found)} cannot be called", CALLABLES)
        return CALL_OF[type(found)](c, found, call)

    return _one_of(c, call.node, chosen, call_one)


def _chosen_attribute(c: Context, node: ast.AST, chosen: Chosen, name: str) -> Node:
    if any(isinstance(found, Value) for found in chosen.nodes):  # a parameter of each
        return value_attribute(c, node, _chosen_value(c, node, chosen), name)

    def attribute(found: Node) -> Node:
        if isinstance(found, PythonObject):
            return c.python_object(node, getattr(found.obj, name))
        return ATTRIBUTE_OF[type(found)](c, node, found, name)

    return Chosen(chosen.index, tuple(map(attribute, chosen.nodes)), chosen.keys)


def _chosen_value(c: Context, node: ast.AST, chosen: Chosen) -> Value:
    return _one_of(c, node, chosen, lambda n: n)


CALL_OF[Chosen] = _chosen_call
ATTRIBUTE_OF[Chosen] = _chosen_attribute
VALUE_OF[Chosen] = _chosen_value
