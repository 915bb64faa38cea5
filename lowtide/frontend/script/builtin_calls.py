"""Python's builtins, and the functions of the language itself.

In: a call of a builtin. Out: ops on Python values, or something the compiler takes apart (a range).
`BUILTINS` is the table: the Python object → who compiles its call.
"""

from __future__ import annotations

import ast
import collections
import operator
import typing
from collections.abc import Callable, Mapping

import torch

from lowtide.frontend.script import classes, language
from lowtide.frontend.script.context import Context, link
from lowtide.frontend.script.expressions import (
    known_elements,
    make_dict,
    plain,
)
from lowtide.frontend.script.flow import branch_on, choose
from lowtide.frontend.script.iteration import iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.nodes import (
    Call,
    Enumerate,
    Node,
    PythonObject,
    Range,
    Reversed,
    Slice,
    Zip,
)
from lowtide.frontend.script.operators import binary, truth
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.targets import elements, widen
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import DictType, ListType, TupleType, Type

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


_COUNTS = (t.INT, t.BOOL, t.NUMBER, t.TENSOR)


def _range(c: Context, call: Call) -> Node:
    values = _values(c, call)
    for value in values:
        if not (value.type in _COUNTS or t.is_dynamic(value.type)):
            raise c.error(call.node, f"range() of {value.type}", "an int")
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
        return c.builder.list_make([])
    return list_of(c, call.args[0], call.node)


@link
def list_of(c: Context, found: Node, node: ast.AST) -> Value:
    """A new list of what is run over."""
    if isinstance(found, Value):
        known = known_elements(c, found)
        if known is not None:
            return c.builder.list_make(known)
        if isinstance(found.type, ListType | TupleType | DictType) or found.type == t.STR:
            return c.py(node, "list.of", found)
    made = c.builder.list_make([])
    _each(c, found, node, lambda value: _append(c, made, value))
    return made


def _append(c: Context, made: Value, value: Value) -> None:
    if isinstance(made.type, ListType):
        widen(c, made, ListType(t.join(made.type.elem, value.type)))
    c.effect("list.append", made, value)


def _each(c: Context, found: Node, node: ast.AST, body: Callable[[Value], None]) -> None:
    """Compiles `body` for every element: one by one if they are in sight, else in a loop."""
    iteration = iterate(c, found, node)  # pyright: ignore[reportArgumentType]
    known = known_elements(c, found) if isinstance(found, Value) else None
    if known is None and iteration.must_unroll:
        count = static_length(c, iteration) or 0
        known = [c.as_value(iteration.element(c.const(k)), node) for k in range(count)]
    if known is not None:
        for value in known:
            body(value)
        return

    def enter(i: Value) -> None:
        body(c.as_value(iteration.element(i), node))

    loop_over(c, node, [ast.Name(n, ast.Store()) for n in _HIDDEN], iteration, enter)


_FOLD = "$fold"
_HIDDEN = (_FOLD,)


def _tuple(c: Context, call: Call) -> Node:
    if not call.args:
        return c.builder.tuple_make([])
    found = call.args[0]
    if isinstance(found, Value):
        known = known_elements(c, found)
    else:
        known = c.builder.list_elements(list_of(c, found, call.node))
        iteration = iterate(c, found, call.node)
        count = static_length(c, iteration)
        if count is not None:
            elements = [iteration.element(c.const(k)) for k in range(count)]
            known = [c.as_value(e, call.node) for e in elements]
    if known is not None:
        return c.builder.tuple_make(known)
    elem = (
        found.type.elem if isinstance(found, Value) and isinstance(found.type, ListType) else t.ANY
    )
    xs = found if isinstance(found, Value) else list_of(c, found, call.node)
    return c.builder.emit("py.tuple", [xs], [ListType(elem)]).result


def _dict(c: Context, call: Call) -> Node:
    made = make_dict(c, [], [])
    if call.args:
        found = call.args[0]
        if isinstance(found, Value) and isinstance(found.type, DictType):
            made = c.py(call.node, "dict.copy", found)
        else:
            _each(c, found, call.node, lambda pair: _put_pair(c, call, made, pair))
    for name, node in call.keywords.items():
        value = c.as_value(node, call.node)
        _put(c, made, c.const(name), value)
    return made


def _put_pair(c: Context, call: Call, made: Value, pair: Value) -> None:
    key, value = elements(c, call.node, pair, 2)
    _put(c, made, key, value)


def _put(c: Context, made: Value, key: Value, value: Value) -> None:
    if isinstance(made.type, DictType):
        widen(c, made, t.join(made.type, DictType(key.type, value.type)))
    c.effect("dict.set", made, key, value)


def _set(c: Context, call: Call) -> Node:
    if not call.args:
        return c.dynamic("set.make", [])
    return c.py(call.node, "set.of", list_of(c, call.args[0], call.node))


def _folded(
    c: Context, call: Call, found: Node, start: Value, step: Callable[[Value, Value], Value]
) -> Node:
    """`step` over every element, beginning with `start`."""
    outer = c.frame.vars.get(_FOLD)
    c.frame.vars[_FOLD] = start

    def fold(value: Value) -> None:
        so_far = c.frame.vars[_FOLD]
        assert isinstance(so_far, Value)
        c.frame.vars[_FOLD] = step(so_far, value)

    _each(c, found, call.node, fold)
    result = c.frame.vars.pop(_FOLD)
    if outer is not None:
        c.frame.vars[_FOLD] = outer
    assert isinstance(result, Value)
    return result


def _map(c: Context, call: Call) -> Node:
    fn, *sources = call.args
    made = c.builder.list_make([])
    found = sources[0] if len(sources) == 1 else Zip(tuple(sources))

    def put(value: Value) -> None:
        args = [value] if len(sources) == 1 else elements(c, call.node, value, len(sources))
        result = c.call_function(call.node, fn, list(args))
        _append(c, made, c.as_value(result, call.node))

    _each(c, found, call.node, put)
    return made


def _filter(c: Context, call: Call) -> Node:
    fn, source = call.args
    made = c.builder.list_make([])

    def put(value: Value) -> None:
        kept = c.as_value(c.call_function(call.node, fn, [value]), call.node)
        condition = truth(c, call.node, kept)
        branch_on(c, call.node, condition, lambda: _append(c, made, value), lambda: None)

    _each(c, source, call.node, put)
    return made


def _sorted(c: Context, call: Call) -> Node:
    xs = list_of(c, call.args[0], call.node)
    return sorted_by(c, call.node, xs, call.keywords)


@link
def sorted_by(c: Context, node: ast.Call, xs: Value, keywords: Mapping[str, Node]) -> Value:
    """A sorted copy; by the keys that a function gives, if one is named."""
    reverse = c.as_value(keywords.get("reverse", c.const(False)), node)
    key = keywords.get("key")
    if key is None or (isinstance(key, Value) and key.type == t.NONE):
        return c.py(node, "list.sorted", xs, reverse)
    fn = key
    keys = c.builder.list_make([])

    def put(value: Value) -> None:
        _append(c, keys, c.as_value(c.call_function(node, fn, [value]), node))

    _each(c, xs, node, put)
    return c.py(node, "list.sorted_by", xs, keys, reverse)


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
        values = [plain(c, a, call.node) for a in call.args]
        if "key" in call.keywords:
            return _extremum_by(c, call, values, op_name)
        if any(v.type == t.TENSOR for v in values):
            raise c.error(
                call.node,
                f"{op_name[3:]}() of tensors",
                f"torch.{op_name[3:]}imum(a, b) or x.{op_name[3:]}()",
            )
        if "default" in call.keywords:
            default = c.as_value(call.keywords["default"], call.node)
            some = c.py(call.node, "py.gt", c.py(call.node, "py.len", values[0]), c.const(0))
            found = lambda: c.py(call.node, op_name, *values)  # noqa: E731
            return choose(c, call.node, some, found, lambda: default)
        return c.py(call.node, op_name, *values)

    return compile_extremum


def _extremum_by(c: Context, call: Call, values: list[Value], op_name: str) -> Node:
    """The first of the least, or of the greatest, by a key."""
    xs = values[0] if len(values) == 1 else c.builder.list_make(values)
    keywords = {"key": call.keywords["key"], "reverse": c.const(op_name == "py.max")}
    ordered = sorted_by(c, call.node, list_of(c, xs, call.node), keywords)
    return c.py(call.node, "list.get", ordered, c.const(0))


def _bool(c: Context, call: Call) -> Node:
    return truth(c, call.node, c.as_value(call.args[0], call.node)) if call.args else c.const(False)


def _any_all(start: bool) -> Builtin:
    def compile_any_all(c: Context, call: Call) -> Node:
        name = "py.and" if start else "py.or"
        return _folded(
            c,
            call,
            call.args[0],
            c.const(start),
            lambda a, b: c.py(call.node, name, a, truth(c, call.node, b)),
        )

    return compile_any_all


def _len(c: Context, call: Call) -> Node:
    found = call.args[0]
    if not isinstance(found, Value):
        return iterate(c, found, call.node).length
    on_object = classes.unary(c, call.node, found, "__len__")
    if on_object is not None:
        return on_object
    if t.may_be_tensor(found.type):
        return torch_call(c, call.node, "Tensor.size", [found, c.const(0)], {})
    return c.py(call.node, "py.len", found)


def _text(op_name: str, *methods: str) -> Builtin:
    """`str(x)`, `repr(x)`: of an object, by its own method."""

    def compile_text(c: Context, call: Call) -> Node:
        values = _values(c, call)
        for method in methods if values else ():
            found = classes.unary(c, call.node, values[0], method)
            if found is not None:
                return found
        return c.py(call.node, op_name, *values) if values else c.const("")

    return compile_text


def _print(c: Context, call: Call) -> Node:
    values = [plain(c, a, call.node) for a in call.args]
    named = {k: c.as_value(v, call.node) for k, v in call.keywords.items()}
    c.builder.emit("print", [*values, *named.values()], kwnames=tuple(named))
    return c.const(None)


def _device(c: Context, call: Call) -> Node:
    values = _values(c, call)
    if values and values[0].type == t.DEVICE:
        return values[0]
    return c.py(call.node, "py.device", *values)


def _true(c: Context, call: Call) -> Node:
    return c.const(True)


def _false(c: Context, call: Call) -> Node:
    """torch.compile and torch.export do not see compiled code: they get its Python function."""
    return c.const(False)


def _annotate(c: Context, call: Call) -> Node:
    found = call.args[0]
    annotation = found.obj if isinstance(found, PythonObject) else c.constant(found)
    return as_declared(c, call.args[1], type_from_annotation(annotation, c.frame.names))


def _divmod(c: Context, call: Call) -> Node:
    a, b = _values(c, call)
    quotient = binary(c, call.node, "floordiv", "py.floordiv", a, b)
    return c.builder.tuple_make([quotient, binary(c, call.node, "mod", "py.mod", a, b)])


def _pow(c: Context, call: Call) -> Node:
    a, b = _values(c, call)
    return binary(c, call.node, "pow", "py.pow", a, b)


def _fork(c: Context, call: Call) -> Node:
    fn, *args = call.args
    result = c.call_function(call.node, fn, args, call.keywords)
    return c.py(call.node, "future.done", c.as_value(result, call.node))


def _complex(c: Context, call: Call) -> Node:
    return c.py(call.node, "py.complex", *_values(c, call))


def _assert(c: Context, call: Call) -> Node:
    """`torch._assert(condition, message)`."""
    if len(call.args) != 2 or call.keywords:
        raise c.error(call.node, "torch._assert takes a condition and a message", "`assert`")
    condition, message = _values(c, call)
    held = truth(c, call.node, condition)
    if c.constant(held) is not True:
        c.builder.emit("assert", [held, message])
    return c.const(None)


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
    dict: _dict,
    collections.OrderedDict: _dict,
    set: _set,
    map: _map,
    filter: _filter,
    int: _py("py.int"),
    float: _py("py.float"),
    bool: _bool,
    complex: _complex,
    str: _text("py.str", "__str__", "__repr__"),
    repr: _text("py.repr", "__repr__"),
    ord: _py("py.ord"),
    chr: _py("py.chr"),
    hex: _py("py.hex"),
    bin: _py("py.bin"),
    oct: _py("py.oct"),
    hash: _py("py.hash"),
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
    torch.device: _device,
    torch.Size: _size,
    torch.compiler.is_compiling: _false,
    torch.compiler.is_dynamo_compiling: _false,
    torch.jit.is_scripting: _true,  # pyright: ignore[reportPrivateImportUsage]
    torch.jit.annotate: _annotate,
    typing.cast: _annotate,
    operator.matmul: lambda c, call: binary(c, call.node, "matmul", "", *_values(c, call)),
    language.is_scripting: _true,
    language.annotate: _annotate,
    language.fork: _fork,
    language.wait: _py("future.wait"),
    torch.jit.fork: _fork,
    torch.jit.wait: _py("future.wait"),
    torch._assert: _assert,  # pyright: ignore[reportPrivateUsage]
    torch.jit._unwrap_optional: lambda c, call: call.args[0],  # pyright: ignore
}
