"""Frames: opening a Python function, compiling its statements, what it returns.

In: a plain Python function whose parameters are bound. Out: the value it returns.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import typing
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any, cast

import torch

from lowtide.frontend.script.context import RAISED, RETURN_VALUE, RETURNED, Context, Frame
from lowtide.frontend.script.flow import choose, run
from lowtide.frontend.script.mutation import stored_names
from lowtide.frontend.script.nodes import NODES, Node, PythonObject
from lowtide.frontend.script.source import FunctionSource, read_source
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.types import FunctionType as FunctionType_
from lowtide.ir.types import Type
from lowtide.torch_private.torch_jit import OVERLOADS


def push_frame(c: Context, fn: FunctionType, source: FunctionSource | None = None) -> Frame:
    """Open a function's frame; its variables are not bound yet."""
    found = source or read_source(fn)
    code = fn.__code__
    frame = Frame(
        fn=fn,
        source=found,
        names=outer_names(fn),
        local_names=frozenset((*code.co_varnames, *code.co_cellvars)),
        caller=c.builder.loc if c.frames and not is_same(c.frames[-1].fn, fn) else None,
    )
    c.frames.append(frame)
    return frame


def is_same(one: FunctionType | MethodType, other: FunctionType) -> bool:
    """Return whether they are one function; functions of one decorator share their code."""
    cells = one.__closure__ or (), other.__closure__ or ()
    return one.__code__ is other.__code__ and list(map(id, cells[0])) == list(map(id, cells[1]))


def local_frame(outer: Frame, node: ast.FunctionDef | ast.Lambda) -> Frame:
    """Return a frame for a function nested in that of `outer`, whose current variables it sees."""
    stored = stored_names([node])
    arguments = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
    own = stored | arguments if isinstance(node, ast.FunctionDef) else arguments
    source = dataclasses.replace(outer.source, node=node)
    frame = Frame(
        fn=cast("Any", outer).fn,
        source=source,
        names=outer.names,
        local_names=frozenset(own | outer.local_names),
        caller=outer.caller,
    )
    frame.vars.update(
        {n: v for n, v in outer.vars.items() if n not in own and not n.startswith("$")}
    )
    return frame


def signature_annotations(fn: FunctionType, node: ast.FunctionDef | ast.Lambda) -> dict[str, Type]:
    """Return the declared types of parameters, from annotations or a type comment."""
    names = outer_names(fn)
    found: dict[str, Type] = {}
    for name, annotation in {**_of_overloads(fn), **fn.__annotations__}.items():
        type_ = type_from_annotation(annotation, names)
        if type_ is not None and name != "return":
            is_rest = node.args.kwarg is not None and node.args.kwarg.arg == name
            found[name] = t.DictType(t.STR, type_) if is_rest else type_
    return found | commented_types(node, names)


def _of_overloads(fn: FunctionType) -> Mapping[str, object]:
    """Return the types on which all of torch.jit's overloads agree, such as those of
    `nn.LSTM.forward`, whose state is a pair of tensors, and whose input may be packed."""
    by_class = OVERLOADS.get(f"__torch__.{fn.__module__}.{fn.__name__}", {})
    found = [f.__annotations__ for f in by_class.get(fn.__qualname__.rpartition(".")[0], [])]
    return {k: v for k, v in found[0].items() if all(f.get(k) == v for f in found)} if found else {}


def commented_types(
    node: ast.FunctionDef | ast.Lambda, names: Mapping[str, object]
) -> dict[str, Type]:
    """Return the types in `# type: (Tensor, int) -> Tensor` under a `def`."""
    text = getattr(node, "type_comment", None)
    if not text or "->" not in text:
        return {}
    try:
        parsed = ast.parse(text, mode="func_type")
    except SyntaxError:
        return {}
    assert isinstance(parsed, ast.FunctionType)
    scope = {**vars(typing), "Tensor": torch.Tensor, **names}
    args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    skipped = len(args) - len(parsed.argtypes)  # `self` has no type there
    rows = zip(args[max(skipped, 0) :], parsed.argtypes, strict=False)
    types = {a.arg: type_from_annotation(ast.unparse(e), scope) for a, e in rows}
    return {name: type_ for name, type_ in types.items() if type_ is not None}


def parameter_node(value: Value) -> Node:
    """Return the node of a parameter. A function that is passed in is known by name."""
    if isinstance(value.type, FunctionType_):
        return PythonObject(python_objects.find(value.type.name))
    return value


def outer_names(fn: FunctionType) -> dict[str, object]:
    """Return the meaning of free names: closure, then globals, then builtins."""
    names = dict(vars(builtins))
    names.update(fn.__globals__)  # with `__package__`, for imports
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            names.pop(name, None)  # not assigned yet
    return names


def compile_body(c: Context) -> Node:
    """Compile the statements of the innermost function; return its result."""
    frame = c.frame
    frame.vars[RETURNED] = frame.vars[RAISED] = c.const(False)
    frame.block = c.builder.block
    body = frame.source.node.body
    if isinstance(body, ast.expr):
        return c.expr(body)
    run(c, c.steps(body))
    returned = frame.vars[RETURNED]
    value = frame.vars.get(RETURN_VALUE)
    assert isinstance(returned, Value)
    known = c.builder.constant(returned)
    if known is True and isinstance(value, NODES):
        return cast("Node", value)
    if known is UNKNOWN and isinstance(value, Value):
        kept = value
        return choose(c, frame.source.node, returned, lambda: kept, lambda: c.const(None))
    raised = frame.vars[RAISED]
    if isinstance(raised, Value) and c.builder.constant(raised) is True:
        return c.builder.undef()
    return c.const(None)
