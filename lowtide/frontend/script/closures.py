"""Functions and classes as values: Python functions, which Python runs.

In: a lambda, a function or a class that is stored, compared, or passed to a callee that is found at
run time. Out: an op that makes the Python object. A function that is only called is inlined instead
(`calls`).

    raise Refused(lambda: f"got {n}")  →  %f: Any = py.call(%n) {target="shop.<lambda>"}
    [torch.relu, torch.tanh]           →  %f: Any = py.call() {target="…"}, …

Invariant: the variables of an inner function have the values that they have where it is defined.
If the outer function assigns one again later, Python would see the new value: a CompileError.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType
from typing import Any, cast

import torch

from lowtide.frontend.script.captured import capture_object
from lowtide.frontend.script.context import Context, Frame
from lowtide.frontend.script.left_to_python import operand
from lowtide.frontend.script.node_tables import VALUE_OF
from lowtide.frontend.script.nodes import Call, LocalFunction, Node, PythonObject, describe
from lowtide.frontend.script.source import is_installed
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def function_value(c: Context, node: ast.AST, callee: LocalFunction) -> Value:
    """Return the Python function for a local one."""
    frame = cast("Frame", callee.frame)
    place = ast.copy_location(ast.Call(ast.Constant(None), [], []), node)
    held: dict[str, Value] = {}
    for name in sorted(_read_names(callee.node)):
        found = frame.vars.get(name)
        if found is None or name.startswith("$"):
            continue
        if _is_reassigned(frame.source.node, callee.node, name):
            raise c.error(
                callee.node,
                f"a function used as a value reads {name!r}, which is assigned again later",
                f"`{name}={name}` as a default of it",
            )
        held[name] = operand(c, Call(node=place, args=[]), cast("Node", found))
    for name, default in callee.defaults.items():
        held[f"__default_{name}"] = operand(c, Call(node=place, args=[]), default)
    maker = _maker(frame, callee.node, tuple(held))
    target = python_objects.name_of(maker)
    op = c.builder.emit("py.call", list(held.values()), [t.ANY], target=target, kwnames=tuple(held))
    return op.result


def _read_names(fn: ast.FunctionDef | ast.Lambda) -> set[str]:
    names = (n for n in ast.walk(fn) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return {n.id for n in names} - {a.arg for a in ast.walk(fn.args) if isinstance(a, ast.arg)}


def _is_reassigned(outer: ast.AST, fn: ast.FunctionDef | ast.Lambda, name: str) -> bool:
    """Return whether `outer` assigns the name after the inner function, or in a loop around it."""
    reassigned = [outer] if _stores_behind(outer, fn, name) else []
    around = [n for n in ast.walk(outer) if isinstance(n, _LOOPS) and fn in ast.walk(n)]
    return bool(reassigned) or any(name in _stored(loop) for loop in around)


def _stores_behind(outer: ast.AST, fn: ast.FunctionDef | ast.Lambda, name: str) -> bool:
    where = fn.lineno, fn.col_offset
    stores = (n for n in ast.walk(outer) if isinstance(n, ast.Name) and n.id == name)
    return any(not isinstance(n.ctx, ast.Load) and (n.lineno, n.col_offset) > where for n in stores)


def _stored(node: ast.AST) -> set[str]:
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if not isinstance(n.ctx, ast.Load)}


def _maker(
    frame: Frame, node: ast.FunctionDef | ast.Lambda, held: tuple[str, ...]
) -> Callable[..., Any]:
    """Return a Python function of the captured variables that returns the inner one, with its own
    source lines."""
    inner = copy.deepcopy(node)
    _set_defaults(inner)
    body: list[ast.stmt] = [ast.Return(inner)] if isinstance(inner, ast.Lambda) else [inner]
    if isinstance(inner, ast.FunctionDef):
        inner.returns, inner.decorator_list = None, []
        body.append(ast.Return(ast.Name(inner.name, ast.Load())))
    outer: FunctionType = cast("Any", frame).fn  # a field, which pyright takes for a method
    closure = _closure(outer)
    names = [ast.arg(n) for n in (*held, *(n for n in closure if n not in held))]
    arguments = ast.arguments(
        posonlyargs=[], args=names, kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    name = getattr(inner, "name", "<lambda>")
    whole = ast.copy_location(ast.FunctionDef("make", arguments, body, []), node)
    module = ast.fix_missing_locations(ast.Module([whole], []))
    ast.increment_lineno(module, frame.source.line_shift)
    code = compile(module, frame.source.file, "exec")
    made = FunctionType(_first_code(code), outer.__globals__, name)
    made.__module__, made.__qualname__ = outer.__module__, name
    free = {k: v for k, v in closure.items() if k not in held}
    return functools.partial(made, **free) if free else made


def _set_defaults(fn: ast.FunctionDef | ast.Lambda) -> None:
    """Make defaults, computed where the function is defined, variables of the maker."""
    a = fn.args
    for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs):
        arg.annotation = None
    positional = [*a.posonlyargs, *a.args]
    late = positional[len(positional) - len(a.defaults) :]
    a.defaults = [ast.Name(f"__default_{arg.arg}", ast.Load()) for arg in late]
    a.kw_defaults = [
        None if value is None else ast.Name(f"__default_{arg.arg}", ast.Load())
        for arg, value in zip(a.kwonlyargs, a.kw_defaults, strict=True)
    ]


def _closure(fn: FunctionType) -> Mapping[str, object]:
    """Return the variables of functions around `fn` that have a value."""
    found: dict[str, object] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    return found


def _first_code(code: CodeType) -> CodeType:
    return next(found for found in code.co_consts if isinstance(found, CodeType))


_givers: dict[int, Callable[[], object]] = {}  # by identity: equal objects may be of two types


def _giver(obj: object) -> Callable[[], object]:
    """Return a function that returns this object; the same one for the same object."""
    return _givers.setdefault(id(obj), functools.partial(_itself, obj))


def _itself(obj: object) -> object:
    return obj


def object_value(c: Context, node: ast.AST, found: PythonObject) -> Value:
    """Return the value of a function, a class, a tuple of classes, `...`, the limits of a dtype, or
    an object of an installed package. Raises CompileError for other objects."""
    if isinstance(found.obj, torch.finfo | torch.iinfo):
        dtype = c.const(getattr(torch, found.obj.dtype))
        target = f"torch.{type(found.obj).__name__}"
        return c.builder.emit("call_torch", [dtype], [t.ANY], target=target, kwnames=()).result
    is_tuple = isinstance(found.obj, tuple)
    parts = cast("tuple[object, ...]", found.obj) if is_tuple else (found.obj,)
    if not all(callable(p) or p is Ellipsis or is_installed(type(p)) for p in parts):
        type_ = t.type_of(found.obj)
        if isinstance(type_, t.ClassType) and found.obj is not NotImplemented:
            return capture_object(c, found.obj, type_)
        given = "an argument, or a function marked `@lt.ignore` that gives it"
        raise c.error(node, f"{describe(found)} cannot be used as a value", given)
    target = python_objects.name_of(_giver(found.obj))
    return c.builder.emit("py.call", (), [t.ANY], target=target, kwnames=()).result


VALUE_OF[LocalFunction] = function_value
VALUE_OF[PythonObject] = object_value
