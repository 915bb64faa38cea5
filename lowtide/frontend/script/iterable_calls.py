"""Builtins that iterate over an argument: `list`, `sorted`, `map`, `sum`, `max`, `any`.

In: an iterable: a list, a range or a zip. Out: ops, unrolled if the elements are known, else in a
loop.

    list(zip(a, b))  →  %r = list.make();  loop …: list.append(%r, (…))
    sum(xs)          →  py.sum(%xs)

Invariant: iterators are lists, made where they are called.
"""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable, Mapping
from functools import reduce

import torch

from lowtide.frontend.script.context import Context, link
from lowtide.frontend.script.displays import has_value
from lowtide.frontend.script.expressions import known_elements, make_dict, plain
from lowtide.frontend.script.flow import branch_on, choose
from lowtide.frontend.script.iteration import iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.node_tables import ELEMENTS_OF
from lowtide.frontend.script.nodes import ITERATORS, Call, Members, Node, Zip
from lowtide.frontend.script.operators import binary, truth
from lowtide.frontend.script.targets import elements, widen
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import DictType, ListType, TupleType, Type

Builtin = Callable[[Context, Call], Node]


def _list(c: Context, call: Call) -> Node:
    if not call.args:
        return c.builder.list_make([])
    return _members(c, call) or list_of(c, call.args[0], call.node)


def _members(c: Context, call: Call) -> Members | None:
    """Compile `list(self.layers)`: a compile-time list of modules."""
    found = call.args[0]
    if type(found) not in ELEMENTS_OF:
        return None
    nodes = ELEMENTS_OF[type(found)](c, call.node, found)
    return None if all(map(has_value, nodes)) else Members(tuple(nodes))


@link
def list_of(c: Context, found: Node, node: ast.AST) -> Value:
    """Return a new list of the elements of an iterable."""
    if isinstance(found, Value):
        known = known_elements(c, found)
        if known is not None:
            return c.builder.list_make(known)
        if isinstance(found.type, ListType | TupleType | DictType) or found.type == t.STR:
            return c.py(node, "list.of", found)
    made = c.builder.list_make([])
    each(c, found, node, lambda value: append(c, made, value))
    return made


def append(c: Context, made: Value, value: Value) -> None:
    if isinstance(made.type, ListType):
        widen(c, made, ListType(t.join(made.type.elem, value.type)))
    c.effect("list.append", made, value)


def each(c: Context, found: Node, node: ast.AST, body: Callable[[Value], None]) -> None:
    """Compile `body` for every element, unrolled if the elements are known, else in a loop."""
    iteration = iterate(c, found, node)  # pyright: ignore[reportArgumentType]
    known = known_elements(c, found) if isinstance(found, Value) else None
    if known is not None:
        for value in known:
            body(value)
        return

    def enter(i: Value) -> None:
        body(c.as_value(iteration.element(i), node))

    loop_over(c, node, [ast.Name(n, ast.Store()) for n in _HIDDEN], iteration, enter)


_FOLD = "$fold"
_HIDDEN = (_FOLD,)


def _tuple(c: Context, call: Call) -> Node:
    if not call.args:
        return c.builder.tuple_make([])
    found = call.args[0]
    members = _members(c, call)
    if members is not None:
        return members
    if isinstance(found, Value):
        known = known_elements(c, found)
    else:
        known = c.builder.list_elements(list_of(c, found, call.node))
        iteration = iterate(c, found, call.node)
        count = static_length(c, iteration)
        if count is not None and iteration.exists is None:
            elements = [iteration.element(c.const(k)) for k in range(count)]
            known = [c.as_value(e, call.node) for e in elements]
    if known is not None:
        return c.builder.tuple_make(known)
    if not isinstance(found, Value) or t.is_tensor(found.type):
        found = list_of(c, found, call.node)
    return c.py(call.node, "py.tuple", found)


def _dict(c: Context, call: Call) -> Node:
    made = make_dict(c, [], [])
    if call.args:
        found = call.args[0]
        if isinstance(found, Value) and (
            isinstance(found.type, DictType) or t.is_dynamic(found.type)
        ):
            made = c.py(call.node, "dict.of", found)
        else:
            each(c, found, call.node, lambda pair: _put_pair(c, call, made, pair))
    for name, node in call.keywords.items():
        value = c.as_value(node, call.node)
        _put(c, made, c.const(name), value)
    return made


def _ordered_dict(c: Context, call: Call) -> Node:
    return c.py(call.node, "py.ordered_dict", c.as_value(_dict(c, call), call.node))


def _put_pair(c: Context, call: Call, made: Value, pair: Value) -> None:
    key, value = elements(c, call.node, pair, 2)
    _put(c, made, key, value)


def _put(c: Context, made: Value, key: Value, value: Value) -> None:
    if isinstance(made.type, DictType):
        widen(c, made, t.join(made.type, DictType(key.type, value.type)))
    c.effect("dict.set", made, key, value)


def _set(c: Context, call: Call) -> Node:
    if not call.args:
        return c.dynamic("set.make", [])
    return c.py(call.node, "set.of", list_of(c, call.args[0], call.node))


def _size(c: Context, call: Call) -> Node:
    xs = list_of(c, call.args[0], call.node) if call.args else c.builder.list_make([])
    return c.builder.emit("list.size", [xs], [ListType(t.INT)]).result


def _frozenset(c: Context, call: Call) -> Node:
    xs = list_of(c, call.args[0], call.node) if call.args else c.builder.list_make([])
    return c.py(call.node, "set.frozen", xs)


def _from_keys(c: Context, call: Call) -> Node:
    source, *rest = call.args
    value = c.as_value(rest[0], call.node) if rest else c.const(None)
    made = make_dict(c, [], [])
    each(c, source, call.node, lambda key: _put(c, made, key, value))
    return made


def folded(
    c: Context, call: Call, found: Node, start: Value, step: Callable[[Value, Value], Value]
) -> Node:
    """Return the result of `step` over every element, beginning with `start`."""
    outer = c.frame.vars.get(_FOLD)
    c.frame.vars[_FOLD] = start

    def fold(value: Value) -> None:
        so_far = c.frame.vars[_FOLD]
        assert isinstance(so_far, Value)
        c.frame.vars[_FOLD] = step(so_far, value)

    each(c, found, call.node, fold)
    result = c.frame.vars.pop(_FOLD)
    if outer is not None:
        c.frame.vars[_FOLD] = outer
    assert isinstance(result, Value)
    return result


def _map(c: Context, call: Call) -> Node:
    fn, *sources = call.args
    made = c.builder.list_make([])
    found = sources[0] if len(sources) == 1 else Zip(tuple(sources))

    def put(value: Value) -> None:
        args = [value] if len(sources) == 1 else elements(c, call.node, value, len(sources))
        result = c.call_function(call.node, fn, list(args))
        append(c, made, c.as_value(result, call.node))

    each(c, found, call.node, put)
    return made


def _filter(c: Context, call: Call) -> Node:
    fn, source = call.args
    is_none = c.constant(fn) is None
    made = c.builder.list_make([])

    def put(value: Value) -> None:
        kept = value if is_none else c.call_function(call.node, fn, [value])
        condition = truth(c, call.node, c.as_value(kept, call.node))
        branch_on(c, call.node, condition, lambda: append(c, made, value), lambda: None)

    each(c, source, call.node, put)
    return made


def _sorted(c: Context, call: Call) -> Node:
    xs = list_of(c, call.args[0], call.node)
    return sorted_by(c, call.node, xs, call.keywords)


@link
def sorted_by(c: Context, node: ast.Call, xs: Value, keywords: Mapping[str, Node]) -> Value:
    """Return a sorted copy, by the keys of a function if one is given."""
    reverse = c.as_value(keywords.get("reverse", c.const(False)), node)
    key = keywords.get("key")
    if key is None or (isinstance(key, Value) and key.type == t.NONE):
        return c.py(node, "list.sorted", xs, reverse)
    fn = key
    keys = c.builder.list_make([])

    def put(value: Value) -> None:
        append(c, keys, c.as_value(c.call_function(node, fn, [value]), node))

    each(c, xs, node, put)
    return c.py(node, "list.sorted_by", xs, keys, reverse)


def _sum(c: Context, call: Call) -> Node:
    found = call.args[0]
    start = c.as_value(call.args[1], call.node) if len(call.args) > 1 else c.const(0)
    if isinstance(found, Value) and _numbers_only(found.type) and len(call.args) == 1:
        return c.py(call.node, "py.sum", found)
    return folded(c, call, found, start, lambda a, b: binary(c, call.node, "add", "py.add", a, b))


def _numbers_only(type_: Type) -> bool:
    match type_:
        case ListType(elem):
            return t.is_number(elem) or elem == t.NEVER
        case TupleType(elems):
            return all(t.is_number(e) for e in elems)
        case _:
            return False


def _read_alone(c: Context, call: Call) -> list[Node]:
    """Return the arguments of `max`. A single argument is an iterable, which is consumed."""
    args = call.args
    is_read = len(args) == 1 and isinstance(args[0], ITERATORS)
    return [c.list_of(args[0], call.node)] if is_read else args


def _extremum(op_name: str) -> Builtin:
    def compile_extremum(c: Context, call: Call) -> Node:
        values = [plain(c, a, call.node) for a in _read_alone(c, call)]
        if "key" in call.keywords:
            return _extremum_by(c, call, values, op_name)
        if len(values) == 1 and values[0].type == t.TENSOR:
            name = op_name[3:]
            raise c.error(call.node, f"{name}() of one tensor, row by row", f"x.{name}()")
        items = values if len(values) > 1 else known_elements(c, values[0])
        if items and any(t.may_be_tensor(v.type) for v in items):
            compared = "gt" if op_name == "py.max" else "lt"
            return reduce(lambda a, b: _better(c, call.node, compared, a, b), items)
        if "default" in call.keywords:
            default = c.as_value(call.keywords["default"], call.node)
            some = c.py(call.node, "py.gt", c.py(call.node, "py.len", values[0]), c.const(0))
            found = lambda: c.py(call.node, op_name, *values)  # noqa: E731
            return choose(c, call.node, some, found, lambda: default)
        return c.py(call.node, op_name, *values)

    return compile_extremum


def _better(c: Context, node: ast.AST, compared: str, best: Value, other: Value) -> Value:
    """Compile `other if other > best else best`, as Python's `max` compares tensors."""
    found = truth(c, node, binary(c, node, compared, f"py.{compared}", other, best))
    return choose(c, node, found, lambda: other, lambda: best)


def _extremum_by(c: Context, call: Call, values: list[Value], op_name: str) -> Node:
    """Return the first least, or greatest, element by a key."""
    xs = values[0] if len(values) == 1 else c.builder.list_make(values)
    keywords = {"key": call.keywords["key"], "reverse": c.const(op_name == "py.max")}
    ordered = sorted_by(c, call.node, list_of(c, xs, call.node), keywords)
    return _first_or_default(c, call, ordered, op_name)


def _first_or_default(c: Context, call: Call, ordered: Value, op_name: str) -> Node:
    def fail() -> None:
        message = c.const(f"{op_name[3:]}() arg is an empty sequence")
        c.builder.emit("raise", [message], exception="ValueError")

    def first() -> Value:
        return c.py(call.node, "list.get", ordered, c.const(0))

    count = c.py(call.node, "py.len", ordered)
    if "default" in call.keywords:
        default = c.as_value(call.keywords["default"], call.node)
        return choose(
            c, call.node, c.py(call.node, "py.gt", count, c.const(0)), first, lambda: default
        )
    branch_on(c, call.node, c.py(call.node, "py.eq", count, c.const(0)), fail, lambda: None)
    return first()


def _any_all(start: bool) -> Builtin:
    def compile_any_all(c: Context, call: Call) -> Node:
        name = "py.and" if start else "py.or"
        return folded(
            c,
            call,
            call.args[0],
            c.const(start),
            lambda a, b: c.py(call.node, name, a, truth(c, call.node, b)),
        )

    return compile_any_all


def gives_iterator(obj: object) -> bool:
    """Return whether Python's function returns an iterator; here the result is a list."""
    of = getattr(obj, "__self__", obj)  # `chain.from_iterable` is a method of the class
    return of in (map, filter, zip) or (isinstance(of, type) and of.__module__ == "itertools")


OVER_ITERABLES: dict[object, Builtin] = {
    list: _list,
    tuple: _tuple,
    sorted: _sorted,
    dict: _dict,
    collections.OrderedDict: _ordered_dict,
    set: _set,
    frozenset: _frozenset,
    dict.fromkeys: _from_keys,
    map: _map,
    filter: _filter,
    min: _extremum("py.min"),
    max: _extremum("py.max"),
    sum: _sum,
    any: _any_all(False),
    all: _any_all(True),
    torch.Size: _size,
}
