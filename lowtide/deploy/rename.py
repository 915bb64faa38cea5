"""Renames the classes of a program: from this process to a file, and back.

In: a Function and what to call each class. Out: a copy.

    %c: Class['shop.Color'] = enum.const {enum='shop.Color', member='RED'}     here
    %c: Class['Color'] = enum.const {enum='Color', member='RED'}               in a file

Invariant: nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lowtide.deploy.class_table import EXCEPTIONS
from lowtide.ir.core import Block, Function, Op, Value, clone_block
from lowtide.ir.types import (
    ClassType,
    DictType,
    FunctionType,
    FutureType,
    ListType,
    OptionalType,
    TupleType,
    Type,
    UnionType,
    parse_type,
)

Rename = Callable[[str], str]

NAMING: Final = {
    "object.new": "cls",
    "tuple.make": "cls",
    "enum.const": "enum",
    "enum.get": "enum",
    "py.call": "target",
    "raise": "exception",
}


def rename_type(type_: Type, name: Rename) -> Type:
    """The type with other class names."""

    def inner(t: Type) -> Type:
        return rename_type(t, name)

    match type_:
        case ClassType(cls):
            return ClassType(name(cls))
        case FunctionType(function):
            return FunctionType(name(function))
        case TupleType(elems, names, cls):
            return TupleType(tuple(map(inner, elems)), names, name(cls) if cls else "")
        case ListType(elem):
            return ListType(inner(elem))
        case DictType(key, value):
            return DictType(inner(key), inner(value))
        case FutureType(elem):
            return FutureType(inner(elem))
        case OptionalType(elem):
            return OptionalType(inner(elem))
        case UnionType(elems):
            return UnionType(tuple(map(inner, elems)))
        case _:
            return type_


def values_of(block: Block) -> Iterator[Value]:
    """Every value that a block and its nested ones make."""
    yield from block.args
    for op in block.ops:
        yield from op.results
        for inner in op.blocks:
            yield from values_of(inner)


def named_class(op: Op) -> str:
    """The class or function that an op names, "" if none."""
    found = op.attrs.get(NAMING.get(op.name, ""), "")
    if not isinstance(found, str) or (op.name == "raise" and found in EXCEPTIONS):
        return ""
    return found


def rename_classes(fn: Function, name: Rename) -> Function:
    """A copy of the program in which `name` has been asked for every class."""
    block = clone_block(fn.block, {})
    for value in values_of(block):
        value.type = rename_type(value.type, name)
    made = Function(
        fn.name, block, rename_type(fn.result, name), dict(fn.defaults), fn.loc, fn.captures
    )
    for op in made.walk():
        found = named_class(op)
        if found:
            op.attrs[NAMING[op.name]] = name(found)
        if op.name == "py.isinstance":
            op.attrs["type"] = str(rename_type(parse_type(str(op.attrs["type"])), name))
    return made
