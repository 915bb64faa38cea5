"""Methods of lists, tuples and strings.

In: a method of a value that is no tensor, and a call's arguments. Out: ops on Python values.

    xs.append(v)  →  xs = list.append(%xs, %v)      a new list, bound to the variable

Always holds: only a list that is a variable, and has no second name, can be changed.
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Call, Method, Node, describe
from lowtide.frontend.script.targets import check_unshared
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ListType


def call_method(c: Context, method: Method, call: Call) -> Node:
    """`receiver.name(args)`."""
    args = [c.as_value(a, call.node) for a in call.args]
    if call.keywords:
        raise c.error(call.node, f"{method.name}() with keywords", "positional arguments")
    if isinstance(method.receiver.type, ListType) and method.name in _CHANGING:
        return _change(c, method, call, args)
    if method.name in _READING:
        return c.py(call.node, _READING[method.name], method.receiver, *args)
    if method.receiver.type == t.ANY:
        raise c.error(call.node, f"methods of {describe(method.receiver)} are unknown")
    raise c.error(call.node, f"{describe(method.receiver)} has no method {method.name!r} here")


_READING = {
    "index": "list.index",
    "count": "list.count",
    "copy": "list.of",
}


def _change(c: Context, method: Method, call: Call, args: list[Value]) -> Node:
    xs = method.receiver
    if not method.variable:
        raise c.error(
            call.node, "only a list that is a variable can be changed", "a variable for the list"
        )
    check_unshared(c, call.node, xs)
    for arg in args:
        c.share(arg)
    changed, result = _CHANGING[method.name](c, call, xs, args)
    changed.name = method.variable
    c.frame.vars[method.variable] = changed
    return c.const(None) if result is None else result


Change = Callable[[Context, Call, Value, list[Value]], tuple[Value, Value | None]]


def _by(op_name: str) -> Change:
    def change(c: Context, call: Call, xs: Value, args: list[Value]) -> tuple[Value, Value | None]:
        return c.py(call.node, op_name, xs, *args), None

    return change


def _pop(c: Context, call: Call, xs: Value, args: list[Value]) -> tuple[Value, Value | None]:
    index = args[0] if args else c.const(-1)
    value = c.py(call.node, "list.get", xs, index)
    return c.py(call.node, "list.without", xs, index), value


def _clear(c: Context, call: Call, xs: Value, args: list[Value]) -> tuple[Value, Value | None]:
    return c.builder.emit("list.make", (), [xs.type]).result, None


def _remove(c: Context, call: Call, xs: Value, args: list[Value]) -> tuple[Value, Value | None]:
    index = c.py(call.node, "list.index", xs, *args)
    return c.py(call.node, "list.without", xs, index), None


_CHANGING: dict[str, Change] = {
    "append": _by("list.append"),
    "extend": _by("list.extend"),
    "insert": _by("list.insert"),
    "reverse": _by("list.reversed"),
    "sort": _by("list.sorted"),
    "pop": _pop,
    "remove": _remove,
    "clear": _clear,
}
