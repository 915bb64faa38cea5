"""Splits an axis into quotient and remainder.

x[i // 4, i % 4], i in [0, 4 * n)    →    x[io, ii], i = 4 * io + ii
"""

from __future__ import annotations

from collections.abc import Iterable

from lowtide.texpr.index import Axis, FloorDiv, Index, Mod, as_index, deep_atoms, exact_division


def divisors(indices: Iterable[Index], a: Axis) -> list[Index]:
    """Return the divisors of an axis in these indices, the smallest constants last."""
    found: dict[Index, None] = {}
    for index in indices:
        for atom in deep_atoms(index):
            if isinstance(atom, FloorDiv | Mod) and a in deep_atoms(atom.num):
                found[atom.den] = None
    return sorted(found, key=lambda i: -(i.const or 1 << 60))


def split_axis(a: Axis, by: Index) -> tuple[Axis, Axis] | None:
    """Return the axes of a // by and a % by; None if `by` does not divide the extent."""
    outer = exact_division(a.extent, by)
    return None if outer is None else (Axis(f"{a.name}o", outer), Axis(f"{a.name}i", by))


def joined(pair: tuple[Axis, Axis]) -> Index:
    """Return the index of the original axis: outer * extent of inner + inner."""
    return as_index(pair[0]) * pair[1].extent + as_index(pair[1])


def one_division(index: Index) -> tuple[Index, Index] | None:
    """q + n // d as (q * d + n, d): divided as a whole it is the same. None for any other form."""
    atom, *more = [a for a in index.atoms() if isinstance(a, FloorDiv)] or [None]
    if atom is None or more or atom.den.const is None:
        return None
    rest = index - as_index(atom)
    return None if atom in deep_atoms(rest) else (rest * atom.den + atom.num, atom.den)
