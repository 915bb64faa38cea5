"""Tuple and list displays, and concatenations of them.

In: a display's AST, or nodes in order. Out: a tuple or a list. If an element is no SSA value, such
as a module, the result is `Members`, a compile-time sequence.

    (x, y)                 →  tuple.make(%x, %y)
    (self.a, self.b)       →  Members(the module a, the module b)
    [("a", self.a), …]     →  Members(Members("a", the module a), …)

Invariant: what is in `Members` cannot change, so a list among them is one that nothing is added
to; what is only run over, `for f in (torch.tanh, self.a)`, is known by each whatever it is.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.dict_views import storable
from lowtide.frontend.script.expressions import known_elements, plain
from lowtide.frontend.script.node_tables import ELEMENTS_OF
from lowtide.frontend.script.nodes import (
    ITERATORS,
    BoundMethod,
    Chosen,
    FinishedMethod,
    LocalFunction,
    Members,
    ModuleRef,
    Node,
    Partial,
    PythonObject,
)
from lowtide.frontend.script.targets import unpacked
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ListType

Display = ast.Tuple | ast.List


@expression(ast.Tuple)
def compile_tuple(c: Context, node: ast.Tuple) -> Node:
    """`a, b`; of classes, a Python object: what isinstance takes."""
    found = _elements(c, node)
    return found if isinstance(found, Value) else _of_nodes(c, node, found)


@expression(ast.List)
def compile_list(c: Context, node: ast.List) -> Node:
    """`[a, b]`."""
    found = _elements(c, node)
    return found if isinstance(found, Value) else _of_nodes(c, node, found)


def run_over(c: Context, node: ast.expr) -> Node:
    """Return what a loop runs over. A display in the loop's head is used by the loop only."""
    if not isinstance(node, Display):
        return c.expr(node)
    with c.at(node):
        found = _elements(c, node)
        if isinstance(found, Value):
            return found
        if any(isinstance(f, _KNOWN) for f in found):
            return Members(tuple(found))
        return _of_nodes(c, node, found)


def list_of_nodes(c: Context, node: ast.AST, nodes: Sequence[Node]) -> Node:
    """Return a list of compiled nodes."""
    if not all(map(has_value, nodes)):
        return Members(tuple(nodes))
    return c.builder.list_make([c.as_value(storable(c, n, node), node) for n in nodes])


def settled(c: Context, found: Node, node: ast.AST) -> Node:
    """Return the SSA value of a node, if it has one."""
    return c.as_value(found, node) if has_value(found) else found


def _of_nodes(c: Context, node: Display, nodes: Sequence[Node]) -> Node:
    if isinstance(node, ast.List):
        return list_of_nodes(c, node, nodes)
    objects = [n.obj for n in nodes if isinstance(n, PythonObject)]
    if nodes and len(objects) == len(nodes):
        return PythonObject(tuple(objects))
    if not all(map(has_value, nodes)):
        return Members(tuple(nodes))
    of_each = node.elts if len(node.elts) == len(nodes) else [node] * len(nodes)
    return c.builder.tuple_make([c.as_value(n, elt) for n, elt in zip(nodes, of_each, strict=True)])


def has_value(found: Node) -> bool:
    """Return whether the node can be an SSA value; a module cannot."""
    if isinstance(found, Members | Chosen):
        return all(map(has_value, found.nodes))
    return not isinstance(found, _VALUELESS)


_VALUELESS = (ModuleRef, BoundMethod, FinishedMethod, Partial)
_KNOWN = (*_VALUELESS, LocalFunction, PythonObject, Members, Chosen)


def _elements(c: Context, node: Display) -> list[Node] | Value:
    """Return the elements of a display, or one list or tuple if their number is unknown."""
    nodes: list[Node] = []
    spreads: dict[int, Value] = {}  # by the place in `nodes`, those of unknown length
    for elt in node.elts:
        if not isinstance(elt, ast.Starred):
            nodes.append(c.expr(elt))
            continue
        found = c.expr(elt.value)
        if type(found) in ELEMENTS_OF:
            nodes.extend(ELEMENTS_OF[type(found)](c, elt, found))
            continue
        spread = c.read(found, elt) if isinstance(found, ITERATORS) else plain(c, found, elt)
        known = known_elements(c, spread)
        if known is None:
            spreads[len(nodes)] = spread
        nodes.extend([spread] if known is None else known)
    return _spread(c, node, nodes, spreads) if spreads else nodes


def _spread(c: Context, node: Display, nodes: Sequence[Node], spreads: dict[int, Value]) -> Value:
    """Return one list or tuple of the elements, with starred ones spread."""
    parts = [
        spreads[k] if k in spreads else c.builder.tuple_make([c.as_value(n, node)])
        for k, n in enumerate(nodes)
    ]
    values = unpacked(c, node, parts)
    if isinstance(node, ast.List):
        return values
    elem = values.type.elem if isinstance(values.type, ListType) else t.ANY
    return c.builder.emit("py.tuple", [values], [ListType(elem)]).result
