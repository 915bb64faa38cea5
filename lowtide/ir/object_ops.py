"""Ops on Python objects: attributes, calls of functions left to Python, modules that PyTorch runs.

In: operands as the interpreter has them. Out: results. `RUN` and `CHECKS` are rows for the tables
of `interpret` and `verify`.

    %h: Tensor = attr.get(%m) {name="hidden"}
    attr.set(%m, %h2) {name="hidden"}
    %y: Tensor = py.call(%m, %x) {target="net.Net.plot", kwnames=()}       `python_objects.find`
    %y: Tensor = call_module(%m, %x) {method="__call__", kwnames=(), why="…"}

Always holds: all of them may have effects, so they stay in program order and are never shared.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, cast

from lowtide.ir import python_objects
from lowtide.ir.core import Op, Value

Env = MutableMapping[Value, Any]


def _attr_get(op: Op, env: Env) -> list[Any]:
    return [getattr(env[op.operands[0]], str(op.attrs["name"]))]


def _attr_set(op: Op, env: Env) -> list[Any]:
    setattr(env[op.operands[0]], str(op.attrs["name"]), env[op.operands[1]])
    return []


def _py_call(op: Op, env: Env) -> list[Any]:
    target: Any = python_objects.find(str(op.attrs["target"]))
    return [_call(target, op, [env[v] for v in op.operands])]


def _call_module(op: Op, env: Env) -> list[Any]:
    module, *operands = (env[v] for v in op.operands)
    return [_call(getattr(module, str(op.attrs["method"])), op, operands)]


def _call(target: Callable[..., Any], op: Op, operands: list[Any]) -> Any:
    kwnames = cast("tuple[str, ...]", op.attrs["kwnames"])
    split = len(operands) - len(kwnames)
    return target(*operands[:split], **dict(zip(kwnames, operands[split:], strict=True)))


RUN: dict[str, Callable[[Op, Env], list[Any]]] = {
    "attr.get": _attr_get,
    "attr.set": _attr_set,
    "py.call": _py_call,
    "call_module": _call_module,
}


def _calls(op: Op) -> bool:
    return isinstance(op.attrs.get("kwnames"), tuple) and len(op.results) == 1


def _has_name(op: Op) -> bool:
    return isinstance(op.attrs.get("name"), str)


CHECKS: dict[str, Callable[[Op], bool]] = {
    "attr.get": lambda op: len(op.operands) == len(op.results) == 1 and _has_name(op),
    "attr.set": lambda op: len(op.operands) == 2 and not op.results and _has_name(op),
    "py.call": lambda op: isinstance(op.attrs.get("target"), str) and _calls(op),
    "call_module": lambda op: (
        len(op.operands) >= 1
        and op.attrs.get("method") in ("__call__", "forward")
        and isinstance(op.attrs.get("why"), str)
        and _calls(op)
    ),
}
