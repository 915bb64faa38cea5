"""Python's builtins, and the functions of the language itself.

In: a call of a builtin. Out: ops on Python values, or something the compiler takes apart (a range).
`BUILTINS` is the table: the Python object → who compiles its call.
"""

from __future__ import annotations

import ast
import operator
import types
import typing
from collections.abc import Callable
from typing import cast

import torch

from lowtide.frontend.script import language
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.expressions import (
    known_elements,
    make_list,
    python_object,
    value_attribute,
)
from lowtide.frontend.script.iteration import iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF
from lowtide.frontend.script.nodes import (
    Call,
    Enumerate,
    ModuleRef,
    Node,
    PythonObject,
    Range,
    Reversed,
    Slice,
    Zip,
)
from lowtide.frontend.script.operators import binary
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import ListType, OptionalType, TupleType, Type, UnionType

Builtin = Callable[[Context, Call], Node]


def _values(c: Context, call: Call) -> list[Value]:
    return [c.as_value(a, call.node) for a in call.args]


def _py(op_name: str, torch_source: str = "") -> Builtin:
    """The op on Python values; on tensors the PyTorch function, if one is named."""

    def compile_builtin(c: Context, call: Call) -> Node:
        values = _values(c, call)
        if torch_source and any(t.may_be_tensor(v.type) for v in values):
            return torch_call(c, call.node, torch_source, call.args, call.keywords)
        return c.py(call.node, op_name, *values)

    return compile_builtin


def _range(c: Context, call: Call) -> Node:
    values = _values(c, call)
    match values:
        case [stop]:
            return Range(c.const(0), stop, c.const(1))
        case [start, stop]:
            return Range(start, stop, c.const(1))
        case [start, stop, step]:
            return Range(start, stop, step)
        case _:
            raise c.error(call.node, f"range() takes 1 to 3 arguments, not {len(values)}")


def _enumerate(c: Context, call: Call) -> Node:
    given = [*call.args[1:], *call.keywords.values()]
    start = c.as_value(given[0], call.node) if given else c.const(0)
    return Enumerate(call.args[0], start)


def _zip(c: Context, call: Call) -> Node:
    return Zip(tuple(call.args))


def _reversed(c: Context, call: Call) -> Node:
    return Reversed(call.args[0])


def _slice(c: Context, call: Call) -> Node:
    values = _values(c, call)
    if len(values) == 1:
        values.insert(0, c.const(None))
    if len(values) == 2:
        values.append(c.const(None))
    return Slice(*values)


def _list(c: Context, call: Call) -> Node:
    if not call.args:
        return make_list(c, call.node, [])
    found = call.args[0]
    if isinstance(found, Value):
        known = known_elements(c, found)
        if known is not None:
            return make_list(c, call.node, known)
        if not t.may_be_tensor(found.type):
            return c.py(call.node, "list.of", found)
    return _collected(c, call, found)


def _collected(c: Context, call: Call, found: Node) -> Node:
    iteration = iterate(c, found, call.node)
    count = static_length(c, iteration)
    if count is not None:
        elems = [iteration.element(c.const(k)) for k in range(count)]
        return make_list(c, call.node, [c.as_value(e, call.node) for e in elems])
    return _folded(
        c,
        call,
        found,
        make_list(c, call.node, []),
        lambda xs, v: c.py(call.node, "list.append", xs, v),
    )


def _tuple(c: Context, call: Call) -> Node:
    if not call.args:
        return c.builder.tuple_make([])
    found = _list(c, call)
    assert isinstance(found, Value)
    known = known_elements(c, found)
    return found if known is None else c.builder.tuple_make(known)


def _folded(
    c: Context, call: Call, found: Node, start: Value, step: Callable[[Value, Value], Value]
) -> Node:
    """`step` over every element, beginning with `start`: unrolled if the elements are in sight."""
    iteration = iterate(c, found, call.node)
    known = known_elements(c, found) if isinstance(found, Value) else None
    if known is not None:
        for value in known:
            start = step(start, value)
        return start
    name = "$fold"
    outer = c.frame.vars.get(name)
    c.frame.vars[name] = start

    def body(i: Value) -> None:
        so_far = c.frame.vars[name]
        assert isinstance(so_far, Value)
        c.frame.vars[name] = step(so_far, c.as_value(iteration.element(i), call.node))

    target = ast.Name(name, ast.Store())
    loop_over(c, call.node, [target], iteration, body)
    result = c.frame.vars.pop(name)
    if outer is not None:
        c.frame.vars[name] = outer
    assert isinstance(result, Value)
    return result


def _sum(c: Context, call: Call) -> Node:
    found = call.args[0]
    start = c.as_value(call.args[1], call.node) if len(call.args) > 1 else c.const(0)
    if isinstance(found, Value) and _numbers_only(found.type) and len(call.args) == 1:
        return c.py(call.node, "py.sum", found)
    return _folded(c, call, found, start, lambda a, b: binary(c, call.node, "add", "py.add", a, b))


def _numbers_only(type_: Type) -> bool:
    match type_:
        case ListType(elem):
            return t.is_number(elem) or elem == t.NEVER
        case TupleType(elems):
            return all(t.is_number(e) for e in elems)
        case _:
            return False


def _extremum(op_name: str) -> Builtin:
    def compile_extremum(c: Context, call: Call) -> Node:
        values = _values(c, call)
        if any(t.may_be_tensor(v.type) for v in values):
            raise c.error(
                call.node,
                f"{op_name[3:]}() of tensors",
                f"torch.{op_name[3:]}imum(a, b) or x.{op_name[3:]}()",
            )
        return c.py(call.node, op_name, *values)

    return compile_extremum


def _any_all(start: bool) -> Builtin:
    def compile_any_all(c: Context, call: Call) -> Node:
        name = "py.and" if start else "py.or"
        return _folded(
            c,
            call,
            call.args[0],
            c.const(start),
            lambda a, b: c.py(call.node, name, a, c.truth(b)),
        )

    return compile_any_all


def _len(c: Context, call: Call) -> Node:
    found = call.args[0]
    if isinstance(found, Value) and t.may_be_tensor(found.type):
        return torch_call(c, call.node, "Tensor.size", [found, c.const(0)], {})
    if not isinstance(found, Value):
        return iterate(c, found, call.node).length
    return c.py(call.node, "py.len", found)


def _print(c: Context, call: Call) -> Node:
    c.builder.emit("print", _values(c, call))
    return c.const(None)


def _isinstance(c: Context, call: Call) -> Node:
    found, cls = call.args
    if isinstance(found, ModuleRef):
        return c.const(isinstance(found.module, _classes(c, call, cls)))  # pyright: ignore
    value = c.as_value(found, call.node)
    classes = _classes(c, call, cls)
    answers = {_is_instance(member, classes) for member in _possible(value.type)}
    if len(answers) == 1:
        return c.const(answers.pop())
    if isinstance(value.type, OptionalType):
        op = "py.is_not" if _is_instance(value.type.elem, classes) else "py.is"
        return c.py(call.node, op, value, c.const(None))
    raise c.error(call.node, f"isinstance() of a value of type {value.type} is decided at run time")


def _classes(c: Context, call: Call, cls: Node) -> tuple[object, ...]:
    if not isinstance(cls, PythonObject):
        raise c.error(call.node, "isinstance() takes a class, or a tuple of classes")
    if isinstance(cls.obj, tuple):
        return cast("tuple[object, ...]", cls.obj)
    return typing.get_args(cls.obj) if isinstance(cls.obj, types.UnionType) else (cls.obj,)


def _possible(type_: Type) -> tuple[Type, ...]:
    match type_:
        case OptionalType(elem):
            return (*_possible(elem), t.NONE)
        case UnionType(elems):
            return elems
        case _:
            return (type_,)


def _is_instance(type_: Type, classes: tuple[object, ...]) -> bool:
    return any(_is_one(type_, cls) for cls in classes)


def _is_one(type_: Type, cls: object) -> bool:
    if cls is int:
        return type_ in (t.INT, t.BOOL)
    if cls is list:
        return isinstance(type_, ListType)
    if cls is tuple:
        return isinstance(type_, TupleType)
    return type_from_annotation(cls, {}) == type_


def _device(c: Context, call: Call) -> Node:
    values = _values(c, call)
    if values and values[0].type == t.DEVICE:
        return values[0]
    return c.py(call.node, "py.device", *values)


def _true(c: Context, call: Call) -> Node:
    return c.const(True)


def _annotate(c: Context, call: Call) -> Node:
    found = call.args[0]
    annotation = found.obj if isinstance(found, PythonObject) else c.constant(found)
    return as_declared(c, call.args[1], type_from_annotation(annotation, c.frame.names))


def _getattr(c: Context, call: Call) -> Node:
    found, name = call.args[0], c.constant(call.args[1])
    if not isinstance(name, str):
        raise c.error(call.node, "getattr() with a name that is computed", "the attribute itself")
    if isinstance(found, ModuleRef) and (len(call.args) == 2 or hasattr(found.module, name)):
        return ATTRIBUTE_OF[ModuleRef](c, call.node, found, name)
    if isinstance(found, ModuleRef):
        return call.args[2]
    if isinstance(found, PythonObject) and hasattr(found.obj, name):
        path = f"{found.path}.{name}" if found.path else ""
        return python_object(c, call.node, getattr(found.obj, name), path)
    return value_attribute(c, call.node, c.as_value(found, call.node), name)


def _hasattr(c: Context, call: Call) -> Node:
    found, name = call.args[0], c.constant(call.args[1])
    if not isinstance(name, str):
        raise c.error(call.node, "hasattr() with a name that is computed", "a fixed name")
    if isinstance(found, PythonObject):
        return c.const(hasattr(found.obj, name))
    if isinstance(found, ModuleRef):
        return c.const(hasattr(found.module, name))
    value = c.as_value(found, call.node)
    return c.const(value.type == t.TENSOR and hasattr(torch.Tensor, name))


def _divmod(c: Context, call: Call) -> Node:
    a, b = _values(c, call)
    quotient = binary(c, call.node, "floordiv", "py.floordiv", a, b)
    return c.builder.tuple_make([quotient, binary(c, call.node, "mod", "py.mod", a, b)])


def _pow(c: Context, call: Call) -> Node:
    a, b = _values(c, call)
    return binary(c, call.node, "pow", "py.pow", a, b)


def _sorted(c: Context, call: Call) -> Node:
    if call.keywords:
        raise c.error(call.node, "sorted() with keywords", "torch.sort")
    return c.py(call.node, "list.sorted", *_values(c, call))


def _size(c: Context, call: Call) -> Node:
    return _list(c, call)


BUILTINS: dict[object, Builtin] = {
    len: _len,
    range: _range,
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    slice: _slice,
    list: _list,
    tuple: _tuple,
    sorted: _sorted,
    int: _py("py.int"),
    float: _py("py.float"),
    bool: _py("py.bool"),
    str: _py("py.str"),
    abs: _py("py.abs", "torch.abs"),
    round: _py("py.round", "torch.round"),
    min: _extremum("py.min"),
    max: _extremum("py.max"),
    sum: _sum,
    any: _any_all(False),
    all: _any_all(True),
    divmod: _divmod,
    pow: _pow,
    print: _print,
    isinstance: _isinstance,
    getattr: _getattr,
    hasattr: _hasattr,
    torch.device: _device,
    torch.Size: _size,
    torch.jit.is_scripting: _true,  # pyright: ignore[reportPrivateImportUsage]
    torch.jit.annotate: _annotate,
    torch.jit.isinstance: _isinstance,
    typing.cast: _annotate,
    operator.matmul: lambda c, call: binary(c, call.node, "matmul", "", *_values(c, call)),
    language.is_scripting: _true,
    language.annotate: _annotate,
}
