"""Expresses the nested arguments and result of a recorded program in its IR.

In:  the program of a trace, of tensors only, and how its arguments and result were taken apart.
Out: the same program with one parameter for each argument, which it takes apart itself, and the
     result put together; None where IR cannot say the nest.

    f(%0: Tensor, %1: Tensor)  of (x, {"a": y})   →   f(%x: Tensor, %d: Dict[str, Tensor])
                                                        %1 = dict.item(%d, "a")

Invariant: a list of another length, or a dict without one of the keys, is Python's own error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.frontend.trace.encode import dict_make
from lowtide.frontend.trace.nested_values import Nest
from lowtide.ir import types as t
from lowtide.ir.builder import Builder
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


def with_result(program: Function, nest: Nest) -> Function | None:
    """Return the program with its result, a tuple of leaves, rebuilt to the nest."""
    if not nest.is_plain:
        return None
    made = clone(program)
    block = made.block
    (returned,) = block.ops[-1].operands
    assert isinstance(returned.type, t.TupleType)
    builder = Builder(Block(list(block.args), list(block.ops[:-1])))
    builder.loc = program.loc
    unpacked = builder.emit("unpack", [returned], returned.type.elems)
    result = built(builder, nest, iter(unpacked.results))
    builder.emit("return", [result])
    return Function(made.name, builder.block, result.type, {}, made.loc, made.captures)


def built(builder: Builder, nest: Nest, leaves: Iterator[Value]) -> Value:
    """Build the nested value by ops, as `Nest.build` does."""
    if nest.kind == "leaf":
        return next(leaves)
    if nest.kind == "none":
        return builder.const(None)
    parts = [built(builder, c, leaves) for c in nest.children]
    if nest.kind is tuple:
        return builder.tuple_make(parts)
    if nest.kind is list:
        return builder.list_make(parts)
    return dict_make(builder, [builder.const(k) for k in nest.keys], parts)


def _type(nest: Nest) -> t.Type | None:
    """Return the type of such an argument."""
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
