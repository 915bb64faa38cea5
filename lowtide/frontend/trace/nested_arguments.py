"""A recorded program whose arguments are nested, as IR says it.

In:  the program of a trace, of tensors only, and how its arguments were taken apart.
Out: the same program with one parameter for each argument, which it takes apart itself; None where
     IR cannot say the nest.

    f(%0: Tensor, %1: Tensor)  of (x, {"a": y})   →   f(%x: Tensor, %d: Dict[str, Tensor])
                                                        %1 = dict.item(%d, "a")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowtide.frontend.trace.nests import Nest
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
    keys = nest.keys if nest.kind is dict else range(len(nest.children))
    for key, child in zip(keys, nest.children, strict=True):
        type_ = _type(child)
        assert type_ is not None
        part = next(leaves) if child.kind == "leaf" else Value("", type_)
        if nest.kind is tuple:
            made = Op(name="tuple.get", operands=[value], results=[part], loc=loc)
            made.attrs["index"] = key
            yield made
        else:
            at = Value("", t.STR if nest.kind is dict else t.INT)
            yield Op(name="const", attrs={"value": key}, results=[at], loc=loc)
            name = "dict.item" if nest.kind is dict else "list.get"
            yield Op(name=name, operands=[value, at], results=[part], loc=loc)
        if child.kind != "leaf":
            yield from _taken_apart(part, child, leaves, program)
