"""What each part computes again, instead of reading what an earlier one has stored.

In:  a Program with delays, the names that lie in loops, likely sizes.
Out: names of values.

    c[i, j] = sum[k:3](sq(x[i, k] - y[j, k]))      c would take N * M elements between the steps of
    p[t, i, j] = exp(g[t - 1, j] - c[i, j])        the loop, p T * N * M until it is over: each step
    f[t, i] = -log(sum[j](p[t, i, j]))             computes c, and what reads p later p once more
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import work
from lowtide.texpr.expr import Def, Expr, Program, Reduce
from lowtide.texpr.index import Index, product
from lowtide.texpr.normalise import likely

FEW_TERMS: Final = 16  # a sum of so few terms is computed again rather than stored …
FEW_OPS: Final = 12  # … if these are so few operations in all
PAIR_OPS: Final = 64  # operations that take about as long as to read what they give from memory
STEP_OPS: Final = 512  # of a value of which all steps would be stored, and which is read once


def is_cheap(d: Def) -> bool:
    """Is it pointwise, or a sum of a few terms?"""
    for node in ex.walk(d.expr):
        if isinstance(node, Reduce):
            terms = product(a.extent for a in node.axes).const
            if terms is None or terms > FEW_TERMS or terms * work(node.body) > FEW_OPS:
                return False
    return True


def pairs_again(
    program: Program, looped: Set[str], hints: Mapping[str, int]
) -> tuple[frozenset[str], frozenset[str]]:
    """Values that take more than all inputs and outputs together: those outside of loops that
    `PAIR_OPS` give, what of them is large counted in; and those of which one step of a loop takes
    as much, and which the next step does not read, that `STEP_OPS` give."""

    def elements(shape: Sequence[Index]) -> int:
        return math.prod(likely(size, hints) for size in shape)

    room = sum(elements(i.shape) for i in program.inputs.values())
    room += sum(elements(program.defs[n].shape) for n in program.outputs if n in program.defs)
    kept = {*program.outputs, *(y.source for y in program.delays.values())}
    found: dict[str, float] = {}
    for name, d in program.defs.items():
        is_step = name in looped
        if elements(d.shape[1:] if is_step else d.shape) <= room or (is_step and name in kept):
            continue
        ops = _operations(d.expr, found, hints)
        if ops <= (STEP_OPS if is_step else PAIR_OPS):
            found[name] = ops
    return frozenset(found.keys() - looped), frozenset(found.keys() & looped)


def _operations(e: Expr, known: Mapping[str, float], hints: Mapping[str, int]) -> float:
    """Of one element."""
    if isinstance(e, Reduce):
        terms = math.prod(likely(a.extent, hints) for a in e.axes)
        return terms * (_operations(e.body, known, hints) + 1)
    inner = [n for n in ex.walk(e) if isinstance(n, Reduce)]
    if inner:
        return sum(_operations(n, known, hints) for n in inner) + work(e)
    return work(e) + sum(known.get(load.source, 0) for load in set(ex.loads(e)))
