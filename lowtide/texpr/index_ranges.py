"""Division and comparison of indices, simplified by the ranges of their axes and sizes.

In:  an `Index`, whose axes lie in [0, extent) and whose sizes are at least their `low`.
Out: `floordiv`, `mod` and `clamp` return an `Index`; `nonnegative` says what is certain;
`substitute` replaces atoms and simplifies each division anew. A reshape of a contiguous tensor
leaves no division behind.

    i in [0, N), j in [0, 4):   floordiv(4*i + j, 4) -> i        mod(4*i + j, 4) -> j
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping

from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    FloorDiv,
    Gather,
    Index,
    Mod,
    Monomial,
    Size,
    as_index,
    deep_atoms,
    exact_division,
    from_terms,
    intern_atom,
    without_factor,
)


def floordiv(num: Index | int, den: Index | int) -> Index:
    """Return `num // den` for a positive `den`, simplified as far as the ranges allow."""
    num, den = as_index(num), as_index(den)
    if (d := den.const) is not None and d <= 0:
        raise ZeroDivisionError("an index is divided by a size that is not positive")
    quotient, rest = _split(num, den)
    if rest.const == 0 or (nonnegative(rest) and nonnegative(den - 1 - rest)):
        return quotient
    return quotient + _division_atom(rest, den)


def mod(num: Index | int, den: Index | int) -> Index:
    """Return `num % den` for a positive `den`: in [0, den)."""
    num, den = as_index(num), as_index(den)
    if (d := den.const) is not None and d <= 0:
        raise ZeroDivisionError("an index is divided by a size that is not positive")
    _, rest = _split(num, den)
    if rest.const == 0 or (nonnegative(rest) and nonnegative(den - 1 - rest)):
        return rest
    if (whole := exact_division(rest, den)) is not None and whole.const is not None:
        return as_index(0)
    return _remainder_atom(rest, den)


def clamp(num: Index | int, extent: Index | int) -> Index:
    """Return `num` held to [0, extent)."""
    num, extent = as_index(num), as_index(extent)
    if nonnegative(num) and nonnegative(extent - num - 1):
        return num
    return as_index(intern_atom(Clamp, num, extent))


def _split(num: Index, den: Index) -> tuple[Index, Index]:
    """num == quotient * den + rest, with every term that `den` divides moved to the quotient."""
    if den.const == 1:
        return num, as_index(0)
    if len(den.terms) != 1:
        whole = exact_division(num, den)
        return (whole, as_index(0)) if whole is not None else _split_long(num, den)
    monomial, factor = den.terms[0]
    quotient: list[tuple[Monomial, int]] = []
    rest: list[tuple[Monomial, int]] = []
    for m, c in num.terms:
        left = without_factor(m, monomial)
        if left is None:
            rest.append((m, c))
            continue
        whole, remainder = divmod(c, factor)
        if whole:
            quotient.append((left, whole))
        if remainder:
            rest.append((m, remainder))
    return from_terms(quotient), from_terms(rest)


def _split_long(num: Index, den: Index) -> tuple[Index, Index]:
    """Return quotient and rest: ((n - 2)*i + j) // (n - 2) -> i, rest j, if j is in [0, n - 2)."""
    lead_m, lead_c = den.terms[0]
    quotient, rest = as_index(0), num
    for m, c in num.terms:
        left = without_factor(m, lead_m)
        if left is not None and c % lead_c == 0:
            part = Index(((left, c // lead_c),))
            quotient, rest = quotient + part, rest - part * den
    if nonnegative(rest) and nonnegative(den - 1 - rest):
        return quotient, rest
    return as_index(0), num


def _remainder_atom(num: Index, den: Index) -> Index:
    """Mod with common factors taken out: (4*i + j) % 8 -> 4 * (i % 2) + j for j in [0, 4)."""
    found = _common_factor(num, den)
    if found is None:
        return as_index(intern_atom(Mod, num, den))
    g, coarse, fine, left = found
    return mod(coarse, left) * g + fine


def _division_atom(num: Index, den: Index) -> Index:
    """FloorDiv with common factors dropped: (4*i + j) // 8 -> i // 2 for j in [0, 4)."""
    found = _common_factor(num, den)
    if found is not None:
        _, coarse, _, left = found
        return floordiv(coarse, left)
    if len(num.terms) == 1 and num.terms[0][1] == 1 and len(num.terms[0][0]) == 1:
        inner = num.terms[0][0][0]
        if isinstance(inner, FloorDiv):
            return floordiv(inner.num, inner.den * den)
        if isinstance(inner, Clamp) and (n := exact_division(inner.extent, den)) is not None:
            return clamp(floordiv(inner.num, den), n)
    return as_index(intern_atom(FloorDiv, num, den))


def _common_factor(num: Index, den: Index) -> tuple[int, Index, Index, int] | None:
    """Return (g, coarse, fine, left): num == g * coarse + fine and den == g * left, for fine in
    [0, g) and a number g > 1. None where there is no such factor."""
    if (d := den.const) is None:
        return None
    for factor in sorted({abs(c) for _, c in num.terms if abs(c) > 1}, reverse=True):
        g = math.gcd(factor, d)
        if g == 1:
            continue
        coarse, fine = _split(num, as_index(g))
        if nonnegative(fine) and nonnegative(as_index(g - 1) - fine):
            return g, coarse, fine, d // g
    return None


# ---- ranges ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8192)
def nonnegative(index: Index) -> bool:
    """Return True if `index >= 0` is certain for all values of its axes and sizes."""
    if (value := index.const) is not None:
        return value >= 0
    if all(c >= 0 for _, c in index.terms) and all(_known_nonnegative(a) for a in index.atoms()):
        return True
    for atom in index.atoms():
        if isinstance(atom, Axis | Mod | Clamp) and not _is_inside(atom, index):
            return _without(index, atom)
    for atom in index.atoms():
        if not isinstance(atom, FloorDiv) or _is_inside(atom, index):
            continue
        if (top := _most_of_division(atom)) is not None:
            if any(m.count(atom) > 1 for m, _ in index.terms):
                return False
            ends = (substitute(index, {atom: as_index(end)}) for end in (0, top))
            if all(nonnegative(i) for i in ends):
                return True
        if (least := _least_with_division(index, atom)) is not None:
            return nonnegative(least)
    for atom in index.atoms():
        if isinstance(atom, Axis) and (step := way(index, atom)):
            end = as_index(0) if step > 0 else atom.extent - 1
            return nonnegative(substitute(index, {atom: end}))
    if not all(_has_least(a) for a in index.atoms()):
        return False
    shifted = substitute(
        index, {a: as_index(a) + a.low for a in index.atoms() if isinstance(a, Size) and a.low}
    )
    return all(c >= 0 for _, c in shifted.terms)


def _is_inside(atom: Atom, index: Index) -> bool:
    """Return whether the atom also stands within a division or remainder, so that the index is not
    linear in it."""
    return any(atom in deep_atoms(as_index(a)) for a in index.atoms() if a is not atom)


def way(index: Index, atom: Axis) -> int:
    """1 where the index never falls as the axis grows, -1 where it never rises, else 0."""
    ways: set[int] = set()
    for monomial, factor in index.terms:
        if not any(atom in deep_atoms(as_index(a)) for a in monomial):
            continue
        (a, *more) = monomial
        step = int(a is atom)
        if isinstance(a, FloorDiv) and a.den.const is not None:
            step = way(a.num, atom)
        ways.add(0 if more else step if factor > 0 else -step)
    return ways.pop() if len(ways) == 1 else 0


def _most_of_division(atom: FloorDiv) -> int | None:
    """Return the greatest value of a division of axes of constant extents, which starts from 0."""
    den, most = atom.den.const, 0
    for monomial, factor in atom.num.terms:
        (a, *more) = monomial or (None,)
        size = a.extent.const if isinstance(a, Axis) else None
        if more or size is None or factor < 0:
            return None
        most += factor * (size - 1)
    return None if den is None or most < 0 else most // den


def _least_with_division(index: Index, atom: FloorDiv) -> Index | None:
    """Return a polynomial without the division that is no larger, in units of its divisor: 3*n -
    9*(n // 3) >= 3*n - 3*n. If the division occurs once, both have the same sign."""
    rest = substitute(index, {atom: as_index(0)})
    factor, den = (index - rest).terms[0][1], atom.den.const
    if den is None or index - rest is not factor * as_index(atom):
        return None
    if factor == -1:
        return rest * den + (den - 1) - atom.num
    least = atom.num if factor <= 1 else atom.num - (den - 1)
    return rest * den + factor * least


def _has_least(atom: Atom) -> bool:
    return atom.low is not None if isinstance(atom, Size) else _known_nonnegative(atom)


def _known_nonnegative(atom: Atom) -> bool:
    if isinstance(atom, Size):
        return atom.low is not None and atom.low >= 0
    if isinstance(atom, FloorDiv):
        return nonnegative(atom.num)
    return not isinstance(atom, Gather)


def _without(index: Index, atom: Axis | Mod | Clamp) -> bool:
    """Return whether index >= 0 for all values of the atom. The index is linear in the atom, so it
    is least at an end of the range."""
    if any(m.count(atom) > 1 for m, _ in index.terms):
        return False
    top = (atom.den if isinstance(atom, Mod) else atom.extent) - 1
    at_zero = substitute(index, {atom: as_index(0)})
    at_top = substitute(index, {atom: top})
    slope = substitute(index, {atom: as_index(1)}) - at_zero
    if isinstance(atom, Clamp):  # of nothing it is 0, which then is beyond its top
        if not nonnegative(at_zero):
            return False
        held = substitute(index, {atom: atom.num})  # a clamp is no more than that, or 0
        return nonnegative(at_top) or (nonnegative(-slope) and nonnegative(held))
    if nonnegative(slope):
        return nonnegative(at_zero)
    return nonnegative(at_top) and (nonnegative(-slope) or nonnegative(at_zero))


# ---- substitution ---------------------------------------------------------------------------


def substitute(index: Index, values: Mapping[Atom, Index]) -> Index:
    """Return the index with atoms replaced, inside divisions too (not inside gathered
    expressions)."""
    if values.keys().isdisjoint(deep_atoms(index)):
        return index
    return rebuild(index, values.get)


def rebuild(index: Index, replace: Callable[[Atom], Index | None]) -> Index:
    """Return the index with each atom replaced by `replace(atom)`; None keeps it and goes
    inside."""
    if index.const is not None:
        return index
    terms: list[tuple[Monomial, int]] = []
    changed = False
    for monomial, factor in index.terms:
        new = [_replaced(atom, replace) for atom in monomial]
        if not any(new):
            terms.append((monomial, factor))
            continue
        changed = True
        values = (value or as_index(atom) for atom, value in zip(monomial, new, strict=True))
        part = functools.reduce(operator.mul, values)
        if len(index.terms) == 1:
            return part * factor
        terms += (part * factor).terms
    return from_terms(terms) if changed else index


def _replaced(atom: Atom, replace: Callable[[Atom], Index | None]) -> Index | None:
    new = replace(atom)
    if new is not None:
        return new
    if isinstance(atom, FloorDiv | Mod):
        num, den = rebuild(atom.num, replace), rebuild(atom.den, replace)
        if num is atom.num and den is atom.den:
            return None
        return floordiv(num, den) if isinstance(atom, FloorDiv) else mod(num, den)
    if isinstance(atom, Clamp):
        num, extent = rebuild(atom.num, replace), rebuild(atom.extent, replace)
        return None if num is atom.num and extent is atom.extent else clamp(num, extent)
    return None
