"""Index polynomials as C expressions of type int64_t.

In: an `Index` and how its axes, sizes and gathered values are called. Out: C text.
Always: division rounds down also for negative numerators, as in Python.
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.texpr.index import Atom, Axis, Clamp, FloorDiv, Gather, Index, Mod, Size, nonnegative

HELPERS = """\
LT_INLINE int64_t lt_floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - (q * b > a); }
LT_INLINE int64_t lt_mod(int64_t a, int64_t b) { return a - lt_floordiv(a, b) * b; }
LT_INLINE int64_t lt_clamp(int64_t a, int64_t n) { return a < 0 || n < 1 ? 0 : a < n ? a : n - 1; }
LT_INLINE int64_t lt_min(int64_t a, int64_t b) { return a < b ? a : b; }
LT_INLINE int64_t lt_max(int64_t a, int64_t b) { return a > b ? a : b; }
"""


def size_name(size: Size) -> str:
    return f"z_{size.name}"


def c_index(
    index: Index,
    coordinate: Callable[[Axis], str] | None = None,
    gathered: Callable[[Gather], str] | None = None,
) -> str:
    """The polynomial as C; sizes are variables `z_name`."""

    def atom_text(atom: Atom) -> str:
        if isinstance(atom, Size):
            return size_name(atom)
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
            return f"(({num}) {'/' if isinstance(atom, FloorDiv) else '%'} ({den}))"
        return f"lt_{'floordiv' if isinstance(atom, FloorDiv) else 'mod'}({num}, {den})"

    def whole(i: Index) -> str:
        parts: list[str] = []
        for monomial, factor in i.terms:
            factors = [atom_text(a) for a in monomial]
            if factor != 1 or not factors:
                factors.insert(0, str(factor))
            parts.append(" * ".join(factors))
        return " + ".join(parts) or "0"

    return whole(index)
