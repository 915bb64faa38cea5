"""The rewrites of Programs by name, for `python -m lowtide.opt` and the text tests.

In: a Program, likely sizes. Out: the Program after that one rewrite. The compiler applies rewrites
inside `normalise` and `differentiate`, where they pay.

    REWRITES["softmax"](program, {"N": 100})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import simplify
from lowtide.texpr.along_memory import along_memory
from lowtide.texpr.autodiff import gradients
from lowtide.texpr.borders import with_borders
from lowtide.texpr.conditions import freed, in_lowest_terms, joined, one_choice, parts_of
from lowtide.texpr.equal_gradients import with_equal_gradients
from lowtide.texpr.exchange import exchanged
from lowtide.texpr.expr import Def, Expr, Program, Reduce, Rewriter, Select
from lowtide.texpr.few_elements import few_elements
from lowtide.texpr.formula import F
from lowtide.texpr.idempotent import outputs_for_inputs
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.joined_parts import as_block
from lowtide.texpr.library import operands_stored
from lowtide.texpr.long_folds import in_two_steps
from lowtide.texpr.narrow import narrowed
from lowtide.texpr.nested_recurrences import steps_of
from lowtide.texpr.normalise import normalise
from lowtide.texpr.phases import in_phases
from lowtide.texpr.shifted_reads import OffAxes
from lowtide.texpr.sizes import elements, points
from lowtide.texpr.softmax import with_late_division, with_weights_outside
from lowtide.texpr.split import split_axes
from lowtide.texpr.split_ranges import split_ranges
from lowtide.texpr.sums import in_order, merged_sums
from lowtide.texpr.terms import products_apart

Hints: TypeAlias = Mapping[str, int]
Rewrite: TypeAlias = Callable[[Program, Hints], Program]


def _with(program: Program, defs: Iterable[Def]) -> Program:
    return replace(program, defs={d.name: d for d in defs})


def _each(rule: Callable[[Expr], Expr]) -> Rewrite:
    """Return a rewrite of the expression of each definition."""

    def rewrite(program: Program, hints: Hints) -> Program:
        return _with(program, (replace(d, expr=rule(d.expr)) for d in program.defs.values()))

    return rewrite


def _io_elements(program: Program, hints: Hints) -> int:
    """Elements of inputs and outputs."""
    outputs = (program.defs[n].axes for n in program.results if n in program.defs)
    inputs = sum(elements(i.shape, hints) for i in program.inputs.values())
    return inputs + sum(points(axes, hints) for axes in outputs)


def _simpler_conditions(node: Expr) -> Expr | None:
    whole = one_choice(node) or node
    if not isinstance(whole, Select):
        return None
    cond = joined([in_lowest_terms(p) for p in freed(parts_of(whole.cond))])
    return None if cond is None else ex.select(cond, whole.yes, whole.no)


def _phases(program: Program, hints: Hints) -> Program:
    made: list[Def] = []
    for d in program.defs.values():

        def visit(node: Expr, d: Def = d) -> Expr | None:
            found = (
                in_phases(d, node, f"{d.name}p{len(made)}") if isinstance(node, Reduce) else None
            )
            if found is None:
                return None
            made.append(found[0])
            return found[1]

        expr = Rewriter(visit)(d.expr)
        made.append(replace(d, expr=expr))
    return _with(program, made)


def _sums(program: Program, hints: Hints) -> Program:
    """Of values that one definition reads."""
    read = [x for d in program.defs.values() for x in {x.source for x in ex.loads(d.expr)}]
    sums: dict[str, Def] = {}
    made: list[Def] = []
    for d in program.defs.values():
        expr = merged_sums(d, d.expr, sums, lambda axes: points(axes, hints))
        new = replace(d, expr=expr)
        if isinstance(expr, Reduce) and d.name not in program.outputs and read.count(d.name) == 1:
            sums[d.name] = new
        made.append(in_order(new))
    return ex.pruned(_with(program, made))


def _softmax(program: Program, hints: Hints) -> Program:
    known: dict[str, Def] = {}
    for d in program.defs.values():
        late = replace(d, expr=with_late_division(d.expr, known))
        known[d.name] = with_weights_outside(late, known)
    return _with(program, known.values())


def _shifted_reads(program: Program, hints: Hints) -> Program:
    roots = [*program.outputs, *program.checks]
    free = {n: d for n, d in program.defs.items() if n not in program.added_to()}
    rewrite = OffAxes(free, roots, hints, _io_elements(program, hints))
    return ex.pruned(_each(rewrite)(program, hints))


def _few(program: Program, hints: Hints) -> Program:
    stored = {*program.outputs, *program.checks}
    made = few_elements(list(program.defs.values()), stored, hints, _io_elements(program, hints))
    return ex.pruned(_with(program, made))


def _along_memory(program: Program, hints: Hints) -> Program:
    strides = {n: i.strides for n, i in program.inputs.items()}
    fixed, added = {*program.outputs, *program.checks}, program.added_to()
    return _with(program, along_memory([*program.defs.values()], strides, hints, fixed, added))


def _exchange(program: Program, hints: Hints) -> Program:
    defs = program.defs
    return ex.pruned(_with(program, (exchanged(d, defs, defs.values()) for d in defs.values())))


def _idempotent(program: Program, hints: Hints) -> Program:
    """With the results that are kept instead of inputs as outputs under the inputs' names."""
    found = outputs_for_inputs(program)
    made = [
        replace(program.defs[i.output], name=f"{i.input}_kept", expr=_whole(program, i.output))
        for i in found
    ]
    return replace(
        _with(program, [*program.defs.values(), *made]),
        outputs=[*program.outputs, *(d.name for d in made)],
    )


def _whole(program: Program, name: str) -> Expr:
    d = program.defs[name]
    return ex.load(name, [as_index(a) for a in d.axes], d.dtype)


def _equal_gradients(program: Program, hints: Hints) -> Program:
    return with_equal_gradients(program, {n: n for n in program.results})[0]


def _split_ranges(program: Program, hints: Hints) -> Program:
    return split_ranges(program, steps_of(program), set())[0]


def _blocks(program: Program, hints: Hints) -> Program:
    """With each tensor of all parts as a definition; what writes it is a loop (`partition`)."""
    made: dict[str, Def] = {}
    for d in program.defs.values():
        found = (as_block(d, dim) for dim in range(len(d.axes)))
        block, reader = next((x for x in found if x is not None), (None, d))
        if block is not None:
            axes = tuple(Axis(f"p{k}", size) for k, size in enumerate(block.shape))
            rest = [as_index(a) for a in axes[1:]]
            parts = [ex.load(n, rest, block.dtype) for n in block.parts]
            number = F(ex.at(as_index(axes[0]), dtypes.i64))
            whole = F(parts[-1])
            for k, part in reversed([*enumerate(parts[:-1])]):
                whole = number.equals(k).where(F(part), whole)
            made[block.name] = Def(name=block.name, axes=axes, expr=whole.e)
        made[d.name] = reader
    return _with(program, made.values())


def _gradients(program: Program, hints: Hints) -> Program:
    return gradients(program)


REWRITES: Final[Mapping[str, Rewrite]] = {
    "algebra": _each(simplify),
    "along_memory": _along_memory,
    "blocks": _blocks,
    "borders": lambda program, hints: _with(program, with_borders([*program.defs.values()])[0]),
    "conditions": _each(Rewriter(_simpler_conditions)),
    "equal_gradients": _equal_gradients,
    "exchange": _exchange,
    "few_elements": _few,
    "gradients": _gradients,
    "idempotent": _idempotent,
    "library": lambda program, hints: operands_stored(program, hints, lambda _: True)[0],
    "long_folds": in_two_steps,
    "shifted_reads": _shifted_reads,
    "narrow": _each(Rewriter(lambda node: narrowed(node) if isinstance(node, Reduce) else None)),
    "normalise": normalise,
    "phases": _phases,
    "softmax": _softmax,
    "split": lambda program, hints: _with(program, split_axes([*program.defs.values()])),
    "split_ranges": _split_ranges,
    "sums": _sums,
    "terms": products_apart,
}
