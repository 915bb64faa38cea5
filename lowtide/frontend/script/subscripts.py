"""Subscripts: `x[1:, None, mask]` on tensors, items and slices of lists, tuples and strings.

In: a subscript's AST. Out: `Items`, flat operands with a word for each item (see
`opdefs.Indexing`), and the ops that read them.

    x[1:n, None, idx]  →  torch.getitem(%x, %1, %n, %none, %idx) {spec=("slice", "none", "tensor")}
    t[0]               →  tuple.get(%t) {index=0}
    xs[1:]             →  list.slice(%xs, %1, %none, %none)
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from lowtide.frontend.script import classes
from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.dict_views import view_of
from lowtide.frontend.script.node_tables import ITEM_OF, VALUE_OF
from lowtide.frontend.script.nodes import Node, PythonObject, Range, Slice, describe
from lowtide.frontend.script.own_attributes import own_item
from lowtide.frontend.script.remedies import INDEXED
from lowtide.frontend.script.slices import parts_of
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type


@dataclass(slots=True)
class _Growing:
    spec: list[str] = field(default_factory=list[str])
    operands: list[Value] = field(default_factory=list[Value])

    def add(self, word: str, *operands: Value) -> None:
        self.spec.append(word)
        self.operands.extend(operands)


@dataclass(frozen=True, slots=True)
class Items:
    """The items in the brackets of a subscript: see `ir.opdefs.Indexing`."""

    spec: tuple[str, ...]
    operands: tuple[Value, ...]


@expression(ast.Subscript)
def compile_subscript(c: Context, node: ast.Subscript) -> Node:
    """`base[items]`."""
    return item_of(c, node, c.expr(node.value))


def item_of(c: Context, node: ast.Subscript, base: Node) -> Node:
    """Return `base[items]` of a compiled base."""
    c.check_no_iterator(base, node.value)
    if view_of(c, base) is not None:
        raise c.error(node, "a view of a dict has no items", f"list({ast.unparse(node.value)})")
    if type(base) in ITEM_OF:
        return ITEM_OF[type(base)](c, node, base)
    if not isinstance(base, Value):
        raise c.error(node, f"{describe(base)} has no items", INDEXED)
    base = c.not_none(base)
    if base in c.containers and (own := own_item(c, node, base)) is not None:
        return own
    return load(c, node, base, index_items(c, node.slice, base.type))


def index_items(c: Context, node: ast.expr, base: Type) -> Items:
    """Compiles what stands in the brackets of a subscript of a value of type `base`."""
    items = _Growing()
    base = base.elem if isinstance(base, OptionalType) else base
    if isinstance(base, ClassType):  # its method gets one value, a slice or a tuple too
        return Items(("tensor",), (c.as_value(c.expr(node), node),))
    if isinstance(base, DictType) or (t.is_dynamic(base) and not t.may_be_tensor(base)):
        key = c.expr(node)
        if isinstance(key, Value) and key.type != t.SLICE:
            return Items((_KEY_WORDS.get(key.type, "tensor"),), (key,))
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    for part in parts:
        if isinstance(part, ast.Starred):
            raise c.error(part, "`*` in a subscript is not compiled", "the items one by one")
        found = c.expr(part)
        if part is node and isinstance(found, Value) and isinstance(found.type, TupleType):
            for k in range(len(found.type.elems)):  # the whole index
                _add(c, node, c.builder.tuple_get(found, k), items)
        else:
            _add(c, part, found, items)
    return Items(tuple(items.spec), tuple(items.operands))


_KEY_WORDS: dict[Type, str] = {t.INT: "int", t.NUMBER: "int", t.BOOL: "bool"}


def _add(c: Context, node: ast.expr, found: Node, items: _Growing) -> None:
    if isinstance(found, Slice):
        items.add("slice", found.start, found.stop, found.step)
        return
    if isinstance(found, PythonObject) and found.obj is Ellipsis:
        items.add("ellipsis")
        return
    value = c.as_value(found, node)
    match value.type:
        case t.SLICE:
            _add(c, node, parts_of(c, node, value), items)
        case t.NONE:
            items.add("none")
        case t.BOOL:
            items.add("bool", value)
        case t.INT | t.NUMBER:
            items.add("int", value)
        case type_ if _may_index(type_):
            items.add("tensor", value)
        case _:
            raise c.error(
                node,
                f"{describe(value)} cannot be an index",
                "an int, a slice, None, ... or a tensor",
            )


def _may_index(type_: Type) -> bool:
    match type_:
        case OptionalType(elem):
            return _may_index(elem)
        case ListType() | TupleType() | ClassType() | t.STR | t.FLOAT:
            return True
        case _:
            return t.is_tensor(type_) or t.is_dynamic(type_)


def load(c: Context, node: ast.Subscript, base: Value, items: Items) -> Node:
    """Return `base[items]`, read."""
    type_ = base.type.elem if isinstance(base.type, OptionalType) else base.type
    if t.is_tensor(type_) or t.is_dynamic(type_):
        result = t.TENSOR if t.may_be_tensor(type_) else t.ANY
        return c.builder.emit(
            "torch.getitem", [base, *items.operands], [result], spec=items.spec
        ).result
    match type_, items.spec:
        case TupleType(elems), ("int",):
            return _tuple_item(c, node, base, elems, items.operands[0])
        case TupleType(elems), ("slice",):
            return _tuple_slice(c, node, base, len(elems), items.operands)
        case DictType(), (word,) if word != "slice":
            return c.py(node, "dict.item", base, items.operands[0])
        case ClassType(), (_,):
            return classes.call_method(c, node, base, "__getitem__", items.operands)
        case ((ListType() | TupleType() | t.STR), ("int" | "tensor" | "bool",)):
            return _list_item(c, node, base, items.operands[0])
        case ((ListType() | t.STR), ("slice",)):
            return c.py(node, "list.slice", base, *items.operands)
        case _ if c.may_be_skipped:
            return load(c, node, c.unknown(base), items)
        case _:
            problem = f"{describe(base)} has no items `{ast.unparse(node.slice)}`"
            raise c.error(node, problem, INDEXED)


def _range_value(c: Context, node: ast.AST, found: Range) -> Value:
    return c.py(node, "py.range", found.start, found.stop, found.step)


def _range_item(c: Context, node: ast.Subscript, found: Range) -> Node:
    """`range(n)[i]` is an int, `range(n)[1:]` a range again."""
    base = _range_value(c, node, found)
    items = index_items(c, node.slice, base.type)
    item = c.as_value(load(c, node, base, items), node)
    return item if items.spec == ("slice",) else c.builder.emit("cast", [item], [t.INT]).result


VALUE_OF[Range] = _range_value
ITEM_OF[Range] = _range_item


def _list_item(c: Context, node: ast.Subscript, base: Value, index: Value) -> Node:
    found = c.builder.py("list.get", base, index)
    if found is not None:
        return found
    if t.is_tensor(index.type):  # Python asks the tensor for an int
        return c.py(node, "list.get", base, c.py(node, "py.index", index))
    raise c.error(node, f"{describe(index)} cannot index {describe(base)}", "an int")


def _tuple_item(
    c: Context, node: ast.Subscript, base: Value, elems: Sequence[Type], index: Value
) -> Node:
    known, count = c.builder.constant(index), len(elems)
    if not isinstance(known, int) or not -count <= known < count:  # then Python raises its error
        return c.py(node, "list.get", base, index)
    if isinstance(base.type, OptionalType):  # of None, Python raises its error
        return c.builder.emit("list.get", [base, index], [elems[known]]).result
    return c.builder.tuple_get(base, known % count)


def _tuple_slice(
    c: Context, node: ast.Subscript, base: Value, count: int, bounds: Sequence[Value]
) -> Node:
    known = [c.builder.constant(b) for b in bounds]
    start, stop, step = (k if isinstance(k, int) else None for k in known)
    if UNKNOWN in known or isinstance(base.type, OptionalType):
        return c.py(node, "list.slice", base, *bounds)
    picked = range(count)[start:stop:step]
    return c.builder.tuple_make([c.builder.tuple_get(base, k) for k in picked])
