"""Lets the backward pass save `relu`'s output instead of its input.

In: a forward Program. Out: `Instead`s: an input, the output that replaces it, and, if the operand
of the `relu` is a sum of inputs, a definition that computes the operand.

    t[i, j] = x[i, j] + s[i, j]        relu(y) = y, with the same slope as at t. So y replaces x,
    y[i, j] = maximum(t[i, j], 0)      t[i, j] = x[i, j] replaces the sum, and s is not read

PyTorch saves the result, too: it raises in the backward pass if the result has been written since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Apply, Cast, Const, Def, Expr, Input, Load, Program
from lowtide.texpr.index import as_index, row_major
from lowtide.texpr.orders import Order, moved, permuted


@dataclass(frozen=True, slots=True, kw_only=True)
class Instead:
    """An output to save instead of an input; see the module's text."""

    input: str
    output: str
    operand: Def | None = None


def outputs_for_inputs(program: Program) -> list[Instead]:
    """See the module's text: of inputs that nothing else reads."""
    readers = _readers(program)
    rows = (_instead(program, program.defs.get(y), readers) for y in program.outputs)
    return [row for row in rows if row is not None]


def _instead(program: Program, d: Def | None, readers: Mapping[str, list[str]]) -> Instead | None:
    load = _of_relu(d) if d is not None else None
    order = moved(load.index, d.axes) if load is not None and d is not None else None
    if d is None or load is None or order is None:
        return None
    operand = load.source
    if readers[operand] != [d.name] or operand in program.outputs:
        return None
    if operand in program.inputs:
        is_alike = _lies_alike(program.inputs[operand], d, order)
        return Instead(input=operand, output=d.name) if is_alike else None
    made = program.defs.get(operand)
    terms = _terms(made) if made is not None else []
    if made is None or not all(_is_of_an_input(x.source, made, program, readers) for x in terms):
        return None
    for x in terms:
        given = program.inputs.get(x.source)
        is_alike = given is not None and _is_whole(x, made) and _lies_alike(given, d, order)
        if is_alike and made.dtype is d.dtype:
            return Instead(input=x.source, output=d.name, operand=replace(made, expr=x))
    return None


def _is_of_an_input(
    name: str, reader: Def, program: Program, readers: Mapping[str, list[str]]
) -> bool:
    """Return whether the value is an input, or a view of one, that nothing else reads. It is 0
    wherever the input is."""
    if readers[name] != [reader.name]:
        return False
    view = program.defs.get(name)
    if view is None:
        return name in program.inputs
    if not isinstance(view.expr, Load) or name in program.outputs:
        return False
    return _is_of_an_input(view.expr.source, view, program, readers)


def _readers(program: Program) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for d in program.defs.values():
        for source in {load.source for load in ex.loads(d.expr)}:
            found.setdefault(source, []).append(d.name)
    for y in program.delays.values():
        for source in (y.source, y.init):
            found.setdefault(source, []).append(y.name)
    return found


def _of_relu(d: Def) -> Load | None:
    """Return the load of the value of which the definition is the `relu`; None if it is no
    `relu`."""
    if d.op != "relu":
        return None
    e = _without_casts(d.expr)
    if not isinstance(e, Apply) or e.fn != "maximum" or not isinstance(e.args[1], Const):
        return None
    x = _without_casts(e.args[0])
    return x if isinstance(x, Load) else None


def _terms(d: Def) -> list[Load]:
    """Return the two different values whose sum this is; () if it is none."""
    e = _without_casts(d.expr)
    if not isinstance(e, Apply) or e.fn != "add":
        return []
    terms = [x for a in e.args if isinstance(x := _without_casts(a), Load)]
    return terms if len({x.source for x in terms}) == 2 else []


def _without_casts(e: Expr) -> Expr:
    while isinstance(e, Cast):
        e = e.arg
    return e


def _is_whole(x: Load, d: Def) -> bool:
    return x.index == tuple(as_index(a) for a in d.axes)


def _lies_alike(x: Input, d: Def, order: Order) -> bool:
    """Return whether the dims of x lie in memory as the axes of d that go through them."""
    shape = tuple(map(as_index, d.shape))
    there = (permuted(shape, order), permuted(row_major(shape), order))
    return x.dtype is d.dtype and (x.shape, x.strides) == there
