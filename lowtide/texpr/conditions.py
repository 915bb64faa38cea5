"""Conditions on indices: which hold everywhere, or nowhere, by the ranges of their axes.

In: comparisons of indices. Out: True, False, or None where it depends on the point.

    k in [0, 128):   k + 256 >= 384  ->  False        k < 128  ->  True
"""

from __future__ import annotations

from lowtide.texpr.expr import Apply, At, Const, Expr
from lowtide.texpr.index import Index, as_index, nonnegative


def parts_of(cond: Expr) -> list[Expr]:
    """The conditions that a conjunction joins."""
    if isinstance(cond, Apply) and cond.fn == "and":
        return [p for a in cond.args for p in parts_of(a)]
    return [cond]


def decided(part: Expr) -> bool | None:
    """Whether a comparison of indices holds everywhere, or nowhere."""
    for fn in ("ge", "lt", "eq"):
        found = sides(part, fn)
        if found is None:
            continue
        left, right = found
        above, below = nonnegative(left - right), nonnegative(right - left - 1)
        if fn == "eq":
            apart = below or nonnegative(left - right - 1)
            return True if left is right else False if apart else None
        return (fn == "ge") if above else (fn == "lt") if below else None
    return None


def holds(cond: Expr) -> bool | None:
    """The same of a conjunction."""
    found = [decided(part) for part in parts_of(cond)]
    if False in found:
        return False
    return None if None in found else True


def sides(part: Expr, fn: str) -> tuple[Index, Index] | None:
    """The indices that it compares by `fn`; None for any other condition."""
    if not isinstance(part, Apply) or part.fn != fn:
        return None
    left, right = (_as_index(a) for a in part.args)
    return None if left is None or right is None else (left, right)


def _as_index(e: Expr) -> Index | None:
    if isinstance(e, At):
        return e.index
    if isinstance(e, Const) and isinstance(e.value, int) and not isinstance(e.value, bool):
        return as_index(e.value)
    return None
