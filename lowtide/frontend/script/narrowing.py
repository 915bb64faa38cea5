"""Narrows the types of variables by tests: after `x is not None`, x is not optional.

In: the AST of a test and which way it went. Out: variables bound again, at a narrower type.

    if x is None or n == 0: return y     after it, x: Tensor
    if isinstance(v, int): ...           in it, v: int
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

import torch

from lowtide.frontend.script import classes, language
from lowtide.frontend.script.context import Context
from lowtide.frontend.script.nodes import PythonObject
from lowtide.frontend.script.types_from_annotations import PLAIN, tested_types
from lowtide.ir import python_objects
from lowtide.ir import types as t
from lowtide.ir.core import Value
from lowtide.ir.types import OptionalType, Type, UnionType

Result = TypeVar("Result")


def narrow(c: Context, test: ast.expr, outcome: bool) -> None:
    """Rebind the variables that the test narrows."""
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
    """Return `compile_body` with the narrowing of this branch of the test."""

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


_TORCH_ISINSTANCE = cast("object", torch.jit.isinstance)
_QUESTIONS = (isinstance, _TORCH_ISINSTANCE, language.isinstance)

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
        case ast.Call(
            ast.Name() | ast.Attribute(attr="isinstance") as question, [ast.Name(id), classes]
        ):
            found = c.expr(question)
            if isinstance(found, PythonObject) and any(found.obj is q for q in _QUESTIONS):
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
    found = c.expr(node)
    tested = tested_types(found.obj) if isinstance(found, PythonObject) else None
    if not tested:
        return

    def find(type_: Type) -> Type:
        answers = [(m, is_instance_of_any(m, tested)) for m in members(type_)]
        if not outcome:
            return _union([_left(m, tested) for m, answer in answers if answer is not True])
        one = tested[0] if len(tested) == 1 and _tells_all(tested[0]) else None
        one = t.NUMBER if one == t.INT else one  # a bool is an int
        kept = [m if answer or one is None else one for m, answer in answers if answer is not False]
        return _union(kept)

    yield name, find


def _left(type_: Type, tested: Sequence[Type]) -> Type:
    """Return the type of a value that `isinstance` has found to be of none of the tested types. Any
    for a list of ints: it may be a `torch.Size`, which has that IR type and is not a list."""
    no_list = type_ == t.ListType(t.INT) and any(t.is_subtype(type_, x) for x in tested)
    return t.ANY if no_list else type_


def _tells_all(type_: Type) -> bool:
    """Return whether a value that `isinstance` finds to be of this type can be compiled as such. A
    value of a builtin class, or of a class that has subclasses, may be of a subclass."""
    cls = classes.class_of(type_)
    return cls is None or (cls.__module__ != "builtins" and not type.__subclasses__(cls))


def is_instance_of_any(type_: Type, tested: Sequence[Type]) -> bool | None:
    """Return whether a value of this type is of one of the tested types; None if that is known at
    run time."""
    if type_ == t.ListType(t.INT):
        return _is_one_of_ints(tested)
    named = [x for x in tested if isinstance(x, t.TupleType) and x.cls]
    if named:
        rest = [x for x in tested if x not in named]
        return _is_named(type_, [python_class(x) for x in named], is_instance_of_any(type_, rest))
    if any(t.is_subtype(type_, x) for x in tested) or (type_ == t.BOOL and t.INT in tested):
        return True
    if t.is_dynamic(type_) or type_ == t.NUMBER:
        return None
    own = python_class(type_)
    others = [cls for x in tested if (cls := classes.class_of(x)) is not None]
    if classes.class_of(type_) is not None:  # an IntEnum is an int, a class may derive from list
        others += [cls for x in tested if (cls := python_class(x)) is not object]
    if any(issubclass(own, x) for x in others):
        return True
    below = any(issubclass(x, own) for x in others) or any(t.is_subtype(x, type_) for x in tested)
    return None if below else False


def _is_named(type_: Type, tested: Sequence[type], otherwise: bool | None) -> bool | None:
    """Return `is_instance_of_any` for named tuples: their class decides, whatever they hold."""
    own = python_class(type_)
    if otherwise or any(issubclass(own, cls) for cls in tested):
        return True
    return None if any(issubclass(cls, own) for cls in tested) else otherwise


def _is_one_of_ints(tested: Sequence[Type]) -> bool | None:
    """Return `is_instance_of_any` for a list of ints. A size, a tuple, has this IR type, too."""
    known = [cls for x in tested if (cls := classes.class_of(x)) is not None]
    as_list = any(t.is_subtype(t.ListType(t.INT), x) for x in tested)
    as_list |= any(issubclass(list, cls) for cls in known)
    as_size = t.ANY in tested or any(issubclass(torch.Size, cls) for cls in known)
    if as_list and as_size:
        return True
    below = any(issubclass(cls, list | torch.Size) for cls in known)
    below |= any(isinstance(x, t.TupleType) for x in tested)
    below |= any(t.is_subtype(x, t.ListType(t.INT)) for x in tested)
    return None if as_list or as_size or below else False


def exact_class(type_: Type) -> type | None:
    """Return `type(value)` for every value of this type, None if it is unknown."""
    if t.is_dynamic(type_) or isinstance(type_, t.OptionalType | t.UnionType):
        return None
    if isinstance(type_, t.TupleType) and type_.names and not type_.cls:
        return None  # one of several classes
    cls = python_class(type_)
    return None if cls in (object, list, dict, torch.Tensor) else cls


def python_class(type_: Type) -> type:
    """Return the class of values of this type; `object` if they may be of any."""
    match type_:
        case t.ListType():
            return list
        case t.DictType():
            return dict
        case t.TupleType() if not type_.cls:
            return tuple
        case t.TupleType():
            return cast("type", python_objects.find(type_.cls))
        case _:
            return classes.class_of(type_) or _PYTHON.get(type_, object)


_PYTHON: dict[Type, type] = {
    type_: cls for cls, type_ in reversed(PLAIN.items()) if isinstance(cls, type)
}


def members(type_: Type) -> list[Type]:
    """Return the alternatives of a union or Optional type."""
    match type_:
        case OptionalType(elem):
            return [*members(elem), t.NONE]
        case UnionType(elems):
            return list(elems)
        case _:
            return [type_]


def _union(parts: list[Type]) -> Type:
    return t.join_all(parts)
