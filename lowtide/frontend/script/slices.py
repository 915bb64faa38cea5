"""Slices: `a:b:c` in brackets, `slice(a, b, c)`, and variables that hold one.

In: a slice's AST or a `slice` node. Out: its three parts, or Python's own slice where a value is
needed.

    s = slice(1, n);  xs[s]   →  list.slice(%xs, %1, %n, %none)
    s.stop                    →  %n
    s = slice(n) if c else …  →  py.slice in both branches; xs[s] reads the parts of either

Invariant: `Builder.makers` shows the parts of a slice that the program has made.
"""

from __future__ import annotations

import ast

from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, VALUE_OF
from lowtide.frontend.script.nodes import Method, Node, Slice
from lowtide.ir import types as t
from lowtide.ir.core import Value

_PARTS = ("start", "stop", "step")


@expression(ast.Slice)
def compile_slice(c: Context, node: ast.Slice) -> Node:
    """`start:stop:step` inside brackets."""
    parts = [
        c.const(None) if p is None else c.value(p) for p in (node.lower, node.upper, node.step)
    ]
    return Slice(*parts)


def parts_of(c: Context, node: ast.AST, value: Value) -> Slice:
    """Return the parts of a slice that is a value."""
    maker = c.builder.makers.get(value)
    if maker is not None and maker.name == "py.slice":
        return Slice(*maker.operands)
    return Slice(*(c.py(node, f"py.slice_{part}", value) for part in _PARTS))


def _attribute(c: Context, node: ast.AST, found: Slice, name: str) -> Node:
    if name in _PARTS:
        return (found.start, found.stop, found.step)[_PARTS.index(name)]
    return Method(_value(c, node, found), name)


def _value(c: Context, node: ast.AST, found: Slice) -> Value:
    made = c.builder.emit("py.slice", [found.start, found.stop, found.step], [t.SLICE])
    return made.result


ATTRIBUTE_OF[Slice] = _attribute
VALUE_OF[Slice] = _value
