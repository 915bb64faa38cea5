"""Methods of lists, dicts, tuples, strings and numbers.

In: a method of a value that is no tensor, and a call's arguments. Out: ops on Python values.

    xs.append(v)   →  list.append(%xs, %v)        changes the list, whoever else holds it
    d.get(k)       →  dict.get(%d, %k)
    s.upper()      →  str.upper(%s)

Which method is which op stands in the tables: the op `list.NAME` for every NAME listed here.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from types import FunctionType
from typing import Any, cast

from lowtide.frontend.script import classes
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import storable
from lowtide.frontend.script.node_tables import CALL_OF
from lowtide.frontend.script.nodes import Call, Method, Node, describe
from lowtide.frontend.script.remedies import IGNORED, alike
from lowtide.frontend.script.targets import widen
from lowtide.ir import opdefs, python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.python_ops import strings
from lowtide.ir.python_ops.row import element
from lowtide.ir.types import (
    ClassType,
    DictType,
    FutureType,
    ListType,
    OptionalType,
    TupleType,
    Type,
)


def call_method(c: Context, method: Method, call: Call) -> Node:
    """Return `receiver.name(args)`."""
    receiver, name = method.receiver, method.name
    plain = receiver.type.elem if isinstance(receiver.type, OptionalType) else receiver.type
    if isinstance(plain, ClassType):
        return classes.call_method(c, call.node, receiver, name, call.args, call.keywords)
    if name in _READERS:
        args = [c.read(a, call.node) for a in call.args]
    else:
        args = [c.as_value(storable(c, a, call.node), call.node) for a in call.args]
    match plain:
        case ListType(t.INT) if name == "numel" and not _is_list(c, receiver):  # of a torch.Size
            return c.py(call.node, "list.numel", receiver, *args)
        case ListType() if name in _LIST:
            return _list_method(c, call, receiver, plain, name, args)
        case TupleType() if name in ("index", "count"):
            return c.py(call.node, f"list.{name}", receiver, *args)
        case TupleType() if plain.cls:
            return _named_tuple_method(c, call, receiver, plain, name)
        case DictType() if name in _DICT:
            return _dict_method(c, call, receiver, plain, name, args)
        case t.STR if name in strings.METHODS:
            return _string_method(c, call, receiver, name, args)
        case FutureType() if name in ("wait", "value"):
            return c.py(call.node, "future.wait", receiver)
        case _ if t.is_dynamic(plain) or _python_has(plain, name):
            named = {k: c.as_value(v, call.node) for k, v in call.keywords.items()}
            operands = [receiver, *args, *named.values()]
            return c.dynamic("py.call_method", operands, name=name, kwnames=tuple(named))
        case _:
            raise c.error(call.node, f"{describe(receiver)} has no method {name!r} here", IGNORED)


def _is_list(c: Context, xs: Value) -> bool:
    """Return whether it is a list that the program makes, not a torch.Size, which has the same
    type."""
    maker = c.builder.makers.get(xs)
    return maker is not None and maker.name in ("list.make", "list.of")


def has_method(type_: Type, name: str) -> bool:
    """Return whether values of this type have such a method."""
    match type_:
        case ListType(elem):
            return name in _LIST or (name == "numel" and elem == t.INT)
        case TupleType():
            return name in ("index", "count")
        case DictType():
            return name in _DICT
        case t.STR:
            return name in strings.METHODS
        case FutureType():
            return name in ("wait", "value")
        case _:
            return _python_has(type_, name)


def _named_tuple_method(
    c: Context, call: Call, receiver: Value, type_: TupleType, name: str
) -> Node:
    elems = [c.builder.tuple_get(receiver, k) for k in range(len(type_.elems))]
    if name == "_asdict":
        parts = [v for n, e in zip(type_.names, elems, strict=True) for v in (c.const(n), e)]
        result = DictType(t.STR, t.join_all(type_.elems))
        return c.builder.emit("dict.make", parts, [result]).result
    if name == "_replace":
        given = {k: c.as_value(v, call.node) for k, v in call.keywords.items()}
        elems = [given.get(n, e) for n, e in zip(type_.names, elems, strict=True)]
        return c.builder.tuple_make(elems, type_.names, type_.cls)
    fn = inspect.getattr_static(cast("Any", python_objects.find(type_.cls)), name, None)
    if isinstance(fn, staticmethod | classmethod):
        bound = c.python_object(call.node, getattr(python_objects.find(type_.cls), name))
        return CALL_OF[type(bound)](c, bound, call)
    if not isinstance(fn, FunctionType):
        near = alike(name, dir(python_objects.find(type_.cls)), "a method of its class")
        raise c.error(call.node, f"{describe(receiver)} has no method {name!r}", near)
    return c.inline(fn, call.node, [receiver, *call.args], call.keywords)


def _python_has(type_: Type, name: str) -> bool:
    return type_ in _PYTHON and callable(getattr(_PYTHON[type_], name, None))


_PYTHON: dict[Type, type] = {t.INT: int, t.FLOAT: float, t.COMPLEX: complex, t.BOOL: bool}
# Methods that read what they are given to its end, so that an iterator may be a list.
_READERS = frozenset(
    {"extend", "join", "update", "union", "intersection", "difference", "symmetric_difference"}
) | {"issubset", "issuperset", "isdisjoint", "intersection_update", "difference_update"}
_LIST = frozenset(
    {"append", "extend", "insert", "remove", "pop", "clear", "index", "count", "sort", "reverse"}
) | {"copy"}
_DICT = frozenset(
    {"get", "pop", "popitem", "setdefault", "update", "clear", "copy", "keys", "values", "items"}
)


def _list_method(
    c: Context, call: Call, xs: Value, type_: ListType, name: str, args: list[Value]
) -> Node:
    if name == "copy":
        return c.py(call.node, "list.of", xs)
    if opdefs.writes(f"list.{name}"):
        added = _added(name, args)
        if added is not None:
            widen(c, xs, ListType(t.join(type_.elem, added)))
    if name == "sort":
        wrong = [k for k in call.keywords if k not in ("key", "reverse")]
        if args or wrong:
            problem = "sort() takes only the keywords `key` and `reverse`"
            raise c.error(call.node, problem, "xs.sort(key=…, reverse=…)")
        if "key" in call.keywords:
            ordered = c.sorted_by(call.node, xs, call.keywords)
            none = c.const(None)
            c.effect("list.set_slice", xs, none, none, none, ordered)
            return none
        args = [c.as_value(v, call.node) for v in call.keywords.values()]
    elif call.keywords:
        raise c.error(call.node, f"{name}() with keywords", "positional arguments")
    found = c.py(call.node, f"list.{name}", xs, *args)
    return c.const(None) if found.type == t.NONE else found


def _added(name: str, args: Sequence[Value]) -> Type | None:
    match name, args:
        case "append", [value]:
            return value.type
        case "insert", [_, value]:
            return value.type
        case "extend", [values]:
            return t.TENSOR if values.type == t.TENSOR else element(values.type) or t.ANY
        case _:
            return None


def _dict_method(
    c: Context, call: Call, d: Value, type_: DictType, name: str, args: list[Value]
) -> Node:
    if call.keywords and name != "update":
        raise c.error(call.node, f"{name}() with keywords", "positional arguments")
    if name == "setdefault":
        args = [*args, c.const(None)] if len(args) == 1 else args
        joined = DictType(t.join(type_.key, args[0].type), t.join(type_.value, args[1].type))
        widen(c, d, joined)
    if name == "update":
        return _update(c, call, d, type_, args)
    found = c.py(call.node, f"dict.{name}", d, *args)
    return c.const(None) if found.type == t.NONE else found


def _update(c: Context, call: Call, d: Value, type_: DictType, args: list[Value]) -> Node:
    if args:
        more = (
            args[0] if isinstance(args[0].type, DictType) else c.py(call.node, "dict.of", args[0])
        )
        if isinstance(more.type, DictType):
            key, value = t.join(type_.key, more.type.key), t.join(type_.value, more.type.value)
            widen(c, d, DictType(key, value))
        c.effect("dict.update", d, more)
    for name, node in call.keywords.items():
        value = c.as_value(node, call.node)
        widen(c, d, DictType(t.join(type_.key, t.STR), t.join(type_.value, value.type)))
        c.effect("dict.set", d, c.const(name), value)
    return c.const(None)


def _string_method(c: Context, call: Call, text: Value, name: str, args: list[Value]) -> Node:
    named = {k: c.as_value(v, call.node) for k, v in call.keywords.items()}
    if not named:
        return c.py(call.node, f"str.{name}", text, *args)
    result = opdefs.find(f"str.{name}")
    assert result is not None
    found = result.result([text.type]) or t.ANY
    return c.builder.emit(
        "py.call_method",
        [text, *args, *named.values()],
        [found],
        name=name,
        kwnames=tuple(named),
    ).result
