"""Index arithmetic: integer polynomials over axes and sizes, in canonical form.

In:  axes (loop variables), size symbols, Python ints, and values read from memory (`Gather`).
Out: `Index`, a sum of products; two equal polynomials are equal objects. Division, remainder and
comparison are in `index_ranges`.

    i, n = axis("i", size), as_index(Size("n"))
    (i + 1) * n - n               -> n*i
    exact_division(i*n + 4*n, n)  -> i + 4
    4*floordiv(i, 4) + mod(i, 4)  -> i
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

_serial = itertools.count()


class Atom:
    """A variable of polynomials. Atoms are compared by identity; `key` orders them stably."""

    __slots__ = ("__weakref__", "key")
    key: tuple[int, str, int]


class Size(Atom):
    """A size known only at run time; `low` is the least value it can have, None if unknown."""

    __slots__ = ("low", "name")

    def __init__(self, name: str, low: int | None = 0) -> None:
        self.name = name
        self.low = low
        self.key = (0, name, next(_serial))

    def __repr__(self) -> str:
        return self.name


class Axis(Atom):
    """A loop variable that runs over [0, extent)."""

    __slots__ = ("extent", "name")

    def __init__(self, name: str, extent: Index) -> None:
        self.name = name
        self.extent = extent
        self.key = (1, name, next(_serial))

    def __repr__(self) -> str:
        return self.name


class FloorDiv(Atom):
    """`num // den`, rounded down, where nothing simpler is known; `den` is positive."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: Index) -> None:
        self.num = num
        self.den = den
        self.key = (2, "", next(_serial))

    def __repr__(self) -> str:
        return f"(({self.num}) // ({self.den}))"


class Mod(Atom):
    """`num % den`, in [0, den)."""

    __slots__ = ("den", "num")

    def __init__(self, num: Index, den: Index) -> None:
        self.num = num
        self.den = den
        self.key = (3, "", next(_serial))

    def __repr__(self) -> str:
        return f"(({self.num}) % ({self.den}))"


class Clamp(Atom):
    """`num` held to [0, extent): what makes a border index or a data-dependent one safe to load."""

    __slots__ = ("extent", "num")

    def __init__(self, num: Index, extent: Index) -> None:
        self.num = num
        self.extent = extent
        self.key = (4, "", next(_serial))

    def __repr__(self) -> str:
        return f"clamp({self.num}, {self.extent})"


class Gather(Atom):
    """An index that is data: the value of an i64 expression."""

    __slots__ = ("expr",)

    def __init__(self, expr: Any) -> None:
        self.expr = expr  # texpr.expr.Expr; typed Any, since expressions are made of indices too
        self.key = (5, "", next(_serial))

    def __repr__(self) -> str:
        return f"[{self.expr}]"


Monomial = tuple[Atom, ...]
_interned: weakref.WeakValueDictionary[tuple[Any, ...], Index]
_atoms: weakref.WeakValueDictionary[tuple[Any, ...], Atom] = weakref.WeakValueDictionary()


class Index:
    """A polynomial with integer coefficients: `terms` maps a product of atoms to its factor."""

    __slots__ = ("__weakref__", "const", "deep", "terms")

    terms: tuple[tuple[Monomial, int], ...]
    const: int | None  # the value, where it is a plain number
    deep: Mapping[Atom, None] | None  # what `deep_atoms` has found

    def __new__(cls, terms: tuple[tuple[Monomial, int], ...]) -> Index:
        found = _interned.get(terms)
        if found is None:
            found = object.__new__(cls)
            found.terms = terms
            found.const = _constant(terms)
            found.deep = None
            _interned[terms] = found
        return found

    __hash__ = object.__hash__  # equal ones are one object

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self.const == other
        return self is other

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return self._plus(other)
        if other.const is not None:
            return self._plus(other.const)
        if self.const is not None:
            return other._plus(self.const)
        return from_terms(itertools.chain(self.terms, other.terms))

    def _plus(self, number: int) -> Index:
        if not number:
            return self
        terms = self.terms
        if terms and not terms[-1][0]:  # a number is the last term
            number += terms[-1][1]
            terms = terms[:-1]
        return Index((*terms, ((), number)) if number else terms)

    __radd__ = __add__

    def __neg__(self) -> Index:
        return Index(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Index | int) -> Index:
        return self + -other

    def __rsub__(self, other: Index | int) -> Index:
        return as_index(other) - self

    def __mul__(self, other: Index | int) -> Index:
        factor = other if isinstance(other, int) else other.const
        if factor is None:
            return from_terms(
                (tuple(sorted(a + b, key=_atom_key)), c * d)
                for a, c in self.terms
                for b, d in as_index(other).terms
            )
        if factor == 1:
            return self
        return Index(tuple((m, c * factor) for m, c in self.terms) if factor else ())

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return _show(self)

    def atoms(self) -> dict[Atom, None]:
        """Return the atoms directly in the index, not those within divisions, in order."""
        return {atom: None for monomial, _ in self.terms for atom in monomial}


_interned = weakref.WeakValueDictionary()


def _constant(terms: tuple[tuple[Monomial, int], ...]) -> int | None:
    if not terms:
        return 0
    return terms[0][1] if len(terms) == 1 and not terms[0][0] else None


def _atom_key(atom: Atom) -> tuple[int, str, int]:
    return atom.key


def _term_key(term: tuple[Monomial, int]) -> tuple[Any, ...]:
    return (-len(term[0]), tuple(a.key for a in term[0]))


def from_terms(terms: Iterable[tuple[Monomial, int]]) -> Index:
    """Return the sum of the terms, each a product of atoms and its factor."""
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) > 1:
        whole = _rejoined(total)
        if whole is not None:
            return from_terms(whole)
        kept.sort(key=_term_key)
    return Index(tuple(kept))


def _rejoined(total: Mapping[Monomial, int]) -> list[tuple[Monomial, int]] | None:
    """4*(x // 4) + x % 4 is x; None where there is no such pair."""
    for monomial, factor in total.items():
        for k, part in enumerate(monomial):
            if not isinstance(part, Mod) or part.den.const is None:
                continue
            others = (*monomial[:k], *monomial[k + 1 :])
            half = _atoms.get((FloorDiv, part.num, part.den))
            pair = None if half is None else tuple(sorted((*others, half), key=_atom_key))
            if pair is not None and factor and total.get(pair) == factor * part.den.const:
                left = [(m, c) for m, c in total.items() if m not in (monomial, pair)]
                joined = (
                    (tuple(sorted((*others, *m), key=_atom_key)), c) for m, c in part.num.terms
                )
                return [*left, *((m, c * factor) for m, c in joined)]
    return None


def _show(index: Index) -> str:
    if not index.terms:
        return "0"
    parts: list[str] = []
    for monomial, factor in index.terms:
        names = "*".join(repr(a) for a in monomial)
        body = (
            names
            if factor in (1, -1) and names
            else "*".join(filter(None, [str(abs(factor)), names]))
        )
        sign = "-" if factor < 0 else "+"
        parts.append(f"{sign} {body}" if parts else (f"-{body}" if factor < 0 else body))
    return " ".join(parts)


def as_index(value: Index | int | Atom) -> Index:
    """Return an int or an atom as a polynomial."""
    if isinstance(value, Index):
        return value
    if isinstance(value, Atom):
        return Index((((value,), 1),))
    return _number(int(value))


@functools.lru_cache(maxsize=4096)
def _number(value: int) -> Index:
    return Index(() if value == 0 else (((), value),))


_numbered: weakref.WeakValueDictionary[tuple[int, Index], Axis] = weakref.WeakValueDictionary()


def numbered_axis(number: int, extent: Index | int) -> Axis:
    """Return the axis of this number and extent, the same object in all traced programs. Parts that
    are traced twice are then the same objects. Programs with such axes are never joined."""
    key = number, as_index(extent)
    found = _numbered.get(key)
    return _numbered.setdefault(key, Axis(f"i{number}", key[1])) if found is None else found


def axis(name: str, extent: Index | int) -> Index:
    """Return a fresh axis, as an index."""
    return as_index(Axis(name, as_index(extent)))


def the_axis(index: Index) -> Axis | None:
    """Return the axis if the index is one plain axis, else None."""
    if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        atom = index.terms[0][0][0]
        return atom if isinstance(atom, Axis) else None
    return None


@functools.lru_cache(maxsize=4096)
def numbered(number: int, extent: Index) -> Axis:
    """Return an axis known by number and extent only, to compare expressions over different
    axes."""
    return Axis(f"place{number}", extent)


def row_major(shape: Iterable[Index]) -> tuple[Index, ...]:
    """Strides in elements of a dense tensor."""
    steps: list[Index] = []
    step = as_index(1)
    for size in reversed(tuple(shape)):
        steps.append(step)
        step = step * size
    return tuple(reversed(steps))


def product(values: Iterable[Index | int]) -> Index:
    """Return the product of all, 1 for none."""
    total = as_index(1)
    for value in values:
        total = total * value
    return total


def gather(expr: Any) -> Index:
    """Return the index that an i64 expression holds at run time."""
    return as_index(intern_atom(Gather, expr))


def intern_atom(kind: type[Any], *fields: Any) -> Atom:
    """Return the one atom of this kind and these fields."""
    key = (kind, *fields)
    found = _atoms.get(key)
    if found is None:
        found = kind(*fields)
        _atoms[key] = found
    return found


def without_factor(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Return the monomial divided by `part`; None where it lacks an atom of `part`."""
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def exact_division(num: Index, den: Index) -> Index | None:
    """Return the polynomial q with q * den == num, or None if there is none."""
    if not num.terms:
        return num
    quotient: list[tuple[Monomial, int]] = []
    rest = num
    lead_m, lead_c = den.terms[0]
    for _ in range(32):
        if not rest.terms:
            return from_terms(quotient)
        m, c = rest.terms[0]
        left = without_factor(m, lead_m)
        if left is None or c % lead_c:
            return None
        term = ((left, c // lead_c),)
        quotient.extend(term)
        rest = rest - Index(term) * den
    return None


def deep_atoms(index: Index) -> Mapping[Atom, None]:
    """Return all atoms, also those within divisions and clamps, but not those in gathered
    expressions.

    The result is a dict to keep its order, which must not depend on addresses.
    """
    if index.deep is None:
        index.deep = _deep_atoms(index)
    return index.deep


def _deep_atoms(index: Index) -> dict[Atom, None]:
    found: dict[Atom, None] = {}
    for atom in index.atoms():
        found[atom] = None
        if isinstance(atom, FloorDiv | Mod):
            found |= {**deep_atoms(atom.num), **deep_atoms(atom.den)}
        elif isinstance(atom, Clamp):
            found |= {**deep_atoms(atom.num), **deep_atoms(atom.extent)}
    return found
