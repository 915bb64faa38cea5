"""Flattens the nested arguments of a recorded program in its IR.

In:  the program of a trace, of tensors only, and how its arguments were taken apart.
Out: the same program with one parameter for each argument, which it takes apart itself; None where
     IR cannot say the nest.

    f(%0: Tensor, %1: Tensor)  of (x, {"a": y})   →   f(%x: Tensor, %d: Dict[str, Tensor])
                                                        %1 = dict.item(%d, "a")

Always holds: a list of another length, or a dict without one of the keys, is Python's own error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.frontend.trace.nested_values import Nest
from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone, with_block


def with_nests(program: Function, names: Sequence[str], nests: Sequence[Nest]) -> Function | None:
    """See the module's text."""
    made = clone(program)
    count = len(made.arguments)
    leaves, captured = made.params[:count], made.params[count:]
    types = [_type(n) for n in nests]
    if any(x is None for x in types):
        return None
    left = iter(leaves)
    params: list[Value] = []
    before: list[Op] = []
    for name, nest, type_ in zip(names, nests, types, strict=True):
        assert type_ is not None
        if nest.kind == "leaf":
            params.append(next(left))
            continue
        params.append(Value(name, type_))
        before += _taken_apart(params[-1], nest, left, made)
    return with_block(made, Block([*params, *captured], [*before, *made.block.ops]))


def _type(nest: Nest) -> t.Type | None:
    """The type of such an argument."""
    if nest.kind == "leaf":
        return t.TENSOR
    inner = [_type(c) for c in nest.children]
    found = [x for x in inner if x is not None]
    if not found or len(found) < len(inner) or nest.spec is not None:
        return None
    if nest.kind is tuple:
        return t.TupleType(tuple(found))
    if any(x != found[0] for x in found):
        return None
    if nest.kind is list:
        return t.ListType(found[0])
    by_name = nest.kind is dict and all(isinstance(k, str) for k in nest.keys)
    return t.DictType(t.STR, found[0]) if by_name else None


def _taken_apart(
    value: Value, nest: Nest, leaves: Iterator[Value], program: Function
) -> Iterator[Op]:
    loc = program.loc
    parts: list[Value] = []
    inside: list[Op] = []
    for child in nest.children:
        type_ = _type(child)
        assert type_ is not None
        parts.append(next(leaves) if child.kind == "leaf" else Value("", type_))
        if child.kind != "leaf":
            inside += _taken_apart(parts[-1], child, leaves, program)
    if nest.kind is dict:
        for key, part in zip(nest.keys, parts, strict=True):
            at = Value("", t.STR)
            yield Op(name="const", attrs={"value": key}, results=[at], loc=loc)
            yield Op(name="dict.item", operands=[value, at], results=[part], loc=loc)
    else:
        yield Op(name="unpack", operands=[value], results=parts, loc=loc)
    yield from inside
