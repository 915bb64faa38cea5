"""Assignment: to names, tuples of names, items and attributes; and `del`.

In: an assignment's target and the compiled value. Out: variables bound, or ops that change an
object.

    a, *rest = xs   a starred target takes the rest, as in Python
    x[i] = v        →  x = mutate(%x, %i, %v) {target="Tensor.__setitem__", spec=("int",), …}
    xs[i] = v       →  list.set(%xs, %i, %v)
    p.x = v         →  attr.set(%p, %v) {name="x"}

Invariant: changing an item of a tensor binds its variable to the op's result, so that program
order is also data flow; lists, dicts and objects are references.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import reduce

from lowtide.frontend.script import classes
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import storable
from lowtide.frontend.script.flow import branch_on, some
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF, ELEMENTS_OF, STORE_OF
from lowtide.frontend.script.nodes import Node, Poison, describe
from lowtide.frontend.script.operators import augmented, right_side
from lowtide.frontend.script.subscripts import Items, index_items, load
from lowtide.frontend.script.torch_calls import attribute
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type


def assign(c: Context, target: ast.expr, value: Node) -> None:
    """Assigns a compiled value to a target."""
    match target:
        case ast.Name(id):
            c.bind(id, value)
        case ast.Tuple(elts) | ast.List(elts):
            if type(value) in ELEMENTS_OF:
                _unpack_nodes(c, target, elts, ELEMENTS_OF[type(value)](c, target, value))
            else:
                _unpack(c, target, elts, c.read(value, target))
        case ast.Subscript():
            with c.at(target):
                base = c.value(target.value)
                items = index_items(c, target.slice, base.type)
                plain = base.type.elem if isinstance(base.type, OptionalType) else base.type
                is_part = isinstance(target.slice, ast.Slice) and isinstance(plain, ListType)
                given = c.read if is_part else c.as_value
                value = value if is_part else storable(c, value, target)
                store(c, target, base, items, given(value, target))
        case ast.Attribute():
            with c.at(target):
                store_attribute(c, target, c.expr(target.value), value)
        case ast.Starred():
            raise c.error(target, "a starred target must stand in a tuple", "`a, *rest = xs`")
        case _:
            raise c.error(
                target,
                f"cannot assign to `{ast.unparse(target)}`",
                "a name, an item or an attribute",
            )


def store_attribute(c: Context, target: ast.Attribute, base: Node, value: Node) -> None:
    """`base.name = value`."""
    value = storable(c, value, target)
    if type(base) in STORE_OF:
        STORE_OF[type(base)](c, target, base, target.attr, value)
    else:
        classes.set_attribute(c, target, base, value)


def _unpack_nodes(c: Context, target: ast.AST, elts: list[ast.expr], nodes: Sequence[Node]) -> None:
    if len(nodes) != len(elts):
        raise c.error(
            target, f"{len(nodes)} values are unpacked to {len(elts)} names", f"{len(nodes)} names"
        )
    for elt, part in zip(elts, nodes, strict=True):
        assign(c, elt, part)


def store(c: Context, target: ast.Subscript, base: Value, items: Items, value: Value) -> None:
    """`base[items] = value`."""
    base = c.not_none(some(c, target, base, "'NoneType' object does not support item assignment"))
    match base.type, items.spec:
        case ListType(), ("int" | "tensor" | "bool",):
            widen(c, base, ListType(t.join(base.type.elem, value.type)))
            c.effect("list.set", base, items.operands[0], value)
        case ListType(), ("slice",):
            elem = value.type.elem if isinstance(value.type, ListType) else t.ANY
            widen(c, base, ListType(t.join(base.type.elem, elem)))
            c.effect("list.set_slice", base, *items.operands, value)
        case DictType(key, elem), (_,):
            index = items.operands[0]
            widen(c, base, DictType(t.join(key, index.type), t.join(elem, value.type)))
            c.effect("dict.set", base, index, value)
        case ClassType(), (_,):
            classes.call_method(c, target, base, "__setitem__", [items.operands[0], value])
        case type_, _ if t.is_tensor(type_) or t.is_dynamic(type_):
            _store_tensor(c, target, base, items, value)
        case _ if c.may_be_skipped:
            _store_tensor(c, target, c.unknown(base), items, value)
        case _:
            raise c.error(
                target, f"items of {describe(base)} cannot be assigned", "a list, a dict, a tensor"
            )


def _store_tensor(
    c: Context, target: ast.Subscript, base: Value, items: Items, value: Value
) -> None:
    changed = c.builder.emit(
        "mutate",
        [base, *items.operands, value],
        [base.type],
        target="Tensor.__setitem__",
        kwnames=(),
        spec=items.spec,
    ).result
    if isinstance(target.value, ast.Name):
        c.frame.vars[target.value.id] = changed
        changed.name = target.value.id


def widen(c: Context, value: Value, type_: Type) -> None:
    """Widen the type of a container by the value that is put into it."""
    match value.type:
        case ListType() | DictType():
            c.builder.widen(value, type_)
        case OptionalType(ListType() | DictType()):
            c.builder.widen(value, OptionalType(type_))
        case _:
            pass


def augmented_item(c: Context, node: ast.AugAssign, target: ast.Subscript, operator: str) -> None:
    """Compile `base[items] += value`: the item is read, changed in place, and stored."""
    base = c.not_none(c.value(target.value))
    items = index_items(c, target.slice, base.type)
    old = c.as_value(load(c, target, base, items), target)
    new = augmented(c, node, operator, old, right_side(c, node, old))
    if new is not old or not isinstance(base.type, ListType | DictType):
        store(c, target, base, items, new)


def augmented_attribute(c: Context, node: ast.AugAssign, operator: str) -> None:
    """Compile `base.name += value`."""
    assert isinstance(node.target, ast.Attribute)
    base = c.expr(node.target.value)
    name = node.target.attr
    if type(base) in ATTRIBUTE_OF:
        found = ATTRIBUTE_OF[type(base)](c, node.target, base, name)
    elif isinstance(base, Value) and base.type == t.TENSOR:
        found = attribute(c, node.target, base, name, "")
    else:
        found = classes.get_attribute(c, node.target, base, name)
    old = c.as_value(found, node)
    new = augmented(c, node, operator, old, right_side(c, node, old))
    is_of_tensor = isinstance(base, Value) and base.type == t.TENSOR
    is_stored = is_of_tensor and name in classes.IN_PLACE  # `x.data` is what has been changed
    if new is not old and not is_stored:
        store_attribute(c, node.target, base, new)


def delete(c: Context, target: ast.expr) -> None:
    """`del target`."""
    match target:
        case ast.Name():
            _delete_name(c, target)
        case ast.Tuple(elts) | ast.List(elts):
            for elt in elts:
                delete(c, elt)
        case ast.Subscript():
            base = c.value(target.value)
            items = index_items(c, target.slice, base.type)
            base = some(c, target, base, "'NoneType' object does not support item deletion")
            if isinstance(base.type, ClassType) and len(items.operands) == 1:
                classes.call_method(c, target, base, "__delitem__", items.operands)
                return
            name = _DELETING.get((type(base.type), items.spec))
            if name is None:
                raise c.error(
                    target, f"items of {describe(base)} cannot be deleted", "a list or a dict"
                )
            c.effect(name, base, *items.operands)
        case _:
            raise c.error(
                target, f"`del {ast.unparse(target)}` is not compiled", "`del` of a name or an item"
            )


def _delete_name(c: Context, target: ast.Name) -> None:
    """Compile `del x`: reading the variable afterwards raises Python's error."""
    deleted = c.expr(ast.copy_location(ast.Name(target.id, ast.Load()), target))
    if isinstance(deleted, Value):
        gone = c.builder.undef(deleted.type)
        c.maybe_unbound.add(gone)
        c.frame.vars[target.id] = gone
    else:
        loc = c.frame.source.loc(target)
        c.frame.vars[target.id] = Poison(f"{target.id!r} was deleted", "it before `del`", loc)


_DELETING: dict[tuple[type[Type], tuple[str, ...]], str] = {
    (ListType, ("int",)): "list.delete",
    (ListType, ("slice",)): "list.delete_slice",
    (DictType, ("int",)): "dict.delete",
    (DictType, ("tensor",)): "dict.delete",
    (DictType, ("bool",)): "dict.delete",
}


def _unpack(c: Context, target: ast.expr, elts: list[ast.expr], value: Value) -> None:
    starred = [k for k, elt in enumerate(elts) if isinstance(elt, ast.Starred)]
    with c.at(target):
        if starred:
            values = _with_rest(c, target, value, starred[0], len(elts) - starred[0] - 1)
        else:
            values = elements(c, target, value, len(elts))
    for elt, part in zip(elts, values, strict=True):
        assign(c, elt.value if isinstance(elt, ast.Starred) else elt, part)


def _with_rest(c: Context, node: ast.AST, value: Value, before: int, after: int) -> list[Value]:
    """Return the first `before` elements, a list of the rest, and the last `after` elements."""
    if isinstance(value.type, TupleType):
        count = len(value.type.elems)
        if count < before + after:
            raise c.error(
                node, f"{count} values are unpacked to at least {before + after} names", "fewer"
            )
        elems = [c.builder.tuple_get(value, k) for k in range(count)]
        rest = c.builder.list_make(elems[before : count - after])
        return [*elems[:before], rest, *elems[count - after :]]
    xs = _as_list(c, node, value)
    _check_fewest(c, node, c.py(node, "py.len", xs), before + after)
    first = [c.py(node, "list.get", xs, c.const(k)) for k in range(before)]
    last = [c.py(node, "list.get", xs, c.const(k - after)) for k in range(after)]
    stop = c.const(-after if after else None)
    return [*first, c.py(node, "list.slice", xs, c.const(before), stop, c.const(None)), *last]


def _check_fewest(c: Context, node: ast.AST, count: Value, fewest: int) -> None:
    """Raises Python's error if there are fewer values than names."""
    text = f"not enough values to unpack (expected at least {fewest}, got {{}})"

    def fail() -> None:
        message = c.builder.emit("py.format", [count], [t.STR], template=text).result
        c.builder.emit("raise", [message], exception="ValueError")

    too_few = c.py(node, "py.lt", count, c.const(fewest))
    branch_on(c, node, too_few, fail, lambda: None)


def elements(c: Context, node: ast.AST, value: Value, count: int) -> list[Value]:
    """Return the `count` elements of a tuple, list or tensor."""
    value = c.not_none(some(c, node, value, "cannot unpack non-iterable NoneType object"))
    if isinstance(value.type, ClassType):
        value = c.as_value(classes.iterated(c, node, value) or value, node)
    match value.type:
        case TupleType(elems) if len(elems) == count or not c.may_be_skipped:
            if len(elems) != count:
                raise c.error(
                    node,
                    f"{len(elems)} values are unpacked to {count} names",
                    f"{len(elems)} names",
                )
            return [c.builder.tuple_get(value, k) for k in range(count)]
        case ListType(elem):
            known = c.builder.list_elements(value)
            if known is not None and len(known) == count:
                return known
            return c.builder.emit("unpack", [value], [elem] * count).results
        case type_ if t.is_tensor(type_) or t.is_dynamic(type_):
            elem = t.TENSOR if t.may_be_tensor(type_) else t.ANY
            return c.builder.emit("unpack", [value], [elem] * count).results
        case t.STR | DictType():
            elem = t.STR if value.type == t.STR else value.type.key  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
            return c.builder.emit("unpack", [value], [elem] * count).results  # pyright: ignore[reportUnknownArgumentType]
        case _ if c.may_be_skipped:
            return c.builder.emit("unpack", [c.unknown(value)], [t.ANY] * count).results
        case _:
            raise c.error(node, f"{describe(value)} cannot be unpacked", "a tuple or a list")


def unpacked(c: Context, node: ast.AST, spread: Sequence[Value]) -> Value:
    """Return one list of all these sequences' elements."""
    lists = [_as_list(c, node, part) for part in spread]
    return reduce(lambda joined, part: c.py(node, "py.add", joined, part), lists)


def _as_list(c: Context, node: ast.AST, value: Value) -> Value:
    """Return a list of its elements; the value may be a Size, of which a slice is no list."""
    return c.list_of(value, node) if t.is_tensor(value.type) else c.py(node, "list.of", value)
