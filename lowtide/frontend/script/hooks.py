"""Forward hooks of submodules: inlined where they compile, else called by Python.

In: a module with hooks, and a call's arguments or its result. Out: the arguments or the result as
the hooks leave them.

    lambda m, args, y: y * 2           →  torch.mul(%y, %2)
    lambda m, args, y: seen.append(y)  →  py.call(%module, %args, %y) {target="…hooked"}

The hooks of the root are not compiled: PyTorch runs them around the program.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeGuard, cast

import torch

from lowtide.errors import CompileError
from lowtide.frontend.script.attempts import attempt
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import known_elements
from lowtide.frontend.script.flow import choose
from lowtide.frontend.script.left_to_python import is_torch_hook, operands_of, python_call, returned
from lowtide.frontend.script.narrowing import members
from lowtide.frontend.script.nodes import Call, ModuleRef, Node, PythonObject
from lowtide.frontend.script.source import read_source, unwrap
from lowtide.ir import types as t
from lowtide.ir.core import Value


def before(c: Context, ref: ModuleRef, call: Call) -> Call:
    """Return the arguments after the forward pre-hooks."""
    hooks: dict[int, Any] = vars(ref.module)["_forward_pre_hooks"]
    for hook in hooks.values():
        values, names = operands_of(c, call)
        given = c.builder.tuple_make(values[: len(values) - len(names)])

        def or_given(found: Node, given: Value = given, node: ast.AST = call.node) -> Node:
            return _arguments_or(c, node, found, given)

        found = _call_hook(c, call, hook, [ref, given], _changed_arguments, or_given)
        if isinstance(found, Value) and found.type != t.NONE:
            known = known_elements(c, found) if isinstance(found.type, t.TupleType) else None
            args: Sequence[Node] = [found] if known is None else known
            call = Call(node=call.node, args=list(args), keywords=call.keywords)
    return call


def after(c: Context, ref: ModuleRef, call: Call, result: Node) -> Node:
    """Return the result after the forward hooks."""
    hooks: dict[int, Any] = vars(ref.module)["_forward_hooks"]
    for hook in hooks.values():
        given = c.builder.tuple_make([c.as_value(a, call.node) for a in call.args])

        def or_result(found: Node, result: Node = result) -> Node:
            return _result_or(c, call.node, found, result)

        found = _call_hook(c, call, hook, [ref, given, result], _changed_result, or_result)
        if isinstance(found, Value) and found.type != t.NONE:
            result = found
    return result


def _may_be_none(found: Node) -> TypeGuard[Value]:
    """Return whether only the run knows if a hook changes something."""
    if not isinstance(found, Value) or found.type == t.NONE:
        return False
    return found.type == t.ANY or t.NONE in members(found.type)


def _some(c: Context, found: Value) -> Value:
    """Return the value, which is not None here."""
    type_ = t.join_all(m for m in members(found.type) if m != t.NONE)
    return found if type_ == found.type else c.builder.emit("cast", [found], [type_]).result


def _result_or(c: Context, node: ast.AST, found: Node, result: Node) -> Node:
    """Return what a forward hook gives, or the previous result where that is None."""
    if not _may_be_none(found):
        return found
    is_none = c.py(node, "py.is", found, c.const(None))
    return choose(c, node, is_none, lambda: c.as_value(result, node), lambda: _some(c, found))


def _arguments_or(c: Context, node: ast.AST, found: Node, given: Value) -> Node:
    """Return the arguments that a pre-hook gives, or the previous ones where that is None."""
    if not _may_be_none(found):
        return found
    parts = [m for m in members(found.type) if m != t.NONE]
    counts = {len(m.elems) if isinstance(m, t.TupleType) else 1 for m in parts}
    if t.ANY in parts or counts != {len(cast("t.TupleType", given.type).elems)}:
        raise c.error(node, "a pre-hook that gives other arguments, or None", "as many arguments")

    def changed() -> Value:
        some = _some(c, found)
        return some if isinstance(some.type, t.TupleType) else c.builder.tuple_make([some])

    return choose(c, node, c.py(node, "py.is", found, c.const(None)), lambda: given, changed)


def _call_hook(
    c: Context,
    call: Call,
    hook: Any,
    args: list[Node],
    wrapped: Callable[[Any], Any],
    settled: Callable[[Node], Node],
) -> Node:
    inner = Call(node=call.node, args=args)
    if is_torch_hook(hook):  # never called by Python: nothing tells which attributes it assigns
        return c.inline(unwrap(type(hook).__call__), call.node, [PythonObject(hook), *args])
    found = attempt(c, lambda: settled(_inlined(c, hook, inner)))
    if not isinstance(found, CompileError):
        return found
    return _called(c, hook, inner, wrapped)


def _inlined(c: Context, hook: Any, call: Call) -> Node:
    if isinstance(hook, FunctionType):
        return c.inline(hook, call.node, call.args)
    owner = _within(c, cast("ModuleRef", call.args[0]), getattr(hook, "__self__", None))
    if owner is not None:
        args = [owner, *call.args]
        return c.inline(unwrap(hook), call.node, args, owner=id(owner.module))
    raise c.error(call.node, "a hook that is the method of another object")


def _within(c: Context, ref: ModuleRef, owner: object) -> ModuleRef | None:
    """Return the module whose method a hook is: the hooked one, or another one of this program."""
    if owner is ref.module:
        return ref
    root: Any = ref.module if c.modules is None else c.modules.root
    modules: list[tuple[str, torch.nn.Module]] = list(root.named_modules())
    return next((ModuleRef(m, path) for path, m in modules if m is owner), None)


def _called(c: Context, hook: Any, call: Call, wrapped: Callable[[Any], Any]) -> Node:
    """Return the result of the hook, called by Python. If its type is unknown, a wrapper replaces
    None by the value before the hook."""
    fn = getattr(hook, "__func__", hook)
    owner = getattr(hook, "__self__", None)
    modules = [owner] if isinstance(owner, torch.nn.Module) else []
    if _gives_nothing(fn):
        return python_call(c, fn, call, t.NONE, target=hook, modules=modules)
    type_: t.Type = t.ANY
    last = call.args[-1]
    if wrapped is _changed_arguments and isinstance(last, Value):
        type_ = t.tuple_of(*[t.ANY] * len(known_elements(c, last) or ()))
    return python_call(c, fn, call, type_, target=wrapped(hook), modules=modules)


def _gives_nothing(fn: FunctionType) -> bool:
    if returned(fn, t.ANY) == t.NONE:
        return True
    try:
        node = read_source(fn).node
    except CompileError:
        return False
    given = [n for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
    return isinstance(node, ast.FunctionDef) and not given


@functools.cache
def _changed_result(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the hook's result, or the previous result if that is None."""

    @functools.wraps(hook)
    def hooked(module: object, args: object, result: object) -> object:
        found = hook(module, args, result)
        return result if found is None else found

    return hooked


@functools.cache
def _changed_arguments(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return the arguments that the hook returns, as many as before, or the previous ones."""

    @functools.wraps(hook)
    def hooked(module: object, args: tuple[object, ...]) -> tuple[object, ...]:
        given = hook(module, args)
        if given is None:
            return args
        found = cast("tuple[object, ...]", given if isinstance(given, tuple) else (given,))
        if len(found) != len(args):
            raise TypeError(
                f"a forward pre-hook gave {len(found)} arguments for {len(args)}, which compiled "
                "code does not take where it cannot read the hook"
            )
        return found

    return hooked
