"""Online softmax: sums that are rescaled as the running maximum grows.

In:  the reductions of a group.
Out: the sums that may be stored at the scale of the running maximum `m`, and the factor that
     rescales them when it grows.

    m = max[j](s)                        for each tile of j:  old = m;  m = max(m, max of the tile)
    l = sum[j](exp(s - m) * g)    ->        l = l * exp(old - m) + sum of exp(s - m) * g

The program may read 0 in the place of a maximum of -inf, as attention does.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018. The maximum is
-inf while all values were -inf; nothing was added yet, and 0 is used in its place. Weights are at
most 1 at any moment, so sums overflow only if a |g| exceeds the largest float over n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Set

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Apply, Def, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import Index
from lowtide.tile.axes import sources


def rescaled(
    reductions: Mapping[str, Def], sweeps: Callable[[Def], Hashable | None]
) -> dict[str, str]:
    """Return, for each sum that can share its maximum's sweep, the maximum's name."""
    found: dict[str, str] = {}
    for name, d in reductions.items():
        assert isinstance(d.expr, Reduce)
        if d.expr.fn != "sum" or not d.dtype.is_float or (within := sweeps(d)) is None:
            continue
        for m_name, m in reductions.items():
            if not isinstance(m.expr, Reduce) or m.expr.fn != "max" or sweeps(m) != within:
                continue
            if set(m.expr.axes) == set(d.expr.axes) and _follows(d.expr.body, m_name, m.expr.body):
                found[name] = m_name
    return found


def waits(
    d: Def, first: Set[str], defs: Mapping[str, Def], rescaled_maxima: Mapping[str, str]
) -> bool:
    """Return whether the definition needs one of `first`. `rescaled_maxima`: maxima that sums need
    not wait for."""
    inner = [n for n in sources(d) if n in defs and n != rescaled_maxima.get(d.name)]
    return any(n in first or waits(defs[n], first, defs, rescaled_maxima) for n in inner)


def _follows(body: Expr, m: str, s: Expr) -> bool:
    """Return whether the body is exp(s - m) times factors without m."""
    factors: list[Expr] = []

    def split(e: Expr) -> None:
        if isinstance(e, Apply) and e.fn == "mul":
            for a in e.args:
                split(a)
        else:
            factors.append(e)

    split(body)
    scaled = [f for f in factors if any(load.source == m for load in ex.loads(f))]
    return len(scaled) == 1 and _is_exp(scaled[0], m, s)


def _is_exp(e: Expr, m: str, s: Expr) -> bool:
    if not (isinstance(e, Apply) and e.fn == "exp"):
        return False
    inner = e.args[0]
    if not (isinstance(inner, Apply) and inner.fn == "sub"):
        return False
    largest = inner.args[1]
    is_m = any(x.source == m and largest in (x, _or_zero(x, x)) for x in ex.loads(largest))
    return inner.args[0] is s and is_m


def guarded(e: Expr, m: str) -> Expr:
    """Reads of the running maximum give 0 while it is -inf: exp(-inf - 0) is 0, as it should be."""
    if is_guarded(e, m):
        return e

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source == m:
            return _or_zero(node, node)
        return None

    return Rewriter(visit)(e)


def is_guarded(e: Expr, m: str) -> bool:
    """Return whether the program itself reads 0 where the maximum is -inf."""
    safe = {_or_zero(x, x) for x in ex.loads(e) if x.source == m}
    return any(node in safe for node in ex.walk(e))


def factor(old: Expr, new: Expr) -> Expr:
    """exp(old - new), and 1 while nothing was added."""
    difference = ex.apply("exp", (ex.apply("sub", (old, new), old.dtype),), old.dtype)
    return _select_empty(old, ex.const(1.0, old.dtype), difference)


def nan_where_low(total: Expr, m: Expr, terms: Index) -> Expr:
    """Return the sum at the end. It is NaN if the maximum of all values is -inf, as without
    rescaling."""
    found = ex.const(math.nan, total.dtype)
    if terms.const is None:
        some = ex.apply("gt", (ex.at(terms, dtypes.i64), ex.const(0, dtypes.i64)), dtypes.boolean)
        found = ex.select(some, found, total)
    return _select_empty(m, found, total)


def _or_zero(value: Expr, m: Expr) -> Expr:
    return _select_empty(m, ex.const(0.0, m.dtype), value)


def _select_empty(m: Expr, yes: Expr, no: Expr) -> Select:
    empty = ex.apply("eq", (m, ex.const(-math.inf, m.dtype)), dtypes.boolean)
    return ex.select(empty, yes, no)
