"""What passes ask of the ops that make values, and the small ops that they add."""

from __future__ import annotations

from typing import TypeAlias

from lowtide.ir.core import Function, Op, Value

Makers: TypeAlias = dict[Value, Op]


def makers_of(fn: Function) -> Makers:
    """The op that each value is a result of; parameters and arguments of blocks have none."""
    return {r: op for op in fn.walk() for r in op.results}


def constant(value: Value, makers: Makers) -> object:
    """The value of a constant; `...` for what is none."""
    maker = makers.get(value)
    return maker.attrs["value"] if maker is not None and maker.name == "const" else ...


def make_constant(result: Value, value: object, like: Op) -> Op:
    """`%result = const(value)`"""
    return Op(name="const", attrs={"value": value}, results=[result], loc=like.loc)


def turns_round(op: Op, makers: Makers) -> bool:
    """`xs[::-1]`"""
    if op.name != "list.slice":
        return False
    return [constant(v, makers) for v in op.operands[1:]] == [None, None, -1]
