"""The adjoint of a load: the points of a loop nest that read element y of a tensor.

In: the index of a load, f(axes), the tensor's sizes, and an index y into it. Out: for each axis
that f fixes its value in terms of y, conditions under which there is such a point, and the axes
that are left to sum over.

    x[i + k]         y = i + k                   i = y - k  if 0 <= y - k < I,  sum over k
    x[2*i + 1]       y = 2*i + 1                 i = (y - 1) // 2  if (y - 1) % 2 == 0
    x[L//M, L%M]     y0*M + y1 = L = 8*i + j     i = L // 8, j = L % 8
    x[i + L//3]      L = 3*p + q, y = i + p      i = y - p  if 0 <= y - p < I,  sum over p, q
    x[j, [n]]        y1 = value of n             no axis; a condition on what is read

Invariant: an axis is replaced by an index within its extent. Where the conditions do not hold,
the index is clamped, and the value that is read there is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Unsupported
from lowtide.texpr.conditions import within
from lowtide.texpr.expr import Expr
from lowtide.texpr.formula import F, place
from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    FloorDiv,
    Gather,
    Index,
    Mod,
    as_index,
    deep_atoms,
    exact_division,
)
from lowtide.texpr.index_ranges import clamp, floordiv, mod, nonnegative, substitute
from lowtide.texpr.split_axis import divisors, joined, one_division, split_axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Inverse:
    """`at`: the value of each axis that is fixed; `rest`: the others; `data`: conditions that read
    memory and speak of axes in `rest`: the sum over these is a scatter."""

    at: Mapping[Axis, Index]
    conditions: tuple[F, ...]
    rest: tuple[Axis, ...]
    data: tuple[tuple[Index, Expr], ...]


def invert(
    index: Sequence[Index],
    y: Sequence[Axis],
    scope: Sequence[Axis],
    dropping: bool,
    known: Sequence[Index] = (),
) -> Inverse:
    """Solve index == y for the axes in scope. Raises Unsupported. `dropping`: a clamped index
    belongs to a load whose value is dropped where it is out of bounds. `known`: indices that are
    not negative wherever the load is used."""
    found = _of_axes(index, y, scope)
    if found is not None:
        return found
    run = _Solver(scope=tuple(scope), dropping=dropping, known=known)
    for lhs, axis in zip(index, y, strict=True):
        if axis.extent.const != 1:
            run.add(lhs, as_index(axis))
    return run.solve()


def _of_axes(index: Sequence[Index], y: Sequence[Axis], scope: Sequence[Axis]) -> Inverse | None:
    """Return the inverse if all indices are axes of the same extents, as is most common; else
    None."""
    at = {a: as_index(0) for a in scope if a.extent.const == 1}
    for lhs, axis in zip(index, y, strict=True):
        if axis.extent.const == 1:
            continue
        a = _single(lhs)
        if not isinstance(a, Axis) or a not in scope or a in at or a.extent is not axis.extent:
            return None
        at[a] = as_index(axis)
    rest = tuple(a for a in scope if a not in at)
    return Inverse(at=at, conditions=(), rest=rest, data=())


Equation = tuple[Index, Index]


@dataclass(slots=True)
class _Solver:
    scope: tuple[Axis, ...]
    dropping: bool
    known: Sequence[Index]
    equations: list[Equation] = field(default_factory=list[Equation])
    data: list[tuple[Index, Expr]] = field(default_factory=list[tuple[Index, Expr]])
    at: dict[Axis, Index] = field(default_factory=dict[Axis, Index])
    conditions: list[F] = field(default_factory=list[F])
    fresh: list[Axis] = field(default_factory=list[Axis])

    def add(self, lhs: Index, rhs: Index) -> None:
        gathered = _gathered(lhs)
        if gathered is not None:
            self.data.append((rhs, gathered))
            return
        unknown = frozenset[Atom](self.scope)
        held = [
            a
            for a in deep_atoms(lhs)
            if isinstance(a, Clamp) and not unknown.isdisjoint(deep_atoms(as_index(a)))
        ]
        if held:
            if not self.dropping and not all(within(a.num, a.extent, self.known) for a in held):
                raise Unsupported("the gradient of a clamped index")
            lhs = _unclamped(lhs, held)
        if any(isinstance(a, Gather) for a in deep_atoms(lhs)):
            raise Unsupported("the gradient of an index computed from data")
        self.equations.append((lhs, rhs))

    def solve(self) -> Inverse:
        for a in self.scope:
            if a.extent.const == 1:
                self.at[a] = as_index(0)
        self._merge_divisions()
        for a in self.scope:
            self._cut(a)
        while self.equations:
            self.equations = [(self._known(lhs), rhs) for lhs, rhs in self.equations]
            k = min(range(len(self.equations)), key=lambda n: self._difficulty(*self.equations[n]))
            lhs, rhs = self.equations.pop(k)
            self._solve_one(lhs, rhs)
        rest = [a for a in (*self.scope, *self.fresh) if a not in self.at]
        moved = dict(self.at)
        data = tuple((rhs, at_indices(e, moved)) for rhs, e in self.data)
        for rhs, e in data:
            if not e.free & frozenset(rest):
                self.conditions.append(F(ex.cast(e, dtypes.i64)).equals(place(rhs)))
        left = tuple((rhs, e) for rhs, e in data if e.free & frozenset(rest))
        conditions = tuple(F(at_indices(c.e, moved)) for c in self.conditions)
        return Inverse(at=self.at, conditions=conditions, rest=tuple(rest), data=left)

    # -- the state --

    def _known(self, index: Index) -> Index:
        values: dict[Atom, Index] = dict(self.at.items())
        return substitute(index, values)

    def _unsolved(self, index: Index) -> list[Axis]:
        loops = (*self.scope, *self.fresh)
        atoms = deep_atoms(index)
        return [a for a in loops if a in atoms and a not in self.at]

    def _difficulty(self, lhs: Index, rhs: Index) -> tuple[int, int]:
        del rhs
        plain = all(isinstance(a, Axis) for m, _ in lhs.terms for a in m if not _is_size(a))
        return (0 if plain else 1, len(self._unsolved(lhs)))

    def _merge_divisions(self) -> None:
        """L // K == p and L % K == q are L == p * K + q."""
        while True:
            found = self._division_pair()
            if found is None:
                return
            k, n, merged = found
            self.equations = [e for i, e in enumerate(self.equations) if i not in (k, n)]
            self.equations.append(merged)

    def _division_pair(self) -> tuple[int, int, Equation] | None:
        for k, (low, q) in enumerate(self.equations):
            atom = _single(low)
            if not isinstance(atom, Mod):
                continue
            whole = floordiv(atom.num, atom.den)
            for n, (high, p) in enumerate(self.equations):
                if n != k and high is whole:
                    self._require(q, atom.den)
                    return k, n, (atom.num, p * atom.den + q)
                upper = _single(high)
                if n != k and isinstance(upper, Mod) and upper.num is whole:
                    self._require(q, atom.den)
                    merged = mod(atom.num, upper.den * atom.den)
                    return k, n, (merged, p * atom.den + q)
        return None

    def _cut(self, a: Axis) -> None:
        """Cut an axis into parts if an index uses only parts of it, next to others (i + L % 3)."""
        sums = [lhs for lhs, _ in self.equations if _single(lhs) is None]
        for by in divisors(sums, a):
            pair = split_axis(a, by)
            if pair is None or by is a.extent:
                continue
            cut = [substitute(lhs, {a: joined(pair)}) for lhs in sums]
            if not divisors(cut, pair[1]):
                self.fresh.extend(pair)
                self._set(a, joined(pair), exact=True)
                self.equations = [(self._known(lhs), rhs) for lhs, rhs in self.equations]
                self._cut(pair[0])
                return

    # -- one equation --

    def _solve_one(self, lhs: Index, rhs: Index) -> None:
        atom = _single(lhs)
        if not self._unsolved(lhs):
            if lhs is not rhs:
                self.conditions.append(place(lhs).equals(place(rhs)))
        elif isinstance(atom, FloorDiv):
            part = self._fresh(atom.den)
            self.equations.append((atom.num, rhs * atom.den + as_index(part)))
        elif isinstance(atom, Mod):
            self._modulo(atom, rhs)
        elif (joint := one_division(lhs)) is not None:
            part = self._fresh(joint[1])
            self.equations.append((joint[0], rhs * joint[1] + as_index(part)))
        else:
            self._linear(lhs, rhs)

    def _fresh(self, extent: Index) -> Axis:
        made = Axis("m", extent)
        self.fresh.append(made)
        if extent.const == 1:
            self.at[made] = as_index(0)
        return made

    def _modulo(self, atom: Mod, rhs: Index) -> None:
        """L % K == y for L = ±a + c: a = ±(y - c) % K + K*m."""
        steps, offset = self._coefficients(atom.num)
        if len(steps) != 1:
            raise Unsupported("the gradient of an index modulo a size")
        ((a, step),) = steps.items()
        if step.const not in (1, -1):
            raise Unsupported("the gradient of an index modulo a size")
        self._require(rhs, atom.den)
        first = mod((rhs - offset) * step, atom.den)
        whole = exact_division(a.extent, atom.den)
        if whole is None:
            whole = floordiv(a.extent + atom.den - 1, atom.den)
        rounds = as_index(self._fresh(whole)) if whole.const != 1 else as_index(0)
        self._set(a, first + rounds * atom.den)

    def _linear(self, lhs: Index, rhs: Index) -> None:
        steps, offset = self._coefficients(lhs)
        left = rhs - offset
        while len(steps) > 1:
            top = _leading(steps)
            if top is None:
                break
            step = steps.pop(top)
            self._set(top, floordiv(left, step), exact=_fills(left, step, top))
            left = mod(left, step)
        if len(steps) > 1:
            chosen = max(steps, key=lambda a: (_length(a), steps[a].const in (1, -1)))
            step = steps.pop(chosen)
            for a, c in steps.items():
                left = left - as_index(a) * c
            steps = {chosen: step}
        ((a, step),) = steps.items()
        if (c := step.const) is not None and c < 0:
            left, step = -left, -step
        if step.const == 1:
            self._set(a, left)
            return
        whole = mod(left, step)
        if whole.const != 0:
            self.conditions.append(place(whole).equals(0))
        self._set(a, floordiv(left, step))

    def _coefficients(self, index: Index) -> tuple[dict[Axis, Index], Index]:
        """index == sum of coefficient * axis + offset, for the unsolved axes."""
        steps: dict[Axis, Index] = {}
        rest = index
        for a in self._unsolved(index):
            zero = substitute(rest, {a: as_index(0)})
            step = exact_division(rest - zero, as_index(a))
            if step is None or any(b in deep_atoms(step) for b in self._unsolved(index)):
                raise Unsupported("the gradient of an index that is not affine")
            steps[a], rest = step, zero
        for a, step in steps.items():
            if (c := step.const) is None and not nonnegative(step - 1):
                raise Unsupported(f"the gradient of an index with a step {step} of {a}")
            if c == 0:
                raise Unsupported("the gradient of an index without a step")
        return steps, rest

    def _set(self, a: Axis, value: Index, exact: bool = False) -> None:
        """Set the axis to a value, under the condition that the value is within its extent."""
        held = exact or self._require(value, a.extent)
        inside = value if held else clamp(value, a.extent)
        for other, known in list(self.at.items()):
            self.at[other] = substitute(known, {a: inside})
        self.at[a] = inside

    def _require(self, value: Index, extent: Index) -> bool:
        """Require that the value is in [0, extent). Return True if it always is. Remainders are
        checked, too: `L % 2 == y` has no solution for y = 2."""
        low, high = nonnegative(value), _below(value, extent)
        if not low:
            self.conditions.append(place(value) >= place(as_index(0)))
        if not high:
            self.conditions.append(place(value) < place(extent))
        return low and high


def _is_size(atom: Atom) -> bool:
    return not isinstance(atom, Axis | Mod | FloorDiv | Clamp | Gather)


def _single(index: Index) -> Atom | None:
    """Return the atom if the index is one atom, else None."""
    if len(index.terms) == 1 and index.terms[0][1] == 1 and len(index.terms[0][0]) == 1:
        return index.terms[0][0][0]
    return None


def _gathered(index: Index) -> Expr | None:
    """Return the expression if the index is data, clamped or not, else None."""
    atom = _single(index)
    if isinstance(atom, Clamp):
        atom = _single(atom.num)
    return atom.expr if isinstance(atom, Gather) else None


def _unclamped(index: Index, held: Sequence[Clamp]) -> Index:
    inside = [a for a in held if a in deep_atoms(index)]
    values: dict[Atom, Index] = {a: _unclamped(a.num, inside) for a in inside}
    return substitute(index, values)


def _below(value: Index, extent: Index) -> bool:
    """Return whether value < extent is certain, for all values of the axes."""
    if nonnegative(extent - value - 1):
        return True
    atom = _single(value)
    return isinstance(atom, FloorDiv) and nonnegative(extent * atom.den - atom.num - 1)


def _leading(steps: Mapping[Axis, Index]) -> Axis | None:
    """Return the axis whose step is larger than the span of all others; None if there is none."""
    for a, step in steps.items():
        others = as_index(0)
        for b, other in steps.items():
            if b is not a:
                if (c := other.const) is not None and c < 0:
                    return None
                others = others + other * (b.extent - 1)
        if nonnegative(step - others - 1):
            return a
    return None


def _fills(left: Index, step: Index, a: Axis) -> bool:
    """Return whether left // step is certainly within the extent of the axis."""
    return nonnegative(left) and nonnegative(step * a.extent - left - 1)


def _length(a: Axis) -> int:
    """Longer is larger; a symbol counts as longer than every number."""
    return a.extent.const if a.extent.const is not None else 1 << 40
