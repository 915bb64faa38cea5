"""Index arithmetic: integer polynomials over axes and sizes, in canonical form.

In:  axes (loop variables), size symbols, Python ints, and values read from memory (`Gather`).
Out: `Index`, a sum of products; two equal polynomials are equal objects.
Always: floor division and modulo simplify when the ranges of the axes prove it, so that a reshape
of a contiguous tensor leaves no division behind.

    i in [0, N), j in [0, 4):   floordiv(4*i + j, 4) -> i        mod(4*i + j, 4) -> j
                                4*floordiv(i, 4) + mod(i, 4) -> i
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_serial = itertools.count()


class Atom:
    """What a polynomial is made of. Atoms are compared by identity; `key` orders them stably."""

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
        return _from_terms(itertools.chain(self.terms, other.terms))

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
            return _from_terms(
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
        """The atoms that stand in it directly (not those within divisions), in their order."""
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


def _from_terms(terms: Iterable[tuple[Monomial, int]]) -> Index:
    total: dict[Monomial, int] = {}
    for monomial, factor in terms:
        total[monomial] = total.get(monomial, 0) + factor
    kept = [(m, c) for m, c in total.items() if c]
    if len(kept) > 1:
        whole = _rejoined(total)
        if whole is not None:
            return _from_terms(whole)
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
    """An int or an atom as a polynomial."""
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
    """The axis of this number and extent in all programs that are traced: where one is traced
    twice, its parts are the same objects. Two programs that have such axes are never joined."""
    key = number, as_index(extent)
    found = _numbered.get(key)
    return _numbered.setdefault(key, Axis(f"i{number}", key[1])) if found is None else found


def axis(name: str, extent: Index | int) -> Index:
    """A fresh axis, as an index."""
    return as_index(Axis(name, as_index(extent)))


def the_axis(index: Index) -> Axis | None:
    """The axis, where the index is one plain axis and nothing else."""
    if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        atom = index.terms[0][0][0]
        return atom if isinstance(atom, Axis) else None
    return None


@functools.lru_cache(maxsize=4096)
def numbered(number: int, extent: Index) -> Axis:
    """An axis that is told by its number and extent only: to compare what differs in axes."""
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
    """The product of all, 1 for none."""
    total = as_index(1)
    for value in values:
        total = total * value
    return total


def gather(expr: Any) -> Index:
    """The index that an i64 expression holds at run time."""
    return as_index(_intern_atom(Gather, expr))


def clamp(num: Index | int, extent: Index | int) -> Index:
    """`num` held to [0, extent)."""
    num, extent = as_index(num), as_index(extent)
    if nonnegative(num) and nonnegative(extent - num - 1):
        return num
    return as_index(_intern_atom(Clamp, num, extent))


def _intern_atom(kind: type[Any], *fields: Any) -> Atom:
    key = (kind, *fields)
    found = _atoms.get(key)
    if found is None:
        found = kind(*fields)
        _atoms[key] = found
    return found


# ---- division -------------------------------------------------------------------------------


def floordiv(num: Index | int, den: Index | int) -> Index:
    """`num // den` for a positive `den`, simplified as far as the ranges allow."""
    num, den = as_index(num), as_index(den)
    if (d := den.const) is not None and d <= 0:
        raise ZeroDivisionError("an index is divided by a size that is not positive")
    quotient, rest = _split(num, den)
    if rest.const == 0 or (nonnegative(rest) and nonnegative(den - 1 - rest)):
        return quotient
    return quotient + _division_atom(rest, den)


def mod(num: Index | int, den: Index | int) -> Index:
    """`num % den` for a positive `den`: in [0, den)."""
    num, den = as_index(num), as_index(den)
    if (d := den.const) is not None and d <= 0:
        raise ZeroDivisionError("an index is divided by a size that is not positive")
    _, rest = _split(num, den)
    if rest.const == 0 or (nonnegative(rest) and nonnegative(den - 1 - rest)):
        return rest
    if (whole := exact_division(rest, den)) is not None and whole.const is not None:
        return as_index(0)
    return as_index(_intern_atom(Mod, rest, den))


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
        left = _remove(m, monomial)
        if left is None:
            rest.append((m, c))
            continue
        whole, over = divmod(c, factor)
        if whole:
            quotient.append((left, whole))
        if over:
            rest.append((m, over))
    return _from_terms(quotient), _from_terms(rest)


def _split_long(num: Index, den: Index) -> tuple[Index, Index]:
    """((n - 2)*i + j) // (n - 2) -> i, rest j, where j is sure to lie in [0, n - 2)."""
    lead_m, lead_c = den.terms[0]
    quotient, rest = as_index(0), num
    for m, c in num.terms:
        left = _remove(m, lead_m)
        if left is not None and c % lead_c == 0:
            part = Index(((left, c // lead_c),))
            quotient, rest = quotient + part, rest - part * den
    if nonnegative(rest) and nonnegative(den - 1 - rest):
        return quotient, rest
    return as_index(0), num


def _remove(monomial: Monomial, part: Monomial) -> Monomial | None:
    left = list(monomial)
    for atom in part:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _division_atom(num: Index, den: Index) -> Index:
    """FloorDiv with common factors dropped: (4*i + j) // 8 -> i // 2 for j in [0, 4)."""
    if (d := den.const) is not None:
        for factor in sorted({abs(c) for _, c in num.terms if abs(c) > 1}, reverse=True):
            g = math.gcd(factor, d)
            if g == 1:
                continue
            coarse, fine = _split(num, as_index(g))
            if nonnegative(fine) and nonnegative(as_index(g - 1) - fine):
                return floordiv(coarse, d // g)
    if len(num.terms) == 1 and num.terms[0][1] == 1 and len(num.terms[0][0]) == 1:
        inner = num.terms[0][0][0]
        if isinstance(inner, FloorDiv):
            return floordiv(inner.num, inner.den * den)
        if isinstance(inner, Clamp) and (n := exact_division(inner.extent, den)) is not None:
            return clamp(floordiv(inner.num, den), n)
    return as_index(_intern_atom(FloorDiv, num, den))


def exact_division(num: Index, den: Index) -> Index | None:
    """The polynomial q with q * den == num, or None if there is none."""
    if not num.terms:
        return num
    quotient: list[tuple[Monomial, int]] = []
    rest = num
    lead_m, lead_c = den.terms[0]
    for _ in range(32):
        if not rest.terms:
            return _from_terms(quotient)
        m, c = rest.terms[0]
        left = _remove(m, lead_m)
        if left is None or c % lead_c:
            return None
        term = ((left, c // lead_c),)
        quotient.extend(term)
        rest = rest - Index(term) * den
    return None


# ---- ranges ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8192)
def nonnegative(index: Index) -> bool:
    """True where `index >= 0` is certain for all values of its axes and sizes."""
    if (value := index.const) is not None:
        return value >= 0
    if all(c >= 0 for _, c in index.terms) and all(_known_nonnegative(a) for a in index.atoms()):
        return True
    for atom in index.atoms():
        if isinstance(atom, Axis | Mod | Clamp) and not _is_inside(atom, index):
            return _without(index, atom)
    for atom in index.atoms():
        if isinstance(atom, FloorDiv) and (top := _most_of_division(atom)) is not None:
            if any(m.count(atom) > 1 for m, _ in index.terms):
                return False
            ends = (substitute(index, {atom: as_index(end)}) for end in (0, top))
            if all(nonnegative(i) for i in ends):
                return True
        if isinstance(atom, FloorDiv) and (least := _least_with_division(index, atom)) is not None:
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
    """Does it stand within a division or remainder, too? Then the index is not linear in it."""
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
    """The greatest value of a division of axes of constant extents, which starts from 0."""
    den, most = atom.den.const, 0
    for monomial, factor in atom.num.terms:
        (a, *more) = monomial or (None,)
        size = a.extent.const if isinstance(a, Axis) else None
        if more or size is None or factor < 0:
            return None
        most += factor * (size - 1)
    return None if den is None or most < 0 else most // den


def _least_with_division(index: Index, atom: FloorDiv) -> Index | None:
    """A polynomial without the division that is no larger, in units of its divisor:
    3*n - 9*(n // 3) >= 3*n - 3*n. Where the division stands once, the two have one sign."""
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
    """Is index >= 0 in all of the atom's range? It is linear in it: least at one of its ends."""
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


def substitute(index: Index, values: Mapping[Atom, Index]) -> Index:
    """The index with atoms replaced, inside divisions too (not inside gathered expressions)."""
    if values.keys().isdisjoint(deep_atoms(index)):
        return index
    return rebuild(index, values.get)


def rebuild(index: Index, replace: Callable[[Atom], Index | None]) -> Index:
    """The index with each atom replaced by `replace(atom)`; None keeps it and goes inside."""
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
        values = (value or atom_index(atom) for atom, value in zip(monomial, new, strict=True))
        part = functools.reduce(operator.mul, values)
        if len(index.terms) == 1:
            return part * factor
        terms += (part * factor).terms
    return _from_terms(terms) if changed else index


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


def atom_index(atom: Atom) -> Index:
    """One atom as a polynomial."""
    return Index((((atom,), 1),))


def deep_atoms(index: Index) -> Mapping[Atom, None]:
    """All atoms, those within divisions and clamps too; gathered expressions are not entered.

    A dict for its order: what is chosen among atoms must not hang on their addresses."""
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
