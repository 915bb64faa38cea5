"""Finds what must be saved so that an extreme's body has the same bits when it is recomputed.

In: a minimum or maximum, and the definitions before it. Out: the reductions that its body reads,
which must be saved; None if the body contains sums that are too long to unroll.

    t[i] = min[j](d[i, j])       d is made of x[i, 0] - y[j, 0], ...: any kernel has the same d
    m[i] = max[j](s[i, j] / c)   s is a sum over many terms, in an order of its kernel: saved

The gradient of an extreme goes to the elements that equal it. They are compared with it in the
backward pass, where a sum in another order would differ in the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import UNROLL_EXTENT, at_indices, simplify
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Axis, Index, as_index

MOST_NODES = 300


def exact_sources(d: Def, defs: Mapping[str, Def]) -> frozenset[str] | None:
    """See the module's text."""
    e = d.expr
    assert isinstance(e, Reduce)
    plain = _written_out(e.body, defs)
    if plain is None:
        return None
    plain = simplify(plain)
    nodes = list(ex.walk(plain))
    if len(nodes) > MOST_NODES or any(isinstance(n, Reduce) for n in nodes):
        return None
    return frozenset(load.source for load in ex.loads(plain) if load.source in defs)


def _written_out(e: Expr, defs: Mapping[str, Def], depth: int = 0) -> Expr | None:
    """Pointwise values and short reductions written in, down to the rest."""
    size = sum(1 for _ in ex.walk(e))
    if size > MOST_NODES or depth > 40:
        return None

    def visit(node: Expr) -> Expr | None:
        d = defs.get(node.source) if isinstance(node, Load) else None
        if d is None or not isinstance(node, Load) or not _is_short(d):
            return None
        fresh = {a: as_index(Axis(a.name, a.extent)) for a in _bound(d)}
        values: dict[Axis, Index] = {**fresh, **dict(zip(d.axes, node.index, strict=True))}
        return at_indices(d.expr, values)

    inner = Rewriter(visit)(e)
    return e if inner is e else _written_out(inner, defs, depth + 1)


def _bound(d: Def) -> tuple[Axis, ...]:
    return d.expr.axes if isinstance(d.expr, Reduce) else ()


def _is_short(d: Def) -> bool:
    extents = [a.extent.const for a in _bound(d)]
    known = [n for n in extents if n is not None]
    arg = isinstance(d.expr, Reduce) and d.expr.fn in ("argmin", "argmax")
    return not arg and len(known) == len(extents) and math.prod(known) <= UNROLL_EXTENT
