"""A tuple that a loop carries becomes its items.

In, out: a Function. Invariant: a new tuple equals the old one. A tuple from outside, which may
be a namedtuple, is returned as it is if the loop never runs.

    %s: (Tensor, Tensor) = loop(%n, %true, %s0)         %h0, %c0 = the items of %s0
      block(%i, %s1):                                   %h, %c = loop(%n, %true, %h0, %c0)
        …                                          →      block(%i, %h1, %c1):
        yield(%true, %s2)                                   %s1 = tuple.make(%h1, %c1)
                                                            …
                                                            yield(%true, the items of %s2)
                                                        %s = tuple.make(%h, %c)

Then a recurrence over tensors is recognised, however its state is packed.
"""

from __future__ import annotations

from collections.abc import Iterator

from lowtide.ir import types as t
from lowtide.ir.core import Block, Function, Op, Value, clone
from lowtide.ir.types import TupleType
from lowtide.passes.ir_queries import Makers, constant, make_constant, makers_of
from lowtide.passes.run import only_with


@only_with("loop")
def split_tuples(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    _split(result.block, makers_of(result), frozenset(result.params))
    return result


def _split(block: Block, makers: Makers, params: frozenset[Value]) -> None:
    kept: list[Op] = []
    for op in block.ops:
        after: list[Op] = []
        if op.name == "loop":
            place = 2
            while place < len(op.operands):
                if _can_split(op, place, makers, params):
                    before, made = _split_one(op, place, _is_new(op.operands[place], makers))
                    makers.update((r, o) for o in (*before, *op.blocks[0].ops) for r in o.results)
                    kept += before
                    after[:0] = made
                else:
                    place += 1
        for inner in op.blocks:
            _split(inner, makers, params)
        kept += [op, *after]
    block.ops = kept


def _can_split(loop: Op, place: int, makers: Makers, params: frozenset[Value]) -> bool:
    """Return whether the carried value is a plain tuple before the first step and after each."""
    (body,) = loop.blocks
    first, last, arg = (
        loop.operands[place],
        body.terminator.operands[place - 1],
        body.args[place - 1],
    )
    bound = {*params, arg}
    if not (_is_bound(first, makers, bound) and _is_bound(last, makers, bound)):
        return False
    is_new = _is_new(first, makers)
    runs = constant(loop.operands[1], makers) is True
    before, after, carried, result = first.type, last.type, arg.type, loop.results[place - 2].type
    if not isinstance(before, TupleType) or not isinstance(after, TupleType) or not after.elems:
        return False
    plain = all(isinstance(x, TupleType) and not x.names for x in (carried, result))
    return plain and len(before.elems) == len(after.elems) and (is_new or runs)


def _is_new(value: Value, makers: Makers) -> bool:
    """Return whether an op of the program makes this tuple."""
    maker = makers.get(value)
    return maker is not None and maker.name == "tuple.make" and not maker.attrs


def _is_bound(value: Value, makers: Makers, bound: set[Value]) -> bool:
    """Return whether the value is surely a tuple. A variable without a value may be carried,
    too."""
    maker = makers.get(value)
    if maker is None:
        return value in bound
    if maker.name != "if":
        return maker.name not in ("undef", "loop", "with")
    k = maker.results.index(value)
    return all(_is_bound(b.terminator.operands[k], makers, bound) for b in maker.blocks)


def _split_one(loop: Op, place: int, is_new: bool) -> tuple[list[Op], list[Op]]:
    """Split one carried tuple into its elements. Return the ops before the loop and those after
    it."""
    (body,) = loop.blocks
    end = body.terminator
    before, carried = loop.operands[place], body.args[place - 1]
    yielded, result = end.operands[place - 1], loop.results[place - 2]
    first = list(_items(before, loop))
    loop.operands[place : place + 1] = [op.result for op in first]
    args = [Value(carried.name, x) for x in _elems(carried)]
    body.args[place - 1 : place] = args
    last = list(_items(yielded, loop))
    end.operands[place - 1 : place] = [op.result for op in last]
    body.ops[:] = [_tuple(args, carried, loop), *body.ops[:-1], *last, end]
    results = [Value(result.name, x) for x in _elems(result)]
    loop.results[place - 2 : place - 1] = results
    if is_new:
        return first, [_tuple(results, result, loop)]
    made, zero, any_step = Value("", result.type), Value("", t.INT), Value("", t.BOOL)
    then = Block([], [_tuple(results, made, loop), _yields(made, loop)])
    return first, [
        make_constant(zero, 0, loop),
        Op(name="py.gt", operands=[loop.operands[0], zero], results=[any_step], loc=loop.loc),
        Op(
            name="if",
            operands=[any_step],
            results=[result],
            blocks=[then, Block([], [_yields(before, loop)])],
            loc=loop.loc,
        ),
    ]


def _elems(value: Value) -> tuple[t.Type, ...]:
    assert isinstance(value.type, TupleType)
    return value.type.elems


def _items(value: Value, like: Op) -> Iterator[Op]:
    for k, type_ in enumerate(_elems(value)):
        item = Value("", type_)
        yield Op(
            name="tuple.get", operands=[value], attrs={"index": k}, results=[item], loc=like.loc
        )


def _tuple(items: list[Value], result: Value, like: Op) -> Op:
    return Op(name="tuple.make", operands=list(items), results=[result], loc=like.loc)


def _yields(value: Value, like: Op) -> Op:
    return Op(name="yield", operands=[value], loc=like.loc)
