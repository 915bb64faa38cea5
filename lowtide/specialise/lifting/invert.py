"""Solves the condition of a write for the loop axis: finds the iteration that writes an element.

In: a condition that a write made (see `updates`), and the loop's axis L of T iterations. Out: L as
an index over the element's axes, and the remaining conditions.

    r == L                       L = r            if r < T
    0 <= r - 4*L < 4             L = r // 4       if r < 4*T;   r - 4*L = r % 4
    0 <= r - 4*L < 5             none: two iterations may write one element
    r == 2*L, r == 2*L + 1       r // 2 and (r - 1) // 2: no element is written by two iterations
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lowtide.specialise.lifting.updates import at_index, conjunction
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Builder
from lowtide.texpr.conditions import freed, nonnegative_if, parts_of, sides
from lowtide.texpr.expr import Expr, Rewriter
from lowtide.texpr.index import Axis, Clamp, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import clamp, floordiv, mod, nonnegative

LARGEST_STEP: Final = 1024  # of iterations that write in turns: each place of a step is looked at


@dataclass(frozen=True, slots=True)
class Solution:
    """L is `target // step`; `target - step * L`, which stands as `offset`, lies below `width`.

    `holds` are the conditions that this stands for."""

    axis: Axis
    target: Index
    step: Index
    offset: Index | None
    width: Index
    holds: tuple[Expr, ...]

    def valid(self, b: Builder) -> Expr | None:
        """Return the condition that some iteration writes the element; None if one always does."""
        bound = self.step * self.axis.extent
        parts: list[Expr] = []
        if not nonnegative(self.target):
            parts.append(b.apply("ge", b.at(self.target), b.at(0)))
        if not nonnegative(bound - 1 - self.target):
            parts.append(b.apply("lt", b.at(self.target), b.at(bound)))
        if self.width is not self.step:
            parts.append(b.apply("lt", b.at(mod(self._clamped(), self.step)), b.at(self.width)))
        return conjunction(b, parts)

    def _clamped(self) -> Index:
        return clamp(self.target, self.step * self.axis.extent)

    def put_in(self, b: Builder, e: Expr) -> Expr:
        """Return the expression at the iteration that writes the element."""
        held = self._clamped()
        rest = mod(held, self.step)

        def drop(node: Expr) -> Expr | None:
            return ex.const(True, node.dtype) if node in self.holds else None

        e = Rewriter(drop)(e)
        if self.offset is not None:
            held_offset = [a for a in e.atoms if isinstance(a, Clamp) and a.num is self.offset]
            e = Rewriter(atoms=dict.fromkeys(held_offset, clamp(rest, self.width)))(e)
        return at_indices(e, {self.axis: floordiv(held, self.step)})


@dataclass(frozen=True, slots=True)
class Writer:
    """The iteration that may write an element, and the conditions under which it does."""

    solution: Solution
    conditions: tuple[Expr, ...]

    def known(self) -> list[Index]:
        """Return the indices that are not negative at the elements that it writes."""
        s = self.solution
        here = [at_indices(c, {s.axis: s.target}) for c in self.conditions]
        return [i for c in freed(here) for i in nonnegative_if(c)]


def never_meet(alike: Sequence[Sequence[Writer]]) -> bool:
    """Return whether no element is written by two iterations. In each group one iteration writes
    it. For two groups, the conditions must show that it is the same iteration:

        out[i, j] and out[j, i], for j >= i:   r0 and r1 write, r1 - r0 >= 0 and r0 - r1 >= 0
    """
    if any(w.solution.step.const != 1 for ws in alike for w in ws):
        return False
    return all(
        _is_same(a, b)
        for k, first in enumerate(alike)
        for second in alike[k + 1 :]
        for a in first
        for b in second
    )


def _is_same(a: Writer, b: Writer) -> bool:
    """Return whether an element that both write is written in one iteration."""
    known = [*a.known(), *b.known()]
    both = [*known, *(i + j for i, j in itertools.combinations(known, 2))]
    apart = a.solution.target - b.solution.target
    return all(any(nonnegative(way - i) for i in both) for way in (apart, -apart))


def are_apart(solutions: Sequence[Solution]) -> bool:
    """Return whether no two of the solutions let different iterations write one element."""
    if len(solutions) < 2:
        return True
    first = solutions[0]
    step = first.step.const
    if step is None or step > LARGEST_STEP:
        return False
    rows: list[tuple[int, int]] = []
    for s in solutions:
        shift, width = (s.target - first.target).const, s.width.const
        if shift is None or width is None or s.step.const != step:
            return False
        rows.append((shift, width))
    for r in range(step):
        writers = {(r + shift) // step for shift, width in rows if (r + shift) % step < width}
        if len(writers) > 1:
            return False
    return True


def solve(cond: Expr, axis: Axis) -> Solution | None:
    """Return the only iteration for which the condition can hold, if index arithmetic shows it."""
    parts = parts_of(cond)
    return _by_equality(parts, axis) or _by_interval(parts, axis)


def _linear(i: Index, axis: Axis) -> tuple[Index, Index] | None:
    """Return (rest, factor) with i == rest + factor * axis."""
    rest = at_index(i, [axis], [as_index(0)])
    factor = at_index(i, [axis], [as_index(1)]) - rest
    if axis in deep_atoms(factor) or rest + factor * as_index(axis) is not i:
        return None
    return rest, factor


def _by_equality(parts: Sequence[Expr], axis: Axis) -> Solution | None:
    for part in parts:
        equal = sides(part, "eq")
        found = _linear(equal[0] - equal[1], axis) if equal else None
        if found is None:
            continue
        rest, factor = found
        if (factor.const or 0) < 0 or nonnegative(-factor - 1):
            rest, factor = -rest, -factor
        if not nonnegative(factor - 1):
            continue
        return Solution(axis, -rest, factor, None, as_index(1), (part,))
    return None


def _by_interval(parts: Sequence[Expr], axis: Axis) -> Solution | None:
    low = {s[0]: p for p in parts if (s := sides(p, "ge")) and s[1].const == 0}
    for part in parts:
        below = sides(part, "lt")
        if below is None or below[0] not in low:
            continue
        found = _linear(below[0], axis)
        if found is None or axis in deep_atoms(below[1]):
            continue
        rest, factor = found
        step, width = -factor, below[1]
        if nonnegative(step - 1) and nonnegative(step - width):
            return Solution(axis, rest, step, below[0], width, (low[below[0]], part))
    return None
