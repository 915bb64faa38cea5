"""Chooses values that a part recomputes instead of loading what an earlier part stored.

In:  a Program with delays, the names in loops, likely sizes.
Out: `Pairs`: `invariant`, values that each step of a loop computes; `after`, values of a loop that
     a reader of all steps recomputes after the loop.

    c[i, j] = sum[k:3](sq(x[i, k] - y[j, k]))      stored, c would take N * M elements, and p
    p[t, i, j] = exp(g[t - 1, j] - c[i, j])        T * N * M. So each step computes c, and a
    f[t, i] = -log(sum[j](p[t, i, j]))             later reader of p recomputes p
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import work
from lowtide.texpr.expr import Def, Expr, Load, Program, Reduce
from lowtide.texpr.index import Index, product
from lowtide.texpr.sizes import likely

FEW_TERMS: Final = 16  # a sum of at most so many terms is recomputed rather than stored …
FEW_OPS: Final = 12  # … if it has at most so many operations in all
PAIR_OPS: Final = 64  # operations that take about as long as to read what they give from memory
STEP_OPS: Final = 512  # of a value of which all steps would be stored, and which is read once


def is_cheap(d: Def) -> bool:
    """Return whether the definition is pointwise, or a sum of a few terms."""
    for node in ex.walk(d.expr):
        if isinstance(node, Reduce):
            terms = product(a.extent for a in node.axes).const
            if terms is None or terms > FEW_TERMS or terms * work(node.body) > FEW_OPS:
                return False
    return True


class Pairs:
    """Finds the values of a Program that are larger than all its inputs and outputs together, and
    the cost of recomputing them. `looped`: names of values in loops."""

    def __init__(self, program: Program, looped: Set[str], hints: Mapping[str, int]) -> None:
        self.hints = hints
        inputs = (i.shape for i in program.inputs.values())
        outputs = (program.defs[n].shape for n in program.results if n in program.defs)
        self.io_elements = sum(map(self._elements, (*inputs, *outputs)))
        own: dict[str, dict[str, float]] = {}  # of one element, by the large values that it needs
        for name, d in program.defs.items():
            if self.are(d.shape):
                own[name] = {**_needed(ex.loads(d.expr), own), name: 0}
                own[name][name] = _operations(d.expr, own, hints)
        self.operations: dict[str, float] = {n: sum(of.values()) for n, of in own.items()}
        carried = {*program.outputs, *(y.source for y in program.delays.values())}
        steps = [n for n in self.operations if n in looped and n not in carried]
        self.after = frozenset(
            n for n in steps if self.are(program.defs[n].shape[1:]) and self.is_short(n)
        )
        self.invariant = frozenset(
            n for n, ops in self.operations.items() if n not in looped and ops <= PAIR_OPS
        )

    def are(self, shape: Sequence[Index]) -> bool:
        """Return whether values of this shape are so large."""
        return self._elements(shape) > self.io_elements

    def is_short(self, name: str) -> bool:
        """Return whether the value may be computed twice, rather than be stored for all steps."""
        return self.operations.get(name, math.inf) <= STEP_OPS

    def _elements(self, shape: Sequence[Index]) -> int:
        return math.prod(likely(size, self.hints) for size in shape)


def _operations(
    e: Expr, known: Mapping[str, Mapping[str, float]], hints: Mapping[str, int]
) -> float:
    """Return the operations per element, without those of large values outside sums."""
    if isinstance(e, Reduce):
        terms = math.prod(likely(a.extent, hints) for a in e.axes)
        inner = sum(_needed(ex.loads(e.body), known).values())
        return terms * (_operations(e.body, known, hints) + inner + 1)
    sums = [n for n in ex.walk(e) if isinstance(n, Reduce)]
    return sum(_operations(n, known, hints) for n in sums) + work(e)


def _needed(loads: Iterable[Load], known: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Large values that are computed for these loads, each once, and their operations."""
    return {n: ops for x in loads for n, ops in known.get(x.source, {}).items()}
