"""Bounds of indices: max and min as indices, the range of an index, conditions for `index >= 0`.

In:  indices over axes and sizes. Out: indices, with `clamp(z, m + 1)` for max(0, z) <= m.
Invariant: `is_positive_part` tells such a clamp from one whose upper end matters.

    max(a, b)  ->  b + clamp(a - b, m + 1)             min(a, b)  ->  a - clamp(a - b, m + 1)
    i + 1 - clamp(i - 3, n - 3)  over i in [0, n)      is n at most, and 4 at most
    i + 1 - clamp(i - 3, n - 3) >= 0                   i + 1 >= 0 and 4 >= 0
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import clamp, floordiv, nonnegative, substitute, way

Ask = Callable[[Index], bool | None]  # is index >= 0 in every run? None if that is open


def larger(a: Index, b: Index, ask: Ask) -> Index | None:
    """max(a, b); None where it is no index."""
    a, b = (a, b) if _has(a, None) else (b, a)
    part = positive_part(a - b, ask)
    return None if part is None else b + part


def smaller(a: Index, b: Index, ask: Ask) -> Index | None:
    """min(a, b); None where it is no index."""
    a, b = (b, a) if _has(a, None) else (a, b)
    part = positive_part(a - b, ask)
    return None if part is None else a - part


def positive_part(z: Index, ask: Ask) -> Index | None:
    """max(0, z); None where nothing bounds z, or a run would have to tell."""
    most = least_bound(z, None, ask)
    some = None if most is None else ask(most)
    if most is None or some is None:
        return None
    return clamp(z, most + 1) if some else as_index(0)


def is_positive_part(a: Atom) -> bool:
    """Return whether the atom is max(0, num)."""
    return isinstance(a, Clamp) and nonnegative(a.extent - a.num - 1)


def least_bound(index: Index, axes: Collection[Axis] | None, ask: Ask) -> Index | None:
    """Return the least known upper bound, without these axes or without any; None if there is
    none."""
    divided = _division(index, axes)
    if divided is not None:
        num, den = divided
        most = least_bound(num, axes, ask)
        return None if most is None else floordiv(most, den)
    best: Index | None = None
    for found in dict.fromkeys(_without_axes(v, axes) for v in _without_clamps(index, axes)):
        if found is not None and (best is None or ask(best - found)):
            best = found
    return best


def least(index: Index) -> Index | None:
    """Return the least value over all axes, or less; None if nothing is known."""
    divided = _division(-index, None)
    if divided is not None:
        most = least(-divided[0])
        return None if most is None else -floordiv(-most, divided[1])
    found = [_without_axes(v, None) for v in _without_clamps(-index, None)]
    known = [i for i in found if i is not None]
    return -min(known, key=lambda i: (i.const is None, len(i.terms))) if known else None


def _has(index: Index, axes: Collection[Axis] | None) -> bool:
    deep = deep_atoms(index)
    return any(isinstance(a, Axis) and (axes is None or a in axes) for a in deep)


def _plainly(index: Index, atom: Atom) -> int:
    """Return the factor of an atom that occurs once in the index; 0 otherwise."""
    factors = [c for m, c in index.terms if atom in m]
    plain = [c for m, c in index.terms if m == (atom,)]
    rest = index - plain[0] * as_index(atom) if len(factors) == len(plain) == 1 else index
    return plain[0] if plain and atom not in deep_atoms(rest) else 0


def _without_clamps(index: Index, axes: Collection[Axis] | None) -> list[Index]:
    """Upper bounds of the index; clamps with these axes are gone from them."""
    for a in index.atoms():
        if not isinstance(a, Clamp) or not _has(as_index(a), axes):
            continue
        factor = _plainly(index, a)
        if not factor:
            return []
        rest = index - factor * as_index(a)
        if factor > 0:
            return _without_clamps(rest + (a.extent - 1) * factor, axes)
        bounds = _without_clamps(rest, axes)
        if is_positive_part(a):
            bounds += _without_clamps(rest + a.num * factor, axes)
        return bounds
    return [index]


def _without_axes(index: Index, axes: Collection[Axis] | None) -> Index | None:
    """Return the index with each axis at the end at which the index is largest."""
    for a in [a for a in deep_atoms(index) if isinstance(a, Axis)]:
        if (axes is not None and a not in axes) or a not in deep_atoms(index):
            continue
        direction = way(index, a)
        if not direction:
            return None
        index = substitute(index, {a: a.extent - 1 if direction > 0 else as_index(0)})
    return None if _has(index, axes) else index


def _division(index: Index, axes: Collection[Axis] | None) -> tuple[Index, Index] | None:
    """Return numerator and divisor of an index that is one division: (n + 2*i) // 3 - i is (n - i)
    // 3."""
    for a in index.atoms():
        if not isinstance(a, FloorDiv) or a.den.const is None or not _has(a.num, axes):
            continue
        factor = _plainly(index, a)
        rest = (index - factor * as_index(a)) * a.den
        if factor == 1:
            return rest + a.num, a.den
        if factor == -1:  # -(p // d) is (d - 1 - p) // d
            return rest + (a.den - 1) - a.num, a.den
    return None


def parts(index: Index) -> Sequence[Index]:
    """Indices without clamps and divisions at their top: all of them are 0 or more wherever this
    one is, and nowhere else."""
    for a in index.atoms():
        factor = _plainly(index, a) if _has(as_index(a), None) else 0
        if not factor:
            continue
        rest = index - factor * as_index(a)
        if isinstance(a, Clamp) and is_positive_part(a):
            if factor < 0:
                return [*parts(rest), *parts(rest + a.num * factor)]
            if nonnegative(-rest - 1):
                return parts(rest + a.num * factor)
        if isinstance(a, FloorDiv) and abs(factor) == 1 and a.den.const is not None:
            if factor > 0:
                return parts(rest * a.den + a.num)
            return parts(rest * a.den + (a.den - 1) - a.num)
    return [index]
