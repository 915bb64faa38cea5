"""Ops on Python objects: attributes, calls of functions left to Python, modules that PyTorch runs.

In: operands as the interpreter has them. Out: results. `RUN` and `CHECKS` are rows for the tables
of `interpret` and `verify`.

    %p: Class['m.Point'] = object.new {cls='m.Point'}
    %c: Class['m.Color'] = enum.const {enum='m.Color', member='RED'}
    %h: Tensor = attr.get(%m) {name="hidden"}
    attr.set(%m, %h2) {name="hidden"}              also {owner="m.Net"}: of this class only
    %y: Tensor = py.call(%m, %x) {target="net.Net.plot", kwnames=()}       `python_objects.find`
    %y: Tensor = call_module(%m, %x) {method="__call__", kwnames=(), why="…"}

Invariant: all of them may have effects, so they stay in program order and are never shared.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, cast

from lowtide.ir import python_objects
from lowtide.ir.core import Op, Value
from lowtide.ir.types import BOOL, FLOAT, INT, NONE, STR, Type, is_instance, parse_type

Env = MutableMapping[Value, Any]


def _attr_get(op: Op, env: Env) -> list[Any]:
    name = str(op.attrs["name"])
    found = getattr(_receiver(op, env), name)
    expected = op.result.type
    class_ = _CLASSES.get(expected)
    if class_ is not None and type(found) is not class_ and not _may_stand(found, expected):
        owner = type(env[op.operands[0]]).__name__
        raise TypeError(
            f"`{owner}.{name}` is a {type(found).__name__}, where the program reads {expected}: "
            f"so {owner} declares or sets it; annotate it in the class: `{name}: Any`"
        )
    return [found]


# What a program's branches were decided by. Of other types it asks the value itself.
_CLASSES: dict[Type, type] = {INT: int, FLOAT: float, BOOL: bool, STR: str, NONE: type(None)}


def _may_stand(found: object, expected: Type) -> bool:
    """Return whether Python's numeric tower accepts the object as a value of this type."""
    return expected == FLOAT and type(found) is int


def _attr_set(op: Op, env: Env) -> list[Any]:
    assign = object.__setattr__ if op.attrs.get("frozen") else setattr
    assign(_receiver(op, env), str(op.attrs["name"]), env[op.operands[1]])
    return []


def _receiver(op: Op, env: Env) -> Any:
    """Return the object. In a program from a file it must be of the class for which the name was
    checked."""
    found = env[op.operands[0]]
    owner = op.attrs.get("owner")
    if owner is not None and not isinstance(found, cast("type", python_objects.find(str(owner)))):
        raise AttributeError(
            f"{type(found).__name__!r} object has no attribute {op.attrs['name']!r}"
        )
    return found


def _enum_const(op: Op, env: Env) -> list[Any]:
    members: Any = python_objects.find(str(op.attrs["enum"]))
    return [members[str(op.attrs["member"])]]


def _enum_get(op: Op, env: Env) -> list[Any]:
    members: Any = python_objects.find(str(op.attrs["enum"]))
    key = env[op.operands[0]]
    return [members[key] if op.attrs["by"] == "name" else members(key)]


def _object_new(op: Op, env: Env) -> list[Any]:
    cls: Any = python_objects.find(str(op.attrs["cls"]))
    return [cls.__new__(cls)]


def _call_method(op: Op, env: Env) -> list[Any]:
    receiver, *operands = (env[v] for v in op.operands)
    return [call_with_keywords(getattr(receiver, str(op.attrs["name"])), op, operands)]


def _isinstance(op: Op, env: Env) -> list[Any]:
    return [is_instance(env[op.operands[0]], parse_type(str(op.attrs["type"])))]


def _py_call(op: Op, env: Env) -> list[Any]:
    target: Any = python_objects.find(str(op.attrs["target"]))
    return [call_with_keywords(target, op, [env[v] for v in op.operands])]


CALLS = "_lowtide_calls"  # the attribute of a module whose methods Python does not run


def _call_module(op: Op, env: Env) -> list[Any]:
    module, *operands = (env[v] for v in op.operands)
    method = str(op.attrs["method"])
    calls = cast("dict[str, Callable[[Any, str], Any]]", vars(module)).get(CALLS)
    target = getattr(cast("object", module), method) if calls is None else calls(module, method)
    return [call_with_keywords(target, op, operands)]


def call_with_keywords(target: Callable[..., Any], op: Op, operands: Sequence[Any]) -> Any:
    """Calls the target; the last operands go by the names in `kwnames`."""
    kwnames = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
    split = len(operands) - len(kwnames)
    return target(*operands[:split], **dict(zip(kwnames, operands[split:], strict=True)))


RUN: dict[str, Callable[[Op, Env], list[Any]]] = {
    "attr.get": _attr_get,
    "attr.set": _attr_set,
    "enum.const": _enum_const,
    "enum.get": _enum_get,
    "object.new": _object_new,
    "py.call_method": _call_method,
    "py.isinstance": _isinstance,
    "py.call": _py_call,
    "call_module": _call_module,
}


def _calls(op: Op) -> bool:
    return isinstance(op.attrs.get("kwnames"), tuple) and len(op.results) == 1


def _has(op: Op, *names: str) -> bool:
    return all(isinstance(op.attrs.get(name), str) for name in names)


CHECKS: dict[str, Callable[[Op], bool]] = {
    "attr.get": lambda op: len(op.operands) == len(op.results) == 1 and _has(op, "name"),
    "attr.set": lambda op: len(op.operands) == 2 and not op.results and _has(op, "name"),
    "enum.const": lambda op: _has(op, "enum", "member") and not op.operands,
    "enum.get": lambda op: _has(op, "enum", "by") and len(op.operands) == 1,
    "object.new": lambda op: _has(op, "cls") and not op.operands and len(op.results) == 1,
    "py.call_method": lambda op: _has(op, "name") and len(op.operands) > 0 and _calls(op),
    "py.isinstance": lambda op: _has(op, "type") and len(op.operands) == 1,
    "py.call": lambda op: _has(op, "target") and _calls(op),
    "call_module": lambda op: (
        len(op.operands) >= 1
        and op.attrs.get("method") in ("__call__", "forward")
        and isinstance(op.attrs.get("why"), str)
        and _calls(op)
    ),
}
