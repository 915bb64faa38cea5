"""Computes an op's second operand for itself, so that one argument can be cut in two ways.

In: a Function, and an op that reads values of one argument twice. Out: a Function with one more
parameter for each such argument, which is given the same array.

    y = normalize(x)              def f(x, x'):
    return y @ y.T          →         y = normalize(x);  y' = normalize(x')
                                      return y @ y'.T
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lowtide.budget.outer import Outer
from lowtide.budget.whole_axes import Axis
from lowtide.ir import opdefs
from lowtide.ir.core import Block, Function, Op, Value, clone_op, free_values
from lowtide.passes.ir_queries import makers_of

_MOST_OPS = 32


def twice_read(outer: Outer, axes: Sequence[Axis]) -> Op | None:
    """Return the first op that ends an axis and reads values of one argument twice."""
    for axis in axes:
        for op, why in axis.after.items():
            read = [v for v in op.operands if outer.tensors(v)]
            if why and len(read) > 1 and _shared(outer, read):
                return op
    return None


def _shared(outer: Outer, read: Sequence[Value]) -> bool:
    made = [_made_from(outer, v) for v in read]
    return all(m is not None for m in made) and any(
        not a[0].isdisjoint(b[0])
        for k, a in enumerate(made)
        for b in made[k + 1 :]
        if a is not None and b is not None
    )


def _made_from(outer: Outer, value: Value) -> tuple[set[Value], list[Op]] | None:
    """Return the parameters with tensors that a value is computed from, and the ops between; None
    if these may not be done twice."""
    makers = makers_of(outer.function)
    params, ops = set[Value](), set[Op]()
    waiting = [value]
    while waiting:
        v = waiting.pop()
        maker = makers.get(v)
        if maker is None:
            if outer.tensors(v):
                params.add(v)
        elif maker not in ops:
            if maker.blocks or not opdefs.is_shareable(maker, makers) or len(ops) == _MOST_OPS:
                return None
            ops.add(maker)
            waiting += free_values([maker])
    return params, [op for op in outer.ops if op in ops]


def with_repeated_operands(outer: Outer, op: Op) -> tuple[Function, Mapping[Value, Value]]:
    """Return the function in which each operand of `op` is computed for itself, and the new
    parameters with those that they repeat."""
    fn = outer.function
    repeated: dict[Value, Value] = {}
    first = list[Op]()
    operands, is_first = list[Value](), True
    for v in op.operands:
        found = _made_from(outer, v) if outer.tensors(v) else None
        if found is None or is_first:
            is_first = is_first and found is None
            operands.append(v)
            continue
        params, ops = found
        mapping = {p: Value(p.name, p.type) for p in params}
        repeated.update((new, old) for old, new in mapping.items())
        first += [clone_op(o, mapping) for o in ops]
        operands.append(mapping[v])
    place = outer.ops.index(op)
    instead = Op(
        name=op.name, operands=operands, attrs=op.attrs, results=op.results, blocks=op.blocks,
        loc=op.loc,
    )  # fmt: skip
    ops = [*outer.ops[:place], *first, instead, *outer.ops[place + 1 :]]
    block = Block([*fn.params, *repeated], ops)
    return Function(fn.name, block, fn.result, {}, fn.loc), repeated
