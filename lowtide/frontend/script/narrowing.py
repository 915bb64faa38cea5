"""What a test tells about variables: after `x is not None`, x is no longer optional.

In: the AST of a test and which way it went. Out: variables bound again, at a narrower type.

    if x is None or n == 0: return y     after it, x: Tensor
    if isinstance(v, int): ...           in it, v: int
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TypeVar

from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import PythonObject
from lowtide.frontend.script.types_from_annotations import tested_types
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import OptionalType, Type, UnionType

Result = TypeVar("Result")


def narrow(c: Context, test: ast.expr, outcome: bool) -> None:
    """Rebinds the variables of which the test tells something."""
    for name, find_type in _facts(c, test, outcome):
        value = c.frame.vars.get(name)
        if not isinstance(value, Value):
            continue
        type_ = find_type(value.type)
        if type_ != value.type and type_ != t.NEVER:
            inner = c.builder.emit("cast", [value], [type_]).result
            inner.name = name
            c.frame.vars[name] = inner


def narrowed(
    c: Context, test: ast.expr, outcome: bool, compile_body: Callable[[], Result]
) -> Callable[[], Result]:
    """`compile_body`, to be called where the test went that way."""

    def with_narrowed() -> Result:
        outer = dict(c.frame.vars)
        narrow(c, test, outcome)
        inner = dict(c.frame.vars)
        try:
            return compile_body()
        finally:
            after = c.frame.vars
            c.frame.vars = {
                n: outer[n] if n in outer and v is inner.get(n) else v for n, v in after.items()
            }

    return with_narrowed


Fact = tuple[str, Callable[[Type], Type]]


def _facts(c: Context, test: ast.expr, outcome: bool) -> Iterator[Fact]:
    match test:
        case ast.Compare(ast.Name(id), [ast.IsNot() | ast.NotEq()], [ast.Constant(None)]):
            yield id, _some if outcome else _none
        case ast.Compare(ast.Name(id), [ast.Is() | ast.Eq()], [ast.Constant(None)]):
            yield id, _none if outcome else _some
        case ast.Name(id) if outcome:
            yield id, _some
        case ast.UnaryOp(ast.Not(), operand):
            yield from _facts(c, operand, not outcome)
        case ast.Call(ast.Name("isinstance"), [ast.Name(id), classes]):
            yield from _instance(c, id, classes, outcome)
        case ast.Call(ast.Attribute(ast.Name(), "isinstance"), [ast.Name(id), classes]):
            yield from _instance(c, id, classes, outcome)
        case ast.BoolOp(ast.And(), values) if outcome:
            for value in values:
                yield from _facts(c, value, True)
        case ast.BoolOp(ast.Or(), values) if not outcome:
            for value in values:
                yield from _facts(c, value, False)
        case _:
            pass


def _some(type_: Type) -> Type:
    match type_:
        case OptionalType(elem):
            return elem
        case UnionType(elems):
            return _union([e for e in elems if e != t.NONE])
        case _:
            return type_


def _none(type_: Type) -> Type:
    return t.NONE if isinstance(type_, OptionalType) else type_


def _instance(c: Context, name: str, node: ast.expr, outcome: bool) -> Iterator[Fact]:
    classes = c.expr(node)
    tested = tested_types(classes.obj) if isinstance(classes, PythonObject) else None
    if not tested:
        return

    def find(type_: Type) -> Type:
        members = _members(type_)
        if outcome:
            kept = [m for m in members if any(t.is_subtype(m, x) for x in tested)]
            vague = t.ANY in members or not kept
            return tested[0] if vague and len(tested) == 1 else _union(kept or members)
        return _union([m for m in members if not any(t.is_subtype(m, x) for x in tested)])

    yield name, find


def _members(type_: Type) -> list[Type]:
    match type_:
        case OptionalType(elem):
            return [*_members(elem), t.NONE]
        case UnionType(elems):
            return list(elems)
        case _:
            return [type_]


def _union(parts: list[Type]) -> Type:
    return t.join_all(parts)
