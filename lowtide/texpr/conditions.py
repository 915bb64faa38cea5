"""Conditions on indices: decides those that hold at every point, or at none, and simplifies others.

In: comparisons of indices. Out: True, False, or None if it depends on the point.

    k in [0, 128):   k + 256 >= 384  ->  False        k < 128  ->  True
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from lowtide.ir import dtypes
from lowtide.texpr import bounds
from lowtide.texpr.expr import (
    Apply,
    At,
    Cast,
    Const,
    Expr,
    Rewriter,
    Select,
    apply,
    at,
    indices,
    select,
    walk,
)
from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Index, Mod, as_index, deep_atoms
from lowtide.texpr.index_ranges import floordiv, mod, nonnegative, substitute
from lowtide.texpr.split_axis import one_division


def parts_of(cond: Expr) -> list[Expr]:
    """Return the conditions that a conjunction joins."""
    if isinstance(cond, Apply) and cond.fn == "and":
        return [p for a in cond.args for p in parts_of(a)]
    return [cond]


def joined(parts: Sequence[Expr]) -> Expr | None:
    """Return the conjunction of the conditions; None for no condition."""
    total: Expr | None = None
    for part in dict.fromkeys(parts):
        total = part if total is None else apply("and", (total, part), part.dtype)
    return total


def one_choice(e: Expr) -> Expr | None:
    """select(a, select(b, v, 0), 0) as select(a and b, v, 0); None for any other expression."""
    if not isinstance(e, Select) or not isinstance(e.yes, Select) or e.no is not e.yes.no:
        return None
    both = joined([*parts_of(e.cond), *parts_of(e.yes.cond)])
    return select(both, e.yes.yes, e.no) if isinstance(e.no, Const) and both is not None else None


def freed(parts: Sequence[Expr]) -> list[Expr]:
    """Return the parts of a conjunction, without clamps of indices that other parts bound.

    0 <= i < n and clamp(i, n) % 2 == 0       0 <= i < n and i % 2 == 0
    """
    atoms = _free(parts, {a for p in parts for a in _atoms_of(p)})
    return [Rewriter(atoms=atoms)(p) for p in parts] if atoms else list(parts)


def _atoms_of(e: Expr) -> Iterator[Atom]:
    return (a for node in walk(e) for i in indices(node) for a in deep_atoms(i))


def _free(parts: Sequence[Expr], atoms: Iterable[Atom]) -> dict[Atom, Index]:
    """Return what the clamps among the atoms hold, where the conditions bound it."""
    low = {s[0] for p in parts if (s := sides(p, "ge")) and s[1].const == 0}
    high = {s for p in parts if (s := sides(p, "lt"))}
    return {
        a: a.num
        for a in atoms
        if isinstance(a, Clamp)
        and (a.num in low or nonnegative(a.num))
        and ((a.num, a.extent) in high or nonnegative(a.extent - a.num - 1))
    }


def with_free_remainders(e: Select) -> Expr | None:
    """Return the choice without clamps in remainders that its condition bounds; None if it has
    none. A remainder is in its range without them, at points that are not chosen, too.

    select(i - 8 >= 0, x[clamp(i - 8, 8) % 4], 0)       select(i - 8 >= 0, x[i % 4], 0)
    """
    remainders = [a for a in _atoms_of(e.yes) if isinstance(a, Mod)]
    held = {c for a in remainders for c in deep_atoms(a.num) if isinstance(c, Clamp)}
    free = _free(parts_of(e.cond), held) if held else {}
    if not free:
        return None
    atoms: dict[Atom, Index] = {
        a: mod(substitute(a.num, free), a.den)
        for a in remainders
        if not free.keys().isdisjoint(deep_atoms(a.num))
    }
    return select(e.cond, Rewriter(atoms=atoms)(e.yes), e.no)


def in_lowest_terms(part: Expr) -> Expr:
    """Return a comparison without what does not decide it; all else as it is.

    2*u - 2*m >= 0                   u - m >= 0
    2*u < 5                          u < 3
    8*u + v >= 16, v in [0, 8)       u >= 2
    """
    for fn in ("ge", "lt"):
        pair = sides(part, fn)
        if pair is None or (last := pair[1].const) is None or pair[0].const is not None:
            continue
        factors = {abs(c) for monomial, c in pair[0].terms if monomial}
        for by in sorted({*factors, math.gcd(*factors)} - {1}, reverse=True):
            whole = floordiv(pair[0] - last, by)  # its sign is the sign of what is divided
            if not any(isinstance(a, FloorDiv) for a in whole.atoms()):
                bound = -(-last // by)
                sides_of_it = (at(whole + bound, dtypes.i64), at(as_index(bound), dtypes.i64))
                return apply(fn, sides_of_it, part.dtype)
    return part


def decided(part: Expr) -> bool | None:
    """Return True if a comparison of indices holds everywhere, False if nowhere, else None."""
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
    """Return True if a conjunction of comparisons always holds, False if it never does, else
    None."""
    found = [decided(part) for part in parts_of(cond)]
    if False in found:
        return False
    return None if None in found else True


def where_not_zero(value: Expr, known: Sequence[Index] = ()) -> list[Index]:
    """Return indices that are not negative wherever a value is not zero.

    `known`: indices that are not negative.

        (v if i >= 1 and i < n else 0) * w            i - 1, n - i - 1
        0 if i == 0 else (0 if i == 1 else v)         i - 1, i - 2
    """
    match value:
        case Select():
            yes = nonnegative_if(value.cond)
            yes += where_not_zero(value.yes, (*known, *yes))
            no = nonnegative_unless(value.cond, known)
            no += where_not_zero(value.no, (*known, *no))
            if _is_zero(value.yes) or _is_zero(value.no):
                return no if _is_zero(value.yes) else yes
            return [i for i in yes if i in no]
        case Apply() if value.fn == "mul":
            return [i for a in value.args for i in where_not_zero(a, known)]
        case Apply() if value.fn in ("neg", "div"):
            return where_not_zero(value.args[0], known)
        case Cast():
            return where_not_zero(value.arg, known)
        case _:
            return []


def only_place(axis: Axis, known: Sequence[Index]) -> Index | None:
    """Return the one place of an axis at which none of `known` is negative, if that is a number."""
    here = as_index(axis)
    low = max([0, *(-c for i in known if (c := (i - here).const) is not None)])
    high = min(
        (c for i in (*known, axis.extent - here - 1) if (c := (i + here).const) is not None),
        default=-1,
    )
    inside = low == high and nonnegative(axis.extent - low - 1)
    return as_index(low) if inside else None


def within(index: Index, extent: Index, known: Sequence[Index]) -> bool:
    """Return whether 0 <= index < extent wherever none of `known` is negative."""
    divided = one_division(index)
    if divided is not None and within(divided[0], extent * divided[1], known):
        return True
    return all(
        nonnegative(part) or any(nonnegative(part - i) for i in known)
        for slack in (index, extent - index - 1)
        for part in bounds.parts(slack)
    )


def nonnegative_if(cond: Expr) -> list[Index]:
    """Return the indices that are not negative where a condition holds."""
    return [i for part in parts_of(cond) for i in _nonnegative_if(part)]


def _nonnegative_if(part: Expr) -> list[Index]:
    if (found := sides(part, "ge")) is not None:
        return [found[0] - found[1]]
    if (found := sides(part, "lt")) is not None:
        return [found[1] - found[0] - 1]
    if (found := sides(part, "eq")) is not None:
        return [found[0] - found[1], found[1] - found[0]]
    return []


def nonnegative_unless(part: Expr, known: Sequence[Index] = ()) -> list[Index]:
    """Return the indices that are not negative where a comparison is false. `known`: indices that
    are not negative."""
    if (found := sides(part, "ge")) is not None:
        return [found[1] - found[0] - 1]
    if (found := sides(part, "lt")) is not None:
        return [found[0] - found[1]]
    if (found := sides(part, "eq")) is not None:
        apart = (found[0] - found[1], found[1] - found[0])
        return [i - 1 for i in apart if i in known or nonnegative(i)]
    return []


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and not e.value


def sides(part: Expr, fn: str) -> tuple[Index, Index] | None:
    """Return the indices that the condition compares by `fn`; None for any other condition."""
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
