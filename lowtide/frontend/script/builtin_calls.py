"""Python's builtins, and the functions of the language itself.

In: a call of a builtin. Out: ops on Python values, or a compile-time node such as a range.
`BUILTINS` is the table: the Python object → the function that compiles its call.

    len(xs)           %0: int = py.len(%xs)
    range(n)          the node Range(0, n, 1), which a loop takes apart
"""

from __future__ import annotations

import ast
import builtins
import typing

import torch

from lowtide.frontend.script import class_operators, classes, language
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.iterable_calls import OVER_ITERABLES, Builtin
from lowtide.frontend.script.iteration import iterate
from lowtide.frontend.script.module_protocols import call_own, make_iterator
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
    describe,
)
from lowtide.frontend.script.operators import binary, truth
from lowtide.frontend.script.statements import as_declared
from lowtide.frontend.script.torch_calls import torch_call
from lowtide.frontend.script.types_from_annotations import type_from_annotation
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.torch_private import private_names, torch_jit


def _values(c: Context, call: Call) -> list[Value]:
    return [c.as_value(a, call.node) for a in call.args]


def _py(op_name: str, torch_source: str = "") -> Builtin:
    """Compile a call as the op on Python values, or on tensors as the PyTorch function, if one is
    given."""

    def compile_builtin(c: Context, call: Call) -> Node:
        values = _values(c, call)
        if torch_source and any(t.is_tensor(v.type) for v in values):
            return torch_call(c, call.node, torch_source, call.args, call.keywords)
        return c.py(call.node, op_name, *values)

    return compile_builtin


def _as_count(c: Context, node: ast.AST, value: Value) -> Value:
    """Return the value as an int; if its type is unknown, checked at run time."""
    is_int = value.type != t.BOOL and not _may_be_count(value.type)
    return value if is_int else c.py(node, "py.index", value)


def _may_be_count(type_: t.Type) -> bool:
    """Return whether the value may be used as an int. That is a tensor, an object with `__index__`
    such as NumPy's integers, or a value of unknown type."""
    has_index = hasattr(classes.class_of(type_), "__index__")
    return t.is_dynamic(type_) or t.is_tensor(type_) or type_ == t.NUMBER or has_index


def _range(c: Context, call: Call) -> Node:
    values = _values(c, call)
    for value in values:
        if value.type not in (t.INT, t.BOOL) and not _may_be_count(value.type):
            raise c.error(call.node, f"range() of {value.type}", "an int")
    values = [_as_count(c, call.node, v) for v in values]
    match values:
        case [stop]:
            return Range(c.const(0), stop, c.const(1))
        case [start, stop]:
            return Range(start, stop, c.const(1))
        case [start, stop, step]:
            return Range(start, stop, step)
        case _:
            raise c.error(
                call.node, f"range() takes 1 to 3 arguments, not {len(values)}", "range(stop)"
            )


def _enumerate(c: Context, call: Call) -> Node:
    given = [*call.args[1:], *call.keywords.values()]
    start = c.as_value(given[0], call.node) if given else c.const(0)
    return Enumerate(call.args[0], _as_count(c, call.node, start))


def _zip(c: Context, call: Call) -> Node:
    strict = c.constant(call.keywords["strict"]) if "strict" in call.keywords else False
    if not isinstance(strict, bool):
        raise c.error(call.node, "`strict` of zip() must be a constant", "True")
    if call.unpacked and strict:
        raise c.error(call.node, "`strict` of zip() of unknown length", "a comparison of lengths")
    if call.unpacked:  # `zip(*rows)`
        return c.py(call.node, "list.zipped", c.as_value(call.args[0], call.node))
    return Zip(tuple(call.args), strict)


def _round(c: Context, call: Call) -> Node:
    if isinstance(call.args[0], Value) and t.is_tensor(call.args[0].type):
        raise c.error(call.node, "a Tensor has no `__round__`", "torch.round(x)")
    return _py("py.round")(c, call)


def _reversed(c: Context, call: Call) -> Node:
    return Reversed(call.args[0])


def _slice(c: Context, call: Call) -> Node:
    values = _values(c, call)
    if len(values) == 1:
        values.insert(0, c.const(None))
    if len(values) == 2:
        values.append(c.const(None))
    return Slice(*values)


def _bool(c: Context, call: Call) -> Node:
    return truth(c, call.node, c.as_value(call.args[0], call.node)) if call.args else c.const(False)


def _len(c: Context, call: Call) -> Node:
    (found,) = call.args
    c.check_no_iterator(found, call.node.args[0])
    on_module = call_own(c, call.node, found, "__len__")
    if on_module is not None:
        return _as_length(c, call, on_module)
    if isinstance(found, ModuleRef) and not hasattr(found.module, "__len__"):
        raise c.error(call.node, f"{describe(found)} has no len()", "a `__len__` of its class")
    if not isinstance(found, Value):
        return iterate(c, found, call.node).length
    on_object = class_operators.unary(c, call.node, found, "__len__")
    if on_object is not None:
        return _as_length(c, call, on_object)
    if t.is_tensor(found.type):
        return torch_call(c, call.node, "Tensor.size", [found, c.const(0)], {})
    return c.py(call.node, "py.len", found)


def _as_length(c: Context, call: Call, found: Node) -> Node:
    """Return the result of `len` for the result of a `__len__`: an int, or Python's error."""
    is_int = isinstance(found, Value) and found.type == t.INT
    return found if is_int else c.py(call.node, "py.length", c.as_value(found, call.node))


def _text(op_name: str, *methods: str) -> Builtin:
    """Compile `str(x)` and `repr(x)`; for an object, by its own method."""

    def compile_text(c: Context, call: Call) -> Node:
        values = [shown(c, v) for v in _values(c, call)]
        for method in methods if values else ():
            found = class_operators.unary(c, call.node, values[0], method)
            if found is not None:
                return found
        return c.py(call.node, op_name, *values) if values else c.const("")

    return compile_text


def _print(c: Context, call: Call) -> Node:
    values = [shown(c, c.as_value(a, call.node)) for a in call.args]
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
    """Return False: compiled code is invisible to torch.compile and torch.export, which get the
    Python function."""
    return c.const(False)


def _annotate(c: Context, call: Call) -> Node:
    found = call.args[0]
    annotation = found.obj if isinstance(found, PythonObject) else c.constant(found)
    return as_declared(c, call.args[1], type_from_annotation(annotation, c.frame.names))


def _divmod(c: Context, call: Call) -> Node:
    a, b = _values(c, call)
    if t.is_dynamic(a.type) or t.is_dynamic(b.type):
        return c.py(call.node, "py.divmod", a, b)  # a tensor has `//` and `%`, but not both at once
    if not all(t.is_number(x.type) for x in (a, b)):  # a tensor, or an object with `__divmod__`
        target = python_objects.name_of(divmod)
        return c.builder.emit("py.call", [a, b], [t.ANY], target=target, kwnames=()).result
    if t.FLOAT in (a.type, b.type) and c.builder.constant(b) in (UNKNOWN, 0):
        return c.py(call.node, "py.divmod", a, b)  # by zero its message is another than `//`'s
    quotient = binary(c, call.node, "floordiv", "py.floordiv", a, b)
    return c.builder.tuple_make([quotient, binary(c, call.node, "mod", "py.mod", a, b)])


def _pow(c: Context, call: Call) -> Node:
    words = dict(zip(("base", "exp", "mod"), call.args, strict=False)) | call.keywords
    a, b, *rest = (c.as_value(v, call.node) for v in words.values())
    if rest and c.constant(rest[0]) is not None:
        return c.py(call.node, "py.pow_mod", a, b, *rest)
    return binary(c, call.node, "pow", "py.pow", a, b)


def _fork(c: Context, call: Call) -> Node:
    fn, *args = call.args
    result = c.call_function(call.node, fn, args, call.keywords)
    return c.py(call.node, "future.done", c.as_value(result, call.node))


def _complex(c: Context, call: Call) -> Node:
    return c.py(call.node, "py.complex", *_values(c, call))


def _assert(c: Context, call: Call) -> Node:
    """Compile PyTorch's assert functions, of a condition and a message."""
    if len(call.args) != 2 or call.keywords:
        raise c.error(
            call.node, f"{private_names.ASSERT} takes a condition and a message", "`assert`"
        )
    condition, message = _values(c, call)
    held = truth(c, call.node, condition)
    if c.constant(held) is not True:
        c.builder.emit("assert", [held, message])
    return c.const(None)


def _unwrap_optional(c: Context, call: Call) -> Node:
    """Compile torch.jit's function that returns x and raises if it is None."""
    (value,) = _values(c, call)
    held = c.py(call.node, "py.is_not", value, c.const(None))
    if c.constant(held) is not True:
        c.builder.emit("assert", [held, c.const("Unwrapping null optional")])
    if isinstance(value.type, t.OptionalType):
        return c.builder.emit("cast", [value], [value.type.elem]).result
    return c.not_none(value)


BUILTINS: dict[object, Builtin] = {
    **OVER_ITERABLES,
    len: _len,
    range: _range,
    enumerate: _enumerate,
    zip: _zip,
    reversed: _reversed,
    slice: _slice,
    iter: make_iterator,
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
    round: _round,
    divmod: _divmod,
    pow: _pow,
    print: _print,
    torch.device: _device,
    torch.compiler.is_compiling: _false,
    torch.compiler.is_dynamo_compiling: _false,
    torch.compiler.is_exporting: _false,
    torch.jit.is_scripting: _true,  # pyright: ignore[reportPrivateImportUsage]
    torch.jit.annotate: _annotate,
    typing.cast: _annotate,
    language.is_scripting: _true,
    language.annotate: _annotate,
    language.fork: _fork,
    language.wait: _py("future.wait"),
    torch.jit.fork: _fork,
    torch.jit.wait: _py("future.wait"),
    torch_jit.check: _assert,
    torch_jit.unwrap_optional: _unwrap_optional,
}

# What else a builtin takes by name: as the next positional arguments, and as itself.
_POSITIONS: dict[object, tuple[str, ...]] = {
    int: ("x", "base"),
    round: ("number", "ndigits"),
    sum: ("iterable", "start"),
    complex: ("real", "imag"),
    torch.device: ("type", "index"),
}
_KEYWORDS: dict[object, tuple[str, ...]] = {
    sorted: ("key", "reverse"),
    min: ("key", "default"),
    max: ("key", "default"),
    enumerate: ("start",),
    zip: ("strict",),
    print: ("sep", "end", "file", "flush"),
    pow: ("base", "exp", "mod"),
}


def take_keywords(c: Context, obj: object, call: Call) -> None:
    """Move keywords to their positions. Raises CompileError for unknown ones."""
    for name in _POSITIONS.get(obj, ())[len(call.args) :]:
        if name not in call.keywords:
            break
        call.args.append(call.keywords.pop(name))
    is_plain = vars(builtins).get(getattr(obj, "__name__", "")) is obj and obj is not dict
    if is_plain or obj in _POSITIONS:
        wrong = [k for k in call.keywords if k not in _KEYWORDS.get(obj, ())]
        if wrong:
            name = getattr(obj, "__name__", "")
            problem = f"{name}() with the keyword {wrong[0]!r} is not compiled"
            raise c.error(call.node, problem, f"what {name}() takes, by its position")
