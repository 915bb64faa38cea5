"""Prints index polynomials as text that is both C and Triton.

In:  an `Index`, the sign of a division, and the names of axes and gathered values. Out: text.

    i*N + j // 4      →      z_N * x_i + ((x_j) // (4))

Invariant: division rounds down, for negative numerators too, as in Python. Equal polynomials over
atoms of equal names have equal texts.
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Gather, Index, Mod, Size, deep_atoms
from lowtide.texpr.index_ranges import nonnegative


def index_text(
    index: Index,
    divide: str,
    coordinate: Callable[[Axis], str] | None = None,
    gathered: Callable[[Gather], str] | None = None,
) -> str:
    """Return the text of a polynomial. A size is the variable `z_name`. `lt_floordiv`, `lt_mod`
    and `lt_clamp` are functions that C and Triton both have."""

    def atom_text(atom: Atom) -> str:
        if isinstance(atom, Size):
            return f"z_{atom.name}"
        if isinstance(atom, Axis):
            assert coordinate is not None
            return coordinate(atom)
        if isinstance(atom, Gather):
            assert gathered is not None
            return gathered(atom)
        if isinstance(atom, Clamp):
            return f"lt_clamp({whole(atom.num)}, {whole(atom.extent)})"
        assert isinstance(atom, FloorDiv | Mod)
        num, den = whole(atom.num), whole(atom.den)
        if nonnegative(atom.num):
            return f"(({num}) {divide if isinstance(atom, FloorDiv) else '%'} ({den}))"
        return f"lt_{'floordiv' if isinstance(atom, FloorDiv) else 'mod'}({num}, {den})"

    def whole(i: Index) -> str:
        # Where names do not tell two atoms apart, their texts do: atoms sort by age otherwise.
        terms = [(sorted((*a.key[:2], atom_text(a)) for a in m), factor) for m, factor in i.terms]
        parts: list[str] = []
        for monomial, factor in sorted(terms, key=lambda term: (-len(term[0]), term[0])):
            factors = [text for _, _, text in monomial]
            if factor != 1 or not factors:
                factors.insert(0, str(factor))
            parts.append(" * ".join(factors))
        return " + ".join(parts) or "0"

    return whole(index)


def size_names(index: Index) -> list[str]:
    """Return the names of the sizes in a polynomial, sorted."""
    return sorted(a.name for a in deep_atoms(index) if isinstance(a, Size))
