"""Global lists, dicts and sets: constants of the program, or the very objects.

    SIZES = [1, 2]; LOG = []           def f(%x: Tensor, %list: List[Any] @ "@…|list"):
    def f(x):                              list.append(%list, 1)
        LOG.append(SIZES[0])
        return x

In: a program that has just been built. Out: which containers from outside it may change, so that it
is to be built again with these as the very objects (`Assumptions.live`).

Invariant: what a program may change, by whatever name, is no copy. A constant is typed by all
that it holds, and a call that finds it changed compiles anew; of the very object only its identity
is assumed, and what it holds is found by the run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType
from typing import Any, Final

from lowtide.frontend.script.captured import capture_object
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.module_state import Restart
from lowtide.frontend.script.node_tables import STORE_OF
from lowtide.frontend.script.nodes import Node, PythonObject, describe
from lowtide.frontend.script.outside import may_change
from lowtide.ir import aliases, opdefs, python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, walk
from lowtide.ir.types import DictType, ListType, Type

# what is not said to only read may change its receiver
_READING: Final = frozenset(
    {"copy", "count", "difference", "get", "index", "intersection", "isdisjoint", "issubset"}
) | {"issuperset", "items", "keys", "symmetric_difference", "union", "values"}
# ops that give a new container of what their operands hold
_COPIES: Final = frozenset(
    {"dict.copy", "dict.items", "dict.keys", "dict.of", "dict.values", "list.of", "list.reversed"}
) | {"list.slice", "list.sorted", "list.sorted_by", "list.zipped", "py.add", "py.mul", "py.tuple"}
_A_FUNCTION: Final = "a function marked `@lt.ignore` that does it"
_SETATTR: Final = python_objects.name_of(setattr)


def type_of_live(obj: object) -> Type:
    """Return the type that holds whatever is put into the object later."""
    if isinstance(obj, list):
        return ListType(t.ANY)
    return DictType(t.ANY, t.ANY) if isinstance(obj, dict) else t.ANY


def store_outside(c: Context, node: ast.AST, base: PythonObject, name: str, value: Node) -> None:
    """Compile `Model.calls = value`: Python sets it, and the program reads it again at each use."""
    if not may_change(base.obj):
        raise c.error(node, f"{describe(base)} cannot be changed by compiled code", _A_FUNCTION)
    key = id(base.obj), name
    if key not in c.assumed.assigned:
        c.assumed.assigned[key] = base.obj
        if c.modules is not None:  # a module may read it as an attribute of its own
            c.modules.knowledge.dynamic.add(name)
        raise Restart(name)
    held = capture_object(c, base.obj, t.ANY)
    operands = [held, c.const(name), c.as_value(value, node)]
    c.builder.emit("py.call", operands, [t.NONE], target=_SETATTR, kwnames=())


def check_unchanged(c: Context) -> None:
    """Raises Restart if the program may change containers from outside that are constants of it;
    they are then known to be live."""
    found = _changed(c.builder.block, c.constants)
    if found:
        c.assumed.live.update((id(obj), obj) for obj in found)
        raise Restart("global containers")


def _changed(block: Block, constants: Mapping[Value, object]) -> list[object]:
    if not constants:
        return []
    changing = [v for op in walk(block) for v in _changed_by(op)]
    if not changing:
        return []
    classes = aliases.Classes(block, _groups)
    roots = {classes.root(v) for v in changing}
    return [obj for v, obj in constants.items() if classes.root(v) in roots]


def _changed_by(op: Op) -> Iterator[Value]:
    is_method = op.name == "py.call_method" and op.attrs["name"] not in _READING
    if opdefs.writes(op.name) or op.name == "mutate" or is_method:
        yield op.operands[0]
    elif op.name == "call_module" or (op.name == "py.call" and _is_of_user(op)):
        yield from op.operands


def _is_of_user(op: Op) -> bool:
    called: Any = python_objects.find(str(op.attrs["target"]))
    return not isinstance(called, BuiltinFunctionType) and may_change(called)


STORE_OF[PythonObject] = store_outside


def _groups(op: Op) -> Iterator[list[Value]]:
    """Yield groups of values that may alias or contain each other because of this op."""
    for group in aliases.groups(op):
        if op.blocks or op.name not in _COPIES or any(_holds_containers(v.type) for v in group):
            yield [v for v in group if _is_container(v.type)]


def _is_container(type_: Type) -> bool:
    return not t.is_immutable(type_) and not t.is_tensor_or_number(type_)


def _holds_containers(type_: Type) -> bool:
    inner = [x for x in t.types_in(type_) if x is not type_]
    return type_ == t.ANY or any(_is_container(x) for x in inner)
