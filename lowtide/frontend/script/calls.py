"""Calls: of PyTorch, of Python's builtins, of methods, and of other Python functions, which are
inlined.

In: a call's AST. Out: ops, or nothing but variables for a function known to the compiler.

    torch.sum(x, dim=1)  →  torch.sum.dim    len(xs)  →  py.len    helper(x)  →  the helper's body

Always holds: arguments are compiled from left to right, then the call; an inlined function sees its
own globals and closure, and its ops carry its own places in the source.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType

import torch

from lowtide.frontend.script import list_methods
from lowtide.frontend.script.builtin_calls import BUILTINS
from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.decorators import MODIFIER
from lowtide.frontend.script.expressions import known_elements, python_object
from lowtide.frontend.script.functions import compile_body, push_frame
from lowtide.frontend.script.mutation import is_inplace
from lowtide.frontend.script.node_tables import CALL_OF, LEFT_TO_PYTHON
from lowtide.frontend.script.nodes import Call, Method, Node, PythonObject, describe
from lowtide.frontend.script.source import unwrap
from lowtide.frontend.script.torch_calls import source_of, torch_call
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value


@expression(ast.Call)
def compile_call(c: Context, node: ast.Call) -> Node:
    """`callee(args)`."""
    callee = c.expr(node.func)
    call = _arguments(c, node)
    if type(callee) in CALL_OF:
        return CALL_OF[type(callee)](c, callee, call)
    if isinstance(callee, Method):
        return _method_call(c, callee, call)
    if isinstance(callee, PythonObject):
        return _object_call(c, callee, call)
    raise c.error(node, f"{describe(callee)} cannot be called")


def _arguments(c: Context, node: ast.Call) -> Call:
    call = Call(node=node, args=[])
    spread: list[Value] = []
    for arg in node.args:
        if not isinstance(arg, ast.Starred):
            call.args.append(c.expr(arg))
            continue
        xs = c.value(arg.value)
        known = known_elements(c, xs)
        call.args.extend([xs] if known is None else known)
        spread.extend([xs] if known is None else [])
    if spread:
        call.args = [_one_list(c, node, call.args, spread)]
        call.unpacked = True
    for keyword in node.keywords:
        if keyword.arg is None:
            raise c.error(
                keyword.value, "`**` in a call is not compiled", "the keywords one by one"
            )
        call.keywords[keyword.arg] = c.expr(keyword.value)
    return call


def _one_list(c: Context, node: ast.Call, args: Sequence[Node], spread: Sequence[Value]) -> Value:
    """All arguments as one list, some being lists of unknown length: `x.view(*x.shape[:1], -1)`."""
    parts: list[Value] = []
    for arg in args:
        value = c.as_value(arg, node)
        parts.append(value if value in spread else c.builder.tuple_make([value]))
    joined = parts[0]
    for part in parts[1:]:
        joined = c.py(node, "list.extend", joined, part)
    return joined


def _method_call(c: Context, method: Method, call: Call) -> Node:
    receiver = method.receiver
    if not t.may_be_tensor(receiver.type):
        return list_methods.call_method(c, method, call)
    found = torch_call(
        c,
        call.node,
        f"Tensor.{method.name}",
        [receiver, *call.args],
        call.keywords,
        unpacked=call.unpacked,
    )
    if is_inplace(method.name) and method.variable and isinstance(found, Value):
        c.frame.vars[method.variable] = found
        found.name = method.variable
    return found


def _object_call(c: Context, callee: PythonObject, call: Call) -> Node:
    obj = callee.obj
    builtin = _hashable_get(BUILTINS, obj)
    if builtin is not None:
        return builtin(c, call)
    math_name = f"math.{getattr(obj, '__name__', '')}"
    if getattr(obj, "__module__", None) == "math" and opdefs.find(math_name) is not None:
        return _math_call(c, math_name, call)
    source = source_of(callee)
    is_helper = source is not None and source.startswith("F._") and isinstance(obj, FunctionType)
    if source is not None and not isinstance(obj, type) and not is_helper:
        return torch_call(c, call.node, source, call.args, call.keywords, unpacked=call.unpacked)
    if obj in (torch.finfo, torch.iinfo):
        return _static_call(c, call, callee)
    if isinstance(obj, type) and hasattr(obj, "_fields"):
        return _named_tuple(c, obj, call)
    if isinstance(obj, FunctionType) and hasattr(obj, MODIFIER) and LEFT_TO_PYTHON:
        left = LEFT_TO_PYTHON[0](c, obj, call)
        if left is not None:
            return left
    if isinstance(obj, FunctionType) or hasattr(obj, "__lowtide_function__"):
        return _inline(c, unwrap(obj), call)  # pyright: ignore[reportArgumentType]
    raise c.error(
        call.node,
        f"{describe(callee)} cannot be called in compiled code",
        "a function of PyTorch or math, a builtin, or a Python `def`",
    )


def _hashable_get(
    table: Mapping[object, Callable[[Context, Call], Node]], obj: object
) -> Callable[[Context, Call], Node] | None:
    try:
        return table.get(obj)
    except TypeError:
        return None


def _math_call(c: Context, name: str, call: Call) -> Node:
    operands = [c.as_value(a, call.node) for a in call.args]
    plain = [c.py(call.node, "py.float", o) if t.may_be_tensor(o.type) else o for o in operands]
    if call.keywords:
        raise c.error(call.node, f"{name} with keywords", "positional arguments")
    return c.py(call.node, name, *plain)


def _static_call(c: Context, call: Call, callee: PythonObject) -> Node:
    known = [c.constant(a) for a in call.args]
    if UNKNOWN in known:
        source = f"torch.{getattr(callee.obj, '__name__', '')}"
        operands = [c.as_value(a, call.node) for a in call.args]
        op = c.builder.emit("call_torch", operands, [t.ANY], target=source, kwnames=())
        return op.result
    made = callee.obj(*known)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    return python_object(c, call.node, made, "")  # pyright: ignore[reportUnknownArgumentType]


def _named_tuple(c: Context, cls: type, call: Call) -> Node:
    fields: tuple[str, ...] = getattr(cls, "_fields", ())
    defaults: dict[str, object] = getattr(cls, "_field_defaults", {})
    given = dict(zip(fields, call.args, strict=False)) | call.keywords
    values: list[Value] = []
    for name in fields:
        if name in given:
            values.append(c.as_value(given[name], call.node))
        elif name in defaults:
            found = python_object(c, call.node, defaults[name], "")
            values.append(c.as_value(found, call.node))
        else:
            raise c.error(call.node, f"{cls.__name__}() lacks {name!r}")
    return c.builder.tuple_make(values, fields)


def _inline(c: Context, fn: FunctionType, call: Call) -> Node:
    if any(frame.fn.__code__ is fn.__code__ for frame in c.frames):
        raise c.error(
            call.node, f"{fn.__name__!r} calls itself: recursion is not compiled", "a loop"
        )
    bound = bind_python(c, fn, call)
    for value in bound.values():
        c.share(value)
    push_frame(c, fn)
    try:
        c.frame.vars.update(bound)
        return compile_body(c)
    finally:
        c.frames.pop()


def bind_python(c: Context, fn: FunctionType, call: Call) -> dict[str, Node]:
    """What each parameter of a Python function is in this call, defaults included."""
    signature = inspect.signature(fn, follow_wrapped=False)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise c.error(
                call.node,
                f"{fn.__name__!r} takes *args or **kwargs, which are not compiled",
                "named parameters",
            )
    if call.unpacked:
        raise c.error(call.node, "`*` of a list of unknown length", "the elements one by one")
    try:
        bound = signature.bind(*call.args, **call.keywords)
    except TypeError as error:
        raise c.error(call.node, f"{fn.__name__}(): {error}") from error
    values: dict[str, Node] = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if name not in values:
            values[name] = python_object(c, call.node, parameter.default, "")
    return values
