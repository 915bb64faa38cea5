"""Assignment: to names, tuples of names, items of tensors and lists.

In: an assignment's target and the compiled value. Out: variables bound, or ops that change an item.

    a, (b, *_)  a starred target is a CompileError; anything else unpacks as in Python
    x[i] = v    →  x = mutate(%x, %i, %v) {target="Tensor.__setitem__", kwnames=(), spec=("int",)}
    xs[i] = v   →  xs = list.set(%xs, %i, %v)

Always holds: changing an item of a variable binds the variable to the op's result, so that program
order is also data flow.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.indexing import Items, index_items, load
from lowtide.frontend.script.node_tables import ELEMENTS_OF, STORE_OF
from lowtide.frontend.script.nodes import Node, describe
from lowtide.frontend.script.operators import augmented
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ListType, TupleType


def assign(c: Context, target: ast.expr, value: Node) -> None:
    """Assigns a compiled value to a target."""
    match target:
        case ast.Name(id):
            c.bind(id, value)
        case ast.Tuple(elts) | ast.List(elts) if type(value) in ELEMENTS_OF:
            _unpack_nodes(c, target, elts, ELEMENTS_OF[type(value)](c, target, value))
        case ast.Tuple(elts) | ast.List(elts):
            _unpack(c, target, elts, c.as_value(value, target))
        case ast.Subscript():
            with c.at(target):
                base = c.value(target.value)
                items = index_items(c, target.slice, base.type)
                store(c, target, base, items, c.as_value(value, target))
        case ast.Starred():
            raise c.error(target, "a starred target is not compiled", "a slice: `rest = xs[1:]`")
        case ast.Attribute() if store_attribute(c, target, value):
            pass
        case ast.Attribute():
            raise c.error(
                target,
                f"`{ast.unparse(target)} = ...`: attributes cannot be assigned in a function",
                "a local variable, returned to the caller",
            )
        case _:
            raise c.error(target, f"cannot assign to `{ast.unparse(target)}`")


def store_attribute(c: Context, target: ast.Attribute, value: Node) -> bool:
    """`base.attr = value` where the base is known while compiling; tells whether it is."""
    base = c.expr(target.value)
    if type(base) not in STORE_OF:
        return False
    STORE_OF[type(base)](c, target, base, target.attr, value)
    return True


def _unpack_nodes(c: Context, target: ast.AST, elts: list[ast.expr], nodes: Sequence[Node]) -> None:
    if len(nodes) != len(elts):
        raise c.error(target, f"{len(nodes)} values are unpacked to {len(elts)} names")
    for elt, part in zip(elts, nodes, strict=True):
        assign(c, elt, part)


def store(c: Context, target: ast.Subscript, base: Value, items: Items, value: Value) -> None:
    """`base[items] = value`."""
    if t.may_be_tensor(base.type):
        operands = [base, *items.operands, value]
        changed = c.builder.emit(
            "mutate",
            operands,
            [base.type],
            target="Tensor.__setitem__",
            kwnames=(),
            spec=items.spec,
        ).result
    elif isinstance(base.type, ListType) and items.spec == ("int",):
        check_unshared(c, target, base)
        changed = c.py(target, "list.set", base, items.operands[0], value)
    else:
        raise c.error(target, f"items of {describe(base)} cannot be assigned", "a list or a tensor")
    rebind(c, target.value, changed)


def rebind(c: Context, node: ast.expr, changed: Value) -> None:
    """Binds the variable that `node` names to its changed value."""
    if isinstance(node, ast.Name):
        c.frame.vars[node.id] = changed
        changed.name = node.id
        return
    is_list = isinstance(changed.type, ListType)
    if is_list:
        raise c.error(node, "only a list that is a variable can be changed", "a variable for it")


def check_unshared(c: Context, node: ast.AST, value: Value) -> None:
    """Raises CompileError if the list can be reached by a second name."""
    if value in c.shared_lists:
        raise c.error(
            node,
            "a list is changed that has a second name, or was passed in from outside",
            "a copy: `xs = list(xs)`, and change that",
        )


def augmented_item(c: Context, node: ast.AugAssign, target: ast.Subscript, operator: str) -> None:
    """`base[items] += value`: the item is read, changed in place, and stored, as Python does."""
    base = c.value(target.value)
    items = index_items(c, target.slice, base.type)
    old = c.as_value(load(c, target, base, items), target)
    new = augmented(c, node, operator, old, c.value(node.value))
    store(c, target, base, items, new)


def _unpack(c: Context, target: ast.expr, elts: list[ast.expr], value: Value) -> None:
    for elt in elts:
        if isinstance(elt, ast.Starred):
            raise c.error(elt, "a starred target is not compiled", "a slice: `rest = xs[1:]`")
    with c.at(target):
        values = elements(c, target, value, len(elts))
    for elt, part in zip(elts, values, strict=True):
        assign(c, elt, part)


def elements(c: Context, node: ast.AST, value: Value, count: int) -> list[Value]:
    """The `count` elements of a tuple, list or tensor."""
    match value.type:
        case TupleType(elems):
            if len(elems) != count:
                raise c.error(node, f"{len(elems)} values are unpacked to {count} names")
            return [c.builder.tuple_get(value, k) for k in range(count)]
        case ListType(elem):
            maker = c.builder.makers.get(value)
            if maker is not None and maker.name == "list.make" and len(maker.operands) == count:
                return list(maker.operands)
            return c.builder.emit("unpack", [value], [elem] * count).results
        case type_ if t.may_be_tensor(type_) or type_ == t.ANY:
            elem = t.ANY if type_ == t.ANY else t.TENSOR
            return c.builder.emit("unpack", [value], [elem] * count).results
        case _:
            raise c.error(node, f"{describe(value)} cannot be unpacked", "a tuple or a list")
