"""Operators on numbers, strings, lists and dicts: what Python has for each.

In: the name of an operator of which no argument is a tensor. Out: ops on Python values.

    torch.floordiv(n, 2)       →  py.floordiv
    torch.__getitem__(xs, 0)   →  list.get
    torch.pow(2, 3)            →  8.0, as the schema tells: a float

`TABLE` has a row for each name. Operators of TorchScript differ from Python's where a comment
says so.
"""

from __future__ import annotations

import ast
import builtins
import enum
import math
import warnings
from collections.abc import Callable
from typing import Any, Final, cast

import torch

from lowtide.frontend.script.builtin_calls import shown
from lowtide.frontend.script.classes import class_of
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import Call, Method, Node, PythonObject
from lowtide.frontend.script.operators import binary, truth
from lowtide.frontend.script.subscripts import Items, load
from lowtide.frontend.script.targets import store
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.python_ops.row import element
from lowtide.ir.python_ops.strings import METHODS as STRING_METHODS
from lowtide.ir.python_ops.torchscript import MATH
from lowtide.ir.types import DictType, ListType, OptionalType, TupleType, Type

Values = list[Value]
Keywords = dict[str, Value]
Row = Callable[[Context, Call, Values, Keywords], Node]


def _binary(name: str, py_name: str) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        if name == "add" and args[0].type == args[1].type == t.STR:
            return c.py(call.node, "torchscript.add", *args)
        return binary(c, call.node, name, py_name, args[0], args[1])

    return compile_call


def _op(py_name: str) -> Row:
    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        return c.py(call.node, py_name, *args)

    return compile_call


def _call(fn: object) -> Row:
    """Return a builtin or a function of `math`, of the same arguments."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        path = f"math.{getattr(fn, '__name__', '')}" if fn in _MATH else ""
        return c.call_function(call.node, PythonObject(fn, path), args, keywords)

    return compile_call


def _method(name: str) -> Row:
    """Return a method of the first argument; of a string, with its bytes as characters."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        if args[0].type == t.STR and name in STRING_METHODS and not keywords:
            return c.py(call.node, f"torchscript.str.{name}", *args)
        return c.call_function(call.node, Method(args[0], name), args[1:], keywords)

    return compile_call


_MATH: Final = frozenset(
    f for f in vars(math).values() if callable(f) and not isinstance(f, builtins.type)
)


def _of_c(name: str, *, is_exact: bool) -> Row:
    """Return an operator whose result for floats is that of C: inf or nan where Python's raises.
    `is_exact`: of ints it is an int, as in Python."""
    of_python = _binary(*_ARITHMETIC[name])
    ours = f"torchscript.{_ARITHMETIC[name][0]}"

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        types = {a.type for a in args}
        divisor = c.constant(args[1])
        is_plain = isinstance(divisor, int | float) and divisor != 0
        if is_plain or not types <= _REAL or (is_exact and t.FLOAT not in types):
            return of_python(c, call, args, keywords)
        return c.py(call.node, ours, *args)

    return compile_call


def _power(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Of two ints, too, it is a float."""
    both = [c.py(call.node, "py.float", a) if a.type == t.INT else a for a in args]
    if all(a.type == t.FLOAT for a in both):
        return c.py(call.node, "torchscript.pow", *both)
    return binary(c, call.node, "pow", "py.pow", *both)


def _math(name: str) -> Row:
    """Return a function of C's of one or two floats."""
    of_python = _call(getattr(math, name))

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        is_usual = len(args) == (2 if name in _OF_TWO else 1) and {a.type for a in args} <= _REAL
        if name not in MATH or not is_usual or keywords:
            return of_python(c, call, args, keywords)
        return c.py(call.node, f"torchscript.{name}", *args)

    return compile_call


_REAL: Final[frozenset[Type]] = frozenset({t.INT, t.FLOAT, t.BOOL, t.NUMBER})
_OF_TWO: Final = ("atan2", "fmod", "copysign", "ldexp", "pow", "remainder")


def _rounded(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return a float again, where Python's `round` gives an int."""
    found = c.py(call.node, "py.round", args[0])
    return c.py(call.node, "py.float", found) if args[0].type == t.FLOAT else found


def _item(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    if args[0].type == t.STR:
        return c.py(call.node, "torchscript.getitem", *args)
    return load(c, _subscript(call), args[0], Items((_word(args[1].type),), (args[1],)))


def _word(type_: Type) -> str:
    return "int" if type_ == t.INT else "tensor"


def _subscript(call: Call) -> ast.Subscript:
    """Return a node for errors and places."""
    first = call.node.args[0] if call.node.args else call.node
    made = ast.Subscript(first, ast.Constant(0), ast.Load())
    return ast.copy_location(made, call.node)


def _slice(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    bounds = [*args[1:], *(c.const(None) for _ in range(4 - len(args)))]
    if args[0].type == t.STR:
        return c.py(call.node, "torchscript.slice", args[0], *bounds)
    return load(c, _subscript(call), args[0], Items(("slice",), tuple(bounds)))


def _set_item(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    store(c, _subscript(call), args[0], Items((_word(args[1].type),), (args[1],)), args[2])
    return args[0]


def _delete(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    if isinstance(_plain(args[0].type), DictType):
        c.effect("dict.delete", args[0], args[1])
    else:
        c.effect("list.delete", args[0], args[1])
    return c.const(None)


def _plain(type_: Type) -> Type:
    return type_.elem if isinstance(type_, OptionalType) else type_


def _contains(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.py(call.node, "py.contains", *args)


def _is_not(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.py(call.node, "py.is_not", *args)


def _not(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.py(call.node, "py.not", truth(c, call.node, args[0]))


def _list(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    if args and args[0].type == t.STR:
        return c.py(call.node, "torchscript.list", args[0])
    return c.call_function(call.node, PythonObject(list), args)


def _listed(name: str) -> Row:
    """Return `keys`, `values`, `items` of a dict: a list."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        found = c.call_function(call.node, Method(args[0], name), [])
        return c.list_of(found, call.node)

    return compile_call


def _dict(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.call_function(call.node, PythonObject(dict), args)


def _popitem(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return the first item, where Python's gives the last."""
    keys = _listed("keys")(c, call, args, keywords)
    key = c.py(call.node, "list.get", c.as_value(keys, call.node), c.const(0))
    value = c.call_function(call.node, Method(args[0], "pop"), [key])
    return c.builder.tuple_make([key, c.as_value(value, call.node)])


def _sort(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    more = {"reverse": args[1]} if len(args) > 1 else keywords
    return c.call_function(call.node, Method(args[0], "sort"), [], more)


def _sorted(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    more: Keywords = {"reverse": args[1]} if len(args) > 1 else keywords
    return c.call_function(call.node, PythonObject(sorted), args[:1], more)


def text_of(c: Context, node: ast.AST, value: Value) -> Value:
    """Return the text that TorchScript shows; of an object, that of its own `__str__`."""
    if isinstance(value.type, t.ClassType) and not is_enum(value.type):
        return c.py(node, "py.str", shown(c, value))
    return c.py(node, "py.str" if value.type in _SHOWN_ALIKE else "torchscript.text", value)


def is_enum(type_: Type) -> bool:
    """Return whether the values of the type are members of an enum."""
    cls = class_of(type_)
    return cls is not None and issubclass(cls, enum.Enum)


def _str(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return text_of(c, call.node, args[0])


_SHOWN_ALIKE: Final = (t.STR, t.INT, t.BOOL, t.NONE)


def _format(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """The template's `{}` are filled in order; TorchScript knows no other field."""
    template = c.constant(args[0])
    if not isinstance(template, str) or template.count("{}") > len(args) - 1:
        return c.py(call.node, "torchscript.format", *args)
    parts = (p.replace("{", "{{").replace("}", "}}") for p in template.split("{}"))
    made = c.const("{}".join(parts))
    texts = [text_of(c, call.node, a) for a in args[1:]]
    return c.call_function(call.node, Method(made, "format"), texts)


def _percent(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    is_one = len(args) == 2 and isinstance(args[1].type, TupleType)
    values = args[1:]
    if is_one:
        count = len(cast("TupleType", args[1].type).elems)
        values = [c.builder.tuple_get(args[1], k) for k in range(count)]
    return c.py(call.node, "torchscript.percent", args[0], *values)


def _extended(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """`xs += ys`: the same list."""
    added = element(args[1].type)
    if isinstance(args[0].type, ListType):
        elem = t.ANY if added is None else added
        c.builder.widen(args[0], ListType(t.join(args[0].type.elem, elem)))
    c.effect("list.extend", args[0], args[1])
    return args[0]


def _repeated(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """`xs *= n`: the same list."""
    c.effect("list.repeat", args[0], args[1])
    return args[0]


def _derive_index(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return `start + index * step`."""
    index, start, step = args
    return c.py(call.node, "py.add", start, c.py(call.node, "py.mul", index, step))


def _index(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return the place of an item in a list; a device's number."""
    row = _op("py.device_index") if len(args) == 1 else _method("index")
    return row(c, call, args, keywords)


def _range_length(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.call_function(
        call.node, PythonObject(len), [c.call_function(call.node, PythonObject(range), args)]
    )


def _range_list(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.list_of(c.call_function(call.node, PythonObject(range), args), call.node)


def _unwrap(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    (value,) = args
    if isinstance(value.type, OptionalType):
        return c.builder.emit("cast", [value], [value.type.elem]).result
    return value


def _to_tensor(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    """Return a tensor of no dimensions: int64, float64, bool or complex128, whatever the default
    is."""
    dtype = _DTYPE_OF.get(args[0].type)
    if dtype is None:
        target, named = "torch.scalar_tensor", {}
    else:
        target, named = "torch.tensor", {"dtype": c.const(dtype)}
    from lowtide.frontend.script.torch_calls import torch_call

    return torch_call(c, call.node, target, args[:1], named)


_DTYPE_OF: Final[dict[Type, torch.dtype]] = {
    t.INT: torch.int64,
    t.FLOAT: torch.float64,
    t.BOOL: torch.bool,
    t.COMPLEX: torch.complex128,
}


def _warn(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.call_function(call.node, PythonObject(warnings.warn), args[:1])


def _least(fn: object) -> Row:
    """Return `min` and `max` of numbers, of a list, or of two lists; of an int and a float, a
    float."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        if any(a.type == t.FLOAT for a in args):
            args = [c.py(call.node, "py.float", a) if a.type == t.INT else a for a in args]
        return c.call_function(call.node, PythonObject(fn), args, keywords)

    return compile_call


def _count(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    if args[0].type == t.STR:
        return c.py(call.node, "torchscript.len", args[0])
    if isinstance(_plain(args[0].type), TupleType | ListType | DictType):
        return c.py(call.node, "py.len", args[0])
    return c.call_function(call.node, PythonObject(len), args)


def _hash(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
    return c.call_function(call.node, PythonObject(hash), args)


def _runtime_query(fn: Callable[..., Any], type_: Type) -> Row:
    """Return a question to PyTorch that the run answers."""

    def compile_call(c: Context, call: Call, args: Values, keywords: Keywords) -> Node:
        target = python_objects.name_of(fn)
        return c.builder.emit("py.call", args, [type_], target=target, kwnames=()).result

    return compile_call


_ARITHMETIC: Final = {
    "add": ("add", "py.add"),
    "sub": ("sub", "py.sub"),
    "mul": ("mul", "py.mul"),
    "div": ("truediv", "py.truediv"),
    "floordiv": ("floordiv", "py.floordiv"),
    "remainder": ("mod", "py.mod"),
    "__and__": ("and_", "py.and"),
    "__or__": ("or_", "py.or"),
    "__xor__": ("xor", "py.xor"),
    "__lshift__": ("lshift", "py.lshift"),
    "__rshift__": ("rshift", "py.rshift"),
    "lt": ("lt", "py.lt"),
    "le": ("le", "py.le"),
    "gt": ("gt", "py.gt"),
    "ge": ("ge", "py.ge"),
    "eq": ("eq", "py.eq"),
    "ne": ("ne", "py.ne"),
}
_METHODS: Final = (
    *("append", "extend", "insert", "remove", "pop", "clear", "count", "reverse", "copy"),
    *("get", "setdefault", "update", "split", "rsplit", "splitlines", "strip"),
    *("lstrip", "rstrip", "upper", "lower", "capitalize", "title", "swapcase", "find", "rfind"),
    *("rindex", "startswith", "endswith", "replace", "join", "isalpha", "isdigit", "isalnum"),
    *("isspace", "isupper", "islower", "istitle", "isdecimal", "isnumeric", "isidentifier"),
    *("isprintable", "center", "ljust", "rjust", "zfill", "partition", "rpartition", "expandtabs"),
    *("encode", "casefold"),
)
_FUNCTIONS: Final = (
    *("sqrt", "exp", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "asinh", "acosh", "atanh", "floor", "ceil", "expm1", "gamma", "lgamma"),
    *("erf", "erfc", "atan2", "fmod", "copysign", "degrees", "radians", "fabs", "isnan"),
    *("isinf", "isfinite", "gcd", "factorial", "modf", "frexp", "ldexp", "log", "log2"),
)

TABLE: Final[dict[str, Row]] = {
    **{name: _binary(*row) for name, row in _ARITHMETIC.items()},
    **{name: _method(name) for name in _METHODS},
    **{name: _math(name) for name in _FUNCTIONS},
    **{name: _of_c(name, is_exact=name != "div") for name in ("div", "floordiv", "remainder")},
    **{name: _listed(name) for name in ("keys", "values", "items")},
    **{f.__name__: _call(f) for f in (hex, oct, bin, abs)},
    **{name: _op(f"torchscript.{name}") for name in ("ord", "chr")},
    "str": _str,
    "mathremainder": _math("remainder"),
    "add_": _extended,
    "mul_": _repeated,
    "type": _op("py.device_type"),
    "index": _index,
    "pow": _power,
    "round": _rounded,
    "neg": _op("py.neg"),
    "bitwise_not": _op("py.invert"),
    "__not__": _not,
    "__is__": _op("py.is"),
    "__isnot__": _is_not,
    "__contains__": _contains,
    "__getitem__": _item,
    "_set_item": _set_item,
    "Delete": _delete,
    "slice": _slice,
    "len": _count,
    "list": _list,
    "dict": _dict,
    "popitem": _popitem,
    "sort": _sort,
    "sorted": _sorted,
    "format": _format,
    "percentFormat": _percent,
    "__derive_index": _derive_index,
    "__range_length": _range_length,
    "rangelist": _range_list,
    "unchecked_unwrap_optional": _unwrap,
    "_unwrap_optional": _unwrap,
    "NumToTensor": _to_tensor,
    "warn": _warn,
    "min": _least(min),
    "max": _least(max),
    "sum": _call(sum),
    "any": _call(any),
    "all": _call(all),
    "hash": _hash,
    "wait": _op("future.wait"),
    "is_grad_enabled": _call(torch.is_grad_enabled),
    "is_autocast_enabled": _call(cast("Any", torch.is_autocast_enabled)),
    "is_scripting": lambda c, call, args, keywords: c.const(True),
    "set_grad_enabled": _runtime_query(torch.set_grad_enabled, t.NONE),
    "manual_seed": _runtime_query(cast("Any", torch.manual_seed), t.NONE),
}
