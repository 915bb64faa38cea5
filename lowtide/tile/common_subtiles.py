"""Common subexpressions of a task's nests: computed once, in a buffer for all points of its tile.

In:  what a kernel's nests compute, and how many points of a value lie in one row of the grid.
Out: the expressions to store in a buffer of the tile.

    s[i] = sum[j:64](exp(x[i, j]))            h[i, j] = exp(x[i, j])
    y[i, j] = exp(x[i, j]) / s[i]       ->    s[i]    = sum[j](h[i, j])
                                              y[i, j] = h[i, j] / s[i]

Only values that the tile holds entirely: their axes are rows of the grid, and short axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass

from lowtide.texpr.expr import Const, Expr, Load, walk
from lowtide.tile.ir import reached
from lowtide.tile.items import node_cost

WORTH_HOLDING = 8  # vector operations: more than to write a value and to read it
ROW_POINTS = 1 << 12  # of one value, in a row of the grid


@dataclass(frozen=True, slots=True)
class Reader:
    """A nest, and an expression that it computes."""

    nest: Hashable
    expr: Expr


def common_subtiles(
    readers: Iterable[Reader],
    row_points: Callable[[Expr], int | None],
    nest_of: Callable[[Expr], Hashable],
) -> frozenset[Expr]:
    """Return the common expressions. `row_points`: None if the tile does not have all of a value.
    `nest_of`: the place at which a stored one is computed."""
    roots = list(readers)
    seen: dict[Expr, set[Hashable]] = {}
    for r in roots:
        for e in walk(r.expr):
            seen.setdefault(e, set()).add(r.nest)
    chosen = {e for e, nests in seen.items() if len(nests) > 1 and _fits(e, row_points)}
    chosen = {e for e in chosen if _cost(e, frozenset(), row_points) >= WORTH_HOLDING}
    while True:
        inner = [Reader(nest_of(e), c) for e in chosen for c in e.children]
        direct: dict[Expr, set[Hashable]] = {}
        for r in (*roots, *inner):
            for e in chosen.intersection(reached(r.expr, chosen)):
                direct.setdefault(e, set()).add(r.nest)
        left = {e for e in chosen if len(direct.get(e, ())) > 1}
        if left == chosen:
            left = {e for e in chosen if _cost(e, chosen, row_points) >= WORTH_HOLDING}
        if left == chosen:
            return frozenset(chosen)
        chosen = left


def _fits(e: Expr, row_points: Callable[[Expr], int | None]) -> bool:
    in_row = None if isinstance(e, Const | Load) else row_points(e)
    return in_row is not None and 1 < in_row <= ROW_POINTS


def _cost(e: Expr, chosen: Set[Expr], row_points: Callable[[Expr], int | None]) -> int:
    """Return the cost at each point, with the `chosen` expressions inside available."""
    inside = chosen - {e}
    own = (n for n in reached(e, inside) if n not in inside)
    return sum(node_cost(n) for n in own if row_points(n) != 1)
