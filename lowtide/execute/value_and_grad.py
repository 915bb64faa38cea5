"""Computes the gradients of a scalar together with the scalar, in one pass.

In:  a forward Program with one output that carries a gradient, a single value.
Out: a Program that also gives the gradients for the cotangent 1. The backward pass multiplies them
     by the cotangent.

    loss = cross_entropy(x @ w.T, y)     x @ w.T in strips: loss, dx, dw     backward: dx*g, dw*g

The combined Program is used if the backward pass would recompute a long product of pairs, that is,
if `tile/strips` cuts. Then a loss costs as much as with its gradient, except under `torch.no_grad`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lowtide.execute import backend
from lowtide.ir import dtypes
from lowtide.texpr import autodiff
from lowtide.texpr import expr as ex
from lowtide.texpr.autodiff import Differentiation, given_name
from lowtide.texpr.expr import Expr, Load, Program, Reduce, Rewriter
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.sizes import evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueAndGrad:
    """`program` computes the value and the gradients. `gradients`: the output name of each input's
    gradient. `output`: the differentiated output."""

    program: Program
    gradients: Mapping[str, str]
    output: str


def value_and_grad(
    program: Program,
    diff: Differentiation,
    wanted: Sequence[str],
    hints: Mapping[str, int],
    machine: str,
) -> ValueAndGrad | None:
    """Return the combined Program; None if it would save nothing."""
    carrying = [n for n in program.outputs if diff.carries(n)]
    if len(carrying) != 1 or program.delays or carrying[0] not in diff.defs:
        return None
    output = carrying[0]
    if product(diff.shape(output)).const != 1 or not _has_product_of_pairs(program, diff, hints):
        return None
    made = autodiff.backward(diff, wanted, {output: tuple(as_index(0) for _ in diff.shape(output))})
    # Gradients in float16 may underflow for the cotangent 1; loss scaling avoids that.
    if made.scatters or any(diff.dtype(n) is dtypes.f16 for n in made.gradients):
        return None

    def visit(node: Expr) -> Expr | None:
        is_given = isinstance(node, Load) and node.source == given_name(output)
        return ex.const(1, node.dtype) if is_given else None

    back = {n: replace(d, expr=Rewriter(visit)(d.expr)) for n, d in made.program.defs.items()}
    everything = Program(
        inputs=dict(program.inputs),
        defs=ex.ordered({**diff.defs, **back}),
        outputs=[*program.outputs, *made.gradients.values()],
        checks=list(program.checks),
        equalities=list(program.equalities),
    )
    joint = ex.pruned(everything)
    if not backend.cuts_strips(joint, hints, machine):
        return None
    return ValueAndGrad(program=joint, gradients=made.gradients, output=output)


def _has_product_of_pairs(
    program: Program, diff: Differentiation, hints: Mapping[str, int]
) -> bool:
    """Return whether a sum has more elements than all inputs together. It is a cheap first test."""
    input_elements = sum(_elements(i.shape, hints) for i in program.inputs.values())
    sums = (d for d in diff.defs.values() if isinstance(d.expr, Reduce) and d.expr.fn == "sum")
    return any(_elements(d.shape, hints) > input_elements for d in sums)


def _elements(shape: Sequence[Index], hints: Mapping[str, int]) -> int:
    return math.prod(evaluate(size, hints) for size in shape)
