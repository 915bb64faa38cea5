"""Names, constants, attributes, displays, f-strings and comprehensions.

In: expression AST nodes. Out: SSA values, or Python objects that calls and attributes take apart.

Always holds: a name means a variable of the function, else what Python itself would find: closure,
globals, builtins. A number, string, dtype or tuple of these found there is a constant of the
program.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import cast

import torch

from lowtide.frontend.script.context import Context, expression
from lowtide.frontend.script.flow import branch_on
from lowtide.frontend.script.iteration import Iteration, iterate, static_length
from lowtide.frontend.script.loops import loop_over
from lowtide.frontend.script.node_tables import ATTRIBUTE_OF
from lowtide.frontend.script.nodes import Method, Node, Poison, PythonObject, describe
from lowtide.frontend.script.targets import assign
from lowtide.frontend.script.torch_calls import attribute
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Value
from lowtide.ir.literals import is_literal
from lowtide.ir.types import ListType, OptionalType, TupleType, Type

_RESULT_LIST = "$list"


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
    if found is not None:
        return found
    frame = c.frame
    if node.id in frame.local_names:
        raise c.error(
            node, f"{node.id!r} is used before it is assigned", f"`{node.id} = ...` first"
        )
    if node.id not in frame.names:
        raise c.error(node, f"the name {node.id!r} is not defined", "an argument or a global of it")
    return python_object(c, node, frame.names[node.id], "")


def python_object(c: Context, node: ast.AST, obj: object, path: str) -> Node:
    """What a Python object from outside means: a constant, or an object known to the compiler."""
    if is_literal(obj):
        return c.const(obj)
    if isinstance(obj, torch.Tensor):
        raise c.error(
            node,
            f"`{ast.unparse(node)}` is a tensor from outside the function",
            "an argument of the function: pass it as an argument",
        )
    if isinstance(obj, list | tuple):
        return _sequence(c, node, cast("Sequence[object]", obj))
    if isinstance(obj, ModuleType):
        return PythonObject(obj, obj.__name__)
    if obj is torch.Tensor:
        return PythonObject(obj, "torch.Tensor")
    return PythonObject(obj, path)


def _sequence(c: Context, node: ast.AST, obj: Sequence[object]) -> Node:
    values = [c.as_value(python_object(c, node, e, ""), node) for e in obj]
    if isinstance(obj, tuple) and not isinstance(obj, torch.Size):
        return c.builder.tuple_make(values)
    made = c.builder.list_make(values)
    if made is None:
        raise c.error(node, "the elements of this list differ in type", "a tuple")
    c.share(made)
    return made


@expression(ast.Attribute)
def compile_attribute(c: Context, node: ast.Attribute) -> Node:
    """`base.attr`."""
    base = c.expr(node.value)
    if type(base) in ATTRIBUTE_OF:
        return ATTRIBUTE_OF[type(base)](c, node, base, node.attr)
    if isinstance(base, PythonObject):
        return _object_attribute(c, node, base)
    if not isinstance(base, Value):
        raise c.error(node, f"{describe(base)} has no attribute {node.attr!r}")
    variable = node.value.id if isinstance(node.value, ast.Name) else ""
    return value_attribute(c, node, base, node.attr, variable)


def value_attribute(c: Context, node: ast.AST, base: Value, name: str, variable: str = "") -> Node:
    """`base.name` of an SSA value."""
    match base.type:
        case type_ if t.may_be_tensor(type_):
            return attribute(c, node, base, name, variable)
        case TupleType(_, names) if name in names:
            return c.builder.tuple_get(base, names.index(name))
        case t.ANY:
            return c.builder.emit("py.getattr", [base], [t.ANY], name=name).result
        case type_ if (_plain(type_), name) in _ATTRIBUTES:
            return c.py(node, _ATTRIBUTES[_plain(type_), name], base)
        case ListType() | TupleType() | t.STR:
            return Method(base, name, variable)
        case _:
            raise c.error(node, f"{describe(base)} has no attribute {name!r}")


_ATTRIBUTES: dict[tuple[Type, str], str] = {
    (t.DEVICE, "type"): "py.device_type",
    (t.DEVICE, "index"): "py.device_index",
    (t.DTYPE, "is_floating_point"): "py.is_floating_point",
    (t.DTYPE, "itemsize"): "py.itemsize",
}


def _plain(type_: Type) -> Type:
    return type_.elem if isinstance(type_, OptionalType) else type_


def _object_attribute(c: Context, node: ast.Attribute, base: PythonObject) -> Node:
    if not hasattr(base.obj, node.attr):
        raise c.error(node, f"{describe(base)} has no attribute {node.attr!r}")
    path = f"{base.path}.{node.attr}" if base.path else ""
    return python_object(c, node, getattr(base.obj, node.attr), path)


@expression(ast.Tuple)
def compile_tuple(c: Context, node: ast.Tuple) -> Node:
    """`a, b`; of classes, a Python object: what isinstance takes."""
    if node.elts and all(isinstance(e, ast.Name | ast.Attribute) for e in node.elts):
        found = [c.expr(e) for e in node.elts]
        classes = [f.obj for f in found if isinstance(f, PythonObject)]
        if len(classes) == len(found):
            return PythonObject(tuple(classes))
        values = [c.as_value(f, e) for f, e in zip(found, node.elts, strict=True)]
    else:
        values = _elements(c, node.elts)
    for value in values:
        c.share(value)
    return c.builder.tuple_make(values)


@expression(ast.List)
def compile_list(c: Context, node: ast.List) -> Node:
    """`[a, b]`."""
    return make_list(c, node, _elements(c, node.elts))


def make_list(c: Context, node: ast.AST, values: Sequence[Value]) -> Value:
    """A list of compiled values."""
    for value in values:
        c.share(value)
    made = c.builder.list_make(values)
    if made is None:
        types = ", ".join(str(v.type) for v in values)
        raise c.error(node, f"the elements of this list differ in type: {types}", "a tuple")
    return made


def _elements(c: Context, nodes: Sequence[ast.expr]) -> list[Value]:
    values: list[Value] = []
    for node in nodes:
        if not isinstance(node, ast.Starred):
            values.append(c.value(node))
            continue
        spread = c.value(node.value)
        known = known_elements(c, spread)
        if known is None:
            raise c.error(node, "`*` of a list of unknown length", "`+` of two lists")
        values.extend(known)
    return values


def known_elements(c: Context, value: Value) -> list[Value] | None:
    """The elements of a tuple, or of a list whose making is in sight."""
    if isinstance(value.type, TupleType):
        return [c.builder.tuple_get(value, k) for k in range(len(value.type.elems))]
    maker = c.builder.makers.get(value)
    if maker is not None and maker.name == "list.make":
        return list(maker.operands)
    return None


@expression(ast.JoinedStr)
def compile_fstring(c: Context, node: ast.JoinedStr) -> Node:
    """An f-string: a template and its values."""
    template, values = _template(c, node)
    known = [c.builder.constant(v) for v in values]
    if UNKNOWN not in known:
        return c.const(template.format(*known))
    return c.builder.emit("py.format", values, [t.STR], template=template).result


def _template(c: Context, node: ast.JoinedStr) -> tuple[str, list[Value]]:
    template, values = "", list[Value]()
    for part in node.values:
        if isinstance(part, ast.Constant):
            template += str(part.value).replace("{", "{{").replace("}", "}}")
        elif isinstance(part, ast.FormattedValue):
            values.append(c.value(part.value))
            conversion = f"!{chr(part.conversion)}" if part.conversion != -1 else ""
            template += f"{{{conversion}{_format_spec(c, part)}}}"
    return template, values


def _format_spec(c: Context, part: ast.FormattedValue) -> str:
    if not isinstance(part.format_spec, ast.JoinedStr):
        return ""
    spec, values = _template(c, part.format_spec)
    if values:
        raise c.error(part, "a computed format is not compiled", "a fixed one, as in `{x:.3f}`")
    return f":{spec}"


@expression(ast.ListComp, ast.GeneratorExp)
def compile_comprehension(c: Context, node: ast.ListComp | ast.GeneratorExp) -> Node:
    """`[element for target in iterable if test]`; unrolled where the length is small and known."""
    outer = dict(c.frame.vars)
    values: list[Value] = []
    if _unrolled(c, node, node.generators, lambda: values.append(c.value(node.elt))):
        c.frame.vars = outer
        return make_list(c, node, values)
    c.frame.vars = dict(outer)
    c.frame.vars[_RESULT_LIST] = make_list(c, node, [])
    _looped(c, node, node.generators)
    result = c.frame.vars[_RESULT_LIST]
    c.frame.vars = outer
    assert isinstance(result, Value)
    return result


def _unrolled(
    c: Context,
    node: ast.ListComp | ast.GeneratorExp,
    generators: Sequence[ast.comprehension],
    innermost: Callable[[], None],
) -> bool:
    if not generators:
        innermost()
        return True
    generator, *more = generators
    iteration = _iteration(c, generator)
    count = static_length(c, iteration)
    if count is None or (generator.ifs and not iteration.must_unroll):
        return False
    for k in range(count):
        assign(c, generator.target, iteration.element(c.const(k)))
        tests = [c.builder.constant(c.truth(c.value(test))) for test in generator.ifs]
        if UNKNOWN in tests:
            raise c.error(generator.ifs[0], "a test whose outcome decides a length", "a `for` loop")
        if all(tests) and not _unrolled(c, node, more, innermost):
            return False
    return True


def _iteration(c: Context, generator: ast.comprehension) -> Iteration:
    return iterate(c, c.expr(generator.iter), generator.iter)


def _looped(
    c: Context,
    node: ast.ListComp | ast.GeneratorExp,
    generators: Sequence[ast.comprehension],
) -> None:
    if not generators:
        _append(c, node)
        return
    generator, *more = generators
    iteration = _iteration(c, generator)

    def body(i: Value) -> None:
        assign(c, generator.target, iteration.element(i))
        _where(c, generator.ifs, lambda: _looped(c, node, more))

    result = ast.Name(_RESULT_LIST, ast.Store())
    loop_over(c, node, [result], iteration, body)


def _where(c: Context, tests: Sequence[ast.expr], body: Callable[[], None]) -> None:
    if not tests:
        body()
        return
    first, *more = tests
    condition = c.truth(c.value(first))
    branch_on(c, first, condition, lambda: _where(c, more, body), lambda: None)


def _append(c: Context, node: ast.ListComp | ast.GeneratorExp) -> None:
    xs = c.frame.vars[_RESULT_LIST]
    assert isinstance(xs, Value)
    value = c.value(node.elt)
    c.share(value)
    c.frame.vars[_RESULT_LIST] = c.py(node, "list.append", xs, value)


@expression(ast.Starred)
def compile_starred(c: Context, node: ast.Starred) -> Node:
    """`*xs` where it means nothing."""
    raise c.error(node, "`*` is not compiled here", "the elements one by one")
