"""Finished programs inside the one being built: traced functions and modules, loaded modules.

In: an object with a Function, and a call's arguments. Out: the Function's ops, in place of the
call; what it captures becomes captured by the program around it.

    traced(x)  →  the recorded ops, with %x for their parameter
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from lowtide.frontend.script.captured import capture
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.module_state import ModuleState, follow, join_path
from lowtide.frontend.script.nodes import Call, ModuleRef, Node
from lowtide.ir.core import Function, Value, clone_op
from lowtide.ir.types import Type


def program_of(obj: object) -> Function | None:
    """The finished program of a callable, if it has one that can stand inside another."""
    find: Callable[[], Function | None] | None = getattr(obj, "__lowtide_program__", None)
    return None if find is None else find()


def call_program(c: Context, obj: Any, function: Function, call: Call) -> Node:
    """The call of a traced function; its captures are read from its root."""
    return _inline(c, function, call, lambda path, type_: capture(c, obj.root, path, type_))


def module_program(ref: ModuleRef, method: str) -> Function | None:
    """The finished program of a method of a traced or loaded module."""
    given = cast("dict[str, Function]", vars(ref.module).get("_lowtide_programs", {}))
    return given.get(method)


def call_module_program(c: Context, ref: ModuleRef, function: Function, call: Call) -> Node:
    """The call of such a method; its captures are paths from the module."""
    state = c.modules
    assert state is not None
    return _inline(c, function, call, lambda path, type_: _own(state, ref, path, type_))


def _own(state: ModuleState, ref: ModuleRef, path: str, type_: Type) -> Value:
    if not path:
        return state.object(ref.path, ref.module)
    if path.startswith("@"):
        return state.capture(path, None, type_)
    owner, name = follow(ref.module, path)
    own = vars(owner)
    found: list[object] = [
        held[name] for held in (own["_parameters"], own["_buffers"], own) if name in held
    ]
    return state.capture(join_path(ref.path, path), found[0] if found else None, type_)


def _inline(
    c: Context, function: Function, call: Call, captured: Callable[[str, Type], Value]
) -> Node:
    names = [a.name for a in function.arguments]
    given: dict[str, Node] = dict(zip(names, call.args, strict=False)) | call.keywords
    if len(call.args) > len(names) or not set(given) <= set(names):
        raise c.error(
            call.node, f"{function.name}() takes {', '.join(names)}", "one value for each"
        )
    mapping: dict[Value, Value] = {}
    for argument in function.arguments:
        if argument.name in given:
            mapping[argument] = c.as_value(given[argument.name], call.node)
        elif argument.name in function.defaults:
            mapping[argument] = c.const(function.defaults[argument.name])
        else:
            raise c.error(
                call.node, f"{function.name}() lacks {argument.name!r}", f"`{argument.name}=…`"
            )
    parameters = function.params[len(names) :]
    for parameter, path in zip(parameters, function.captures, strict=True):
        mapping[parameter] = captured(path, parameter.type)
    for op in function.block.ops[:-1]:
        c.builder.add(clone_op(op, mapping))
    (result,) = function.block.terminator.operands
    return mapping[result]
