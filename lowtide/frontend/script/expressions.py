"""Compiles names, constants, attributes, displays and f-strings.

In: expression AST nodes. Out: SSA values, or compile-time objects (`nodes`), such as a module.

    n + RATE        RATE is a global number: a constant, and an assumption (`outside`)
    [a, b]          list.make(%a, %b)
    f"{n:03d}"      py.format(%n) {template="{0:03d}"}

Invariant: a name that is no variable of the function is looked up in the closure, the globals and
the builtins, as in Python. A number, string, dtype or tuple of these found there is a constant.
"""

from __future__ import annotations

import ast
import enum
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, cast

import torch

from lowtide.frontend.script import classes
from lowtide.frontend.script.captured import capture, capture_object
from lowtide.frontend.script.context import Context, expression, link
from lowtide.frontend.script.dict_views import shown, storable_value, view_of
from lowtide.frontend.script.global_containers import type_of_live
from lowtide.frontend.script.methods import has_method
from lowtide.frontend.script.narrowing import python_class
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF
from lowtide.frontend.script.nodes import (
    BoundMethod,
    LocalFunction,
    Method,
    ModuleRef,
    Node,
    Poison,
    PythonObject,
    Range,
    describe,
    read_once,
)
from lowtide.frontend.script.outside import holder_of, may_change
from lowtide.frontend.script.own_attributes import own_attribute
from lowtide.frontend.script.remedies import defined, member
from lowtide.frontend.script.targets import assign
from lowtide.frontend.script.torch_calls import attribute
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import ClassType, DictType, ListType, OptionalType, TupleType, Type


@expression(ast.Constant)
def compile_constant(c: Context, node: ast.Constant) -> Node:
    """A literal."""
    if node.value is Ellipsis:
        return PythonObject(Ellipsis)
    if not is_literal(node.value):
        raise c.error(node, f"a {type(node.value).__name__} literal is not compiled", "a str")
    return c.const(node.value)


@expression(ast.Name)
def compile_name(c: Context, node: ast.Name) -> Node:
    """A variable, or what Python finds outside the function."""
    found = c.get(node.id)
    if isinstance(found, Poison):
        raise c.error(node, f"{found.why} (line {found.loc.line})", found.remedy)
    if isinstance(found, Value) and found in c.maybe_unbound:
        bound = c.builder.emit("py.bound", [found, c.const(node.id)], [found.type]).result
        c.bind(node.id, bound)
        return bound
    if c.is_iterator(found):
        c.frame.vars[node.id] = read_once(node.id, c.frame.source.loc(node))
    view = view_of(c, found) if isinstance(found, Value) else None
    if view is not None:  # rebuilt at each use, since a dict view shows later changes
        return c.py(node, view.name, *view.operands)
    if found is not None:
        return found
    frame = c.frame
    is_own = any(getattr(f.source.node, "name", "") == node.id for f in c.frames[1:])
    if is_own and node.id in frame.local_names:
        raise c.error(
            node,
            "a function inside a function that calls itself is not compiled",
            "a loop; or a global function, which Python then runs",
        )
    if node.id in frame.local_names:
        raise c.error(
            node, f"{node.id!r} is used before it is assigned", f"`{node.id} = ...` first"
        )
    if node.id not in frame.names:
        near = defined(node.id, frame.vars, frame.names)
        raise c.error(node, f"the name {node.id!r} is not defined", near)
    found = frame.names[node.id]
    if isinstance(found, torch.Tensor):
        return _global_tensor(c, node, found)
    return _outer_object(c, node, found)


def _outer_object(c: Context, node: ast.Name, found: object) -> Node:
    """Return the node of a global or closure variable. A guard checks that it stays the same; if it
    has changed before, it is read at each call instead."""
    fn: FunctionType = cast("Any", c.frame).fn  # a field, which pyright takes for a method
    if not may_change(fn):
        return python_object(c, node, found, "")
    holder = holder_of(fn, node.id)
    if holder is None:  # a builtin, which a global of that name would hide
        c.assumed.note_presence(fn.__globals__, node.id, False)
        return python_object(c, node, found, "")
    if (id(holder), node.id) in c.assumed.varying:
        return capture(c, holder, node.id, t.type_of(found) or t.ANY)
    c.assumed.note(holder, node.id, found)
    return python_object(c, node, found, "")


def _global_tensor(c: Context, node: ast.Name, found: torch.Tensor) -> Node:
    """Return a global tensor, which is read at each call: the global may be assigned again."""
    scope: dict[str, Any] = cast("Any", c.frame).fn.__globals__
    if scope.get(node.id) is found:
        return capture(c, scope, node.id, t.TENSOR)
    raise c.error(
        node,
        f"`{node.id}` is a tensor of the function around this one",
        "an argument of the function: pass it as an argument",
    )


@link
def python_object(c: Context, node: ast.AST, obj: object, path: str) -> Node:
    """Return the node of a Python object from outside: a constant, or an object known to the
    compiler. Raises CompileError."""
    if is_literal(obj):
        return c.const(obj)
    if isinstance(obj, torch.Tensor):
        raise c.error(
            node,
            f"`{ast.unparse(node)}` is a tensor from outside the function",
            "an argument of the function: pass it as an argument",
        )
    if isinstance(obj, list | tuple | dict):
        return _container(c, node, cast("object", obj))
    if isinstance(obj, set | frozenset) and all(map(is_literal, cast("set[object]", obj))):
        return _container(c, node, cast("object", obj))
    if isinstance(obj, range):
        return Range(c.const(obj.start), c.const(obj.stop), c.const(obj.step))
    if isinstance(obj, enum.Enum):
        return classes.enum_member(c, obj)
    if isinstance(obj, ModuleType):
        return PythonObject(obj, obj.__name__)
    if obj is torch.Tensor:
        return PythonObject(obj, "torch.Tensor")
    return PythonObject(cast("object", obj), path)


def _container(c: Context, node: ast.AST, obj: Any) -> Node:
    if c.assumed.is_live(obj):
        made = capture_object(c, obj, type_of_live(obj))
        return c.stands_for(made, obj, is_read=True)
    before = len(c.constants)
    if isinstance(obj, dict):
        made = _mapping(c, node, cast("Mapping[object, object]", obj))
    elif isinstance(obj, set | frozenset):
        made = c.dynamic("set.make", [c.const(e) for e in cast("Iterable[object]", obj)])
    else:
        made = _sequence(c, node, cast("Sequence[object]", obj))
    if isinstance(made, Value):
        c.constants[made] = obj
        c.constants.update(dict.fromkeys([*c.constants][before:], cast("object", obj)))
    return c.stands_for(made, obj, is_read=False) if isinstance(made, Value) else made  # pyright: ignore[reportUnknownArgumentType]


def _sequence(c: Context, node: ast.AST, obj: Sequence[object]) -> Node:
    if isinstance(obj, tuple) and obj and all(isinstance(e, type) for e in obj):
        return PythonObject(obj)
    values = [c.as_value(python_object(c, node, e, ""), node) for e in obj]
    if isinstance(obj, tuple) and not isinstance(obj, torch.Size):
        return c.builder.tuple_make(values)
    return c.builder.list_make(values)


def _mapping(c: Context, node: ast.AST, obj: Mapping[object, object]) -> Node:
    parts = [c.as_value(python_object(c, node, e, ""), node) for kv in obj.items() for e in kv]
    return make_dict(c, parts[::2], parts[1::2])


@expression(ast.Attribute)
def compile_attribute(c: Context, node: ast.Attribute) -> Node:
    """`base.attr`."""
    base = c.expr(node.value)
    if type(base) in ATTRIBUTE_OF:
        return ATTRIBUTE_OF[type(base)](c, node, base, node.attr)
    if isinstance(base, Range):
        parts = {"start": base.start, "stop": base.stop, "step": base.step}
        return parts.get(node.attr) or value_attribute(c, node, c.as_value(base, node), node.attr)
    if not isinstance(base, Value):
        raise c.error(
            node, f"{describe(base)} has no attribute {node.attr!r}", "a value that has it"
        )
    variable = node.value.id if isinstance(node.value, ast.Name) else ""
    return value_attribute(c, node, base, node.attr, variable)


def value_attribute(c: Context, node: ast.AST, base: Value, name: str, variable: str = "") -> Node:
    """Return `base.name` of an SSA value."""
    base = shown(c, c.not_none(base))
    if base in c.containers and (own := own_attribute(c, node, base, name)) is not None:
        return own
    match base.type:
        case type_ if type_ != t.TENSOR and _is_of_tensors(type_, name):
            some = c.py(node, "py.member_of", base, c.const(name))
            return attribute(c, node, some, name, variable)
        case t.TENSOR:
            return attribute(c, node, base, name, variable)
        case TupleType() | OptionalType(TupleType()) if isinstance(
            found := _named_tuple_member(c, node, base, name), Value | PythonObject | Method
        ):
            return found
        case type_ if t.is_dynamic(type_):
            return Method(base, name, variable)
        case type_ if (_plain(type_), name) in _ATTRIBUTES:
            return c.py(node, _ATTRIBUTES[_plain(type_), name], base)
        case t.COMPLEX if name in ("real", "imag"):
            return c.py(node, f"py.{name}", base)
        case t.INT | t.FLOAT if name in ("real", "imag"):
            return c.builder.emit("attr.get", [base], [base.type], name=name).result
        case type_ if has_method(_plain(type_), name):
            return Method(base, name, variable)
        case ClassType():
            return classes.get_attribute(c, node, base, name)
        case OptionalType(ClassType() as plain):
            some = c.builder.emit("cast", [base], [plain]).result
            return classes.get_attribute(c, node, some, name)
        case _ if c.may_be_skipped:
            return Method(c.unknown(base), name, variable)
        case _:
            remedy = member(base.type, python_class(_plain(base.type)), name)
            raise c.error(node, f"{describe(base)} has no attribute {name!r}", remedy)


def _is_of_tensors(type_: Type, name: str) -> bool:
    """Return whether, of the types that the value may have, only Tensor has the attribute."""
    if t.is_tensor(type_):
        return True
    return t.is_tensor_or_number(type_) and not any(hasattr(n, name) for n in (0, 0.0, 0j))


def _named_tuple_member(c: Context, node: ast.AST, base: Value, name: str) -> Node | None:
    """Return a field, method or class attribute of a named tuple; None if it has no such name."""
    type_ = _plain(base.type)
    assert isinstance(type_, TupleType)
    cls: Any = python_objects.find(type_.cls) if type_.cls else None
    found = inspect.getattr_static(cls, name, None) if type_.cls else None
    if base.type != type_ and (found is not None or name in type_.names):  # None has none
        base = c.py(node, "py.member_of", base, c.const(name))
    if name in type_.names:
        return c.builder.tuple_get(base, type_.names.index(name))
    if isinstance(found, property) and found.fget is not None:
        return c.inline(cast("FunctionType", found.fget), node, [base])
    if callable(found) or isinstance(found, staticmethod | classmethod):
        return Method(base, name)
    if found is None:
        return None
    c.assumed.note_member(cls.__mro__, name)  # a constant of the class, or `_fields`
    return c.python_object(node, getattr(cls, name))


_ATTRIBUTES: dict[tuple[Type, str], str] = {
    (t.DEVICE, "type"): "py.device_type",
    (t.DEVICE, "index"): "py.device_index",
    (t.DTYPE, "is_floating_point"): "py.is_floating_point",
    (t.DTYPE, "is_complex"): "py.is_complex",
    (t.DTYPE, "is_signed"): "py.is_signed",
    (t.DTYPE, "itemsize"): "py.itemsize",
    **{(t.SLICE, part): f"py.slice_{part}" for part in ("start", "stop", "step")},
}


def _plain(type_: Type) -> Type:
    return type_.elem if isinstance(type_, OptionalType) else type_


@expression(ast.Dict)
def compile_dict(c: Context, node: ast.Dict) -> Node:
    """`{key: value, **more}`."""
    if None in node.keys:
        return _spread_dict(c, node)
    keys: list[Value] = []
    values: list[Value] = []
    for key, value in zip(node.keys, node.values, strict=True):
        assert key is not None
        keys.append(c.value(key))
        values.append(storable_value(c, value))
    return make_dict(c, keys, values)


def _spread_dict(c: Context, node: ast.Dict) -> Value:
    made = make_dict(c, [], [])
    for key, value in zip(node.keys, node.values, strict=True):
        item = c.value(value) if key is None else storable_value(c, value)
        if key is not None:
            _put(c, made, c.value(key), item)
            continue
        if isinstance(item.type, DictType) and isinstance(made.type, DictType):
            joined = t.join(made.type, item.type)
            c.builder.widen(made, joined)
        elif isinstance(item.type, ListType | TupleType):
            raise c.error(value, f"`**` of {describe(item)}, which is no dict", "dict(…) of it")
        c.effect("dict.update" if isinstance(item.type, DictType) else "dict.spread", made, item)
    return made


def make_dict(c: Context, keys: Sequence[Value], values: Sequence[Value]) -> Value:
    """Return a dict of compiled keys and values."""
    type_ = DictType(t.join_all(k.type for k in keys), t.join_all(v.type for v in values))
    parts = [v for pair in zip(keys, values, strict=True) for v in pair]
    return c.builder.emit("dict.make", parts, [type_]).result


def _put(c: Context, made: Value, key: Value, value: Value) -> None:
    if isinstance(made.type, DictType):
        type_ = DictType(t.join(made.type.key, key.type), t.join(made.type.value, value.type))
        c.builder.widen(made, type_)
    c.effect("dict.set", made, key, value)


@expression(ast.Set)
def compile_set(c: Context, node: ast.Set) -> Node:
    """`{a, *b}`."""
    if any(isinstance(e, ast.Starred) for e in node.elts):
        elements = ast.copy_location(ast.List(node.elts, ast.Load()), node)
        return c.py(node, "set.of", c.value(elements))
    return c.dynamic("set.make", [c.value(e) for e in node.elts])


@expression(ast.NamedExpr)
def compile_named(c: Context, node: ast.NamedExpr) -> Node:
    """`name := value`."""
    value = c.expr(node.value)
    assign(c, node.target, value)
    return value


def local_function(c: Context, node: ast.FunctionDef | ast.Lambda) -> LocalFunction:
    """Return a function that is defined inside the one being compiled. Its defaults are computed at
    the definition."""
    a = node.args
    positional = [*a.posonlyargs, *a.args]
    rows = [*zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)]
    rows += [(arg, v) for arg, v in zip(a.kwonlyargs, a.kw_defaults, strict=True) if v is not None]
    return LocalFunction(node, c.frame, {arg.arg: c.expr(value) for arg, value in rows})


@expression(ast.Lambda)
def compile_lambda(c: Context, node: ast.Lambda) -> Node:
    """A function without a name, compiled where it is called."""
    return local_function(c, node)


def plain(c: Context, found: Node, node: ast.AST) -> Value:
    """Return the SSA value of a node; a range becomes a list."""
    if isinstance(found, Range):
        return c.list_of(found, node)
    return c.as_value(found, node)


def known_elements(c: Context, value: Value) -> list[Value] | None:
    """Return the elements of a tuple, or of a list if they are known; else None."""
    if isinstance(value.type, TupleType):
        return [c.builder.tuple_get(value, k) for k in range(len(value.type.elems))]
    return c.builder.list_elements(value)


@expression(ast.JoinedStr)
def compile_fstring(c: Context, node: ast.JoinedStr) -> Node:
    """An f-string: a template and its values."""
    template, values = _template(c, node)
    known = [c.builder.constant(v) for v in values]
    if UNKNOWN not in known and not any(isinstance(k, torch.dtype) for k in known):
        return c.const(template.format(*known))
    return c.builder.emit("py.format", values, [t.STR], template=template).result


def _template(c: Context, node: ast.JoinedStr) -> tuple[str, list[Value]]:
    template, values = "", list[Value]()
    for part in node.values:
        if isinstance(part, ast.Constant):
            template += str(part.value).replace("{", "{{").replace("}", "}}")
        elif isinstance(part, ast.FormattedValue):
            values.append(_printed(c, part.value))
            conversion = f"!{chr(part.conversion)}" if part.conversion != -1 else ""
            template += f"{{{conversion}{_format_spec(c, part, values)}}}"
    return template, values


def _printed(c: Context, node: ast.expr) -> Value:
    """Return the value that an f-string prints. A module or method is read at run time, so that its
    present state is printed."""
    match c.expr(node):
        case ModuleRef() as ref if c.modules is not None:
            return c.modules.object(ref.path, ref.module)
        case BoundMethod(fn, ModuleRef() as ref) if c.modules is not None:
            return c.by_getattr(c.modules.object(ref.path, ref.module), fn.__name__)
        case Method() as found:
            return c.by_getattr(found.receiver, found.name)
        case found:
            return shown(c, c.as_value(found, node))


def _format_spec(c: Context, part: ast.FormattedValue, values: list[Value]) -> str:
    if not isinstance(part.format_spec, ast.JoinedStr):
        return ""
    spec, inner = _template(c, part.format_spec)
    values.extend(inner)
    return f":{spec}"


@expression(ast.Starred)
def compile_starred(c: Context, node: ast.Starred) -> Node:
    """Refuse `*xs` where Python has no meaning for it."""
    raise c.error(node, "`*` is not compiled here", "the elements one by one")
