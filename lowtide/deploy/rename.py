"""Renames the classes in a program: from names of this process to names of a file, and back.

In: a Function, and a map of class names. Out: a copy.

    %c: Class['shop.Color'] = enum.const {enum='shop.Color', member='RED'}     in this process
    %c: Class['Color'] = enum.const {enum='Color', member='RED'}               in a file
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
    """Return the type with renamed classes."""

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
    """Yield every value that is defined in a block and its nested blocks."""
    yield from block.args
    for op in block.ops:
        yield from op.results
        for inner in op.blocks:
            yield from values_of(inner)


def named_class(op: Op) -> str:
    """Return the name of the class or function in an op's attributes, "" if none."""
    found = op.attrs.get(NAMING.get(op.name, ""), "")
    if not isinstance(found, str) or (op.name == "raise" and found in EXCEPTIONS):
        return ""
    return found


def rename_classes(fn: Function, name: Rename) -> Function:
    """Return a copy of the program in which class c is called `name(c)`."""
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
