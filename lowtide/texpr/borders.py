"""Replaces masked windows by a padded copy, so that a convolution reads contiguous memory.

In:  definitions with their views inlined. Out: the same, with padded copies in front.

    y[i, o] = sum[k, c](select(0 <= i + k - 1 < n, x[c, clamp(i + k - 1, n)], 0) * w[o, c, k])
    ->
    b[c, u:n+2] = select(0 <= u - 1 < n, x[c, clamp(u - 1, n)], 0)
    y[i, o]     = sum[k, c](b[c, i + k] * w[o, c, k])

Windows with a stride are copied in phases, so that the lanes read contiguous elements: x[2*i + k]
is b[k % 2, i + k // 2].

The copy is cheap compared with the sum, which reads each element many times. Only loads at i + k,
with k summed over, are copied. If a whole product is masked, one factor is masked instead. If the
other factor is infinite or NaN, the product is then NaN where it was 0, as in PyTorch's padded
convolutions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lowtide.texpr import expr as ex
from lowtide.texpr.conditions import decided, joined, one_choice, parts_of, sides
from lowtide.texpr.expr import Apply, Const, Def, Expr, Reduce, Rewriter, Select
from lowtide.texpr.formula import F, all_of, place
from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    Gather,
    Index,
    as_index,
    deep_atoms,
    exact_division,
    numbered,
)
from lowtide.texpr.index_ranges import clamp, floordiv, mod, nonnegative, substitute


@dataclass(frozen=True, slots=True)
class _Window:
    """An index that is always in bounds: `low + step * t` for a t in [0, length). One step of the
    longest axis is `phases` steps of t."""

    atom: Clamp
    low: Index
    length: Index
    step: int
    phases: int

    def dims(self, apart: bool) -> tuple[Index, ...]:
        """Return the sizes of the dims of its copy: one, or two, of which the first is the
        phase."""
        if not apart:
            return (self.length,)
        return as_index(self.phases), floordiv(self.length + (self.phases - 1), self.phases)

    def index(self, apart: bool) -> tuple[Index, ...]:
        """Return the index in the padded copy. `apart`: the phases of the step are a dim of their
        own."""
        t = exact_division(self.atom.num - self.low, as_index(self.step))
        assert t is not None
        return (mod(t, self.phases), floordiv(t, self.phases)) if apart else (t,)

    def place(self, axes: Sequence[Axis]) -> Index:
        """Return the place of an element of the copy."""
        t = as_index(axes[-1])
        if len(axes) == 2:
            t = t * self.phases + as_index(axes[0])
        return t * self.step + self.low


def with_borders(defs: Sequence[Def]) -> tuple[list[Def], set[str]]:
    """Return the definitions, which read padded copies, and the names of the copies."""
    result: list[Def] = []
    copies = _Copies(result)
    for d in defs:

        def visit(node: Expr, d: Def = d) -> Expr | None:
            if not isinstance(node, Reduce) or node.fn != "sum" or not node.dtype.is_float:
                return None
            reduced = frozenset(node.axes)
            body = Rewriter(one_choice)(node.body)
            body = Rewriter(lambda e: _mask_in_factor(e, reduced))(body)
            new = Rewriter(lambda e: copies.load(e, reduced, d))(body)
            return None if new is body else ex.reduce("sum", node.axes, new, node.dtype)

        expr = Rewriter(visit)(d.expr)
        result.append(Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op))
    return result, set(copies.names.values())


class _Copies:
    """The padded copies, by their contents."""

    def __init__(self, made: list[Def]) -> None:
        self.names: dict[Expr, str] = {}
        self._made = made

    def load(self, e: Expr, reduced: frozenset[Axis], d: Def) -> Expr | None:
        """Return a masked value that `d` reads in windows, as a load of its copy."""
        if not isinstance(e, Select) or not isinstance(e.no, Const) or not _slides(e.yes, reduced):
            return None
        dims = _dims(e)
        if dims is None:
            return None
        last = dims[-1]  # along which memory lies
        apart = last if isinstance(last, _Window) and last.phases > 1 else None
        sizes = [x.dims(x is apart) if isinstance(x, _Window) else (x.extent,) for x in dims]
        serial = itertools.count()
        key = _masked_value(e, dims, [[numbered(next(serial), n) for n in pair] for pair in sizes])
        if key not in self.names:
            axes = [[Axis(f"u{next(serial)}", n) for n in pair] for pair in sizes]
            self.names[key] = f"{d.name}b{len(self._made)}"
            own, flat = _masked_value(e, dims, axes), tuple(a for pair in axes for a in pair)
            self._made.append(Def(name=self.names[key], axes=flat, expr=own, loc=d.loc, op=d.op))
        index: list[Index] = []
        for x in dims:
            index += x.index(x is apart) if isinstance(x, _Window) else [as_index(x)]
        return ex.load(self.names[key], index, e.dtype)


def _mask_in_factor(e: Expr, reduced: frozenset[Axis]) -> Expr | None:
    """select(c and d, a * b, 0) is select(c, a, 0) * select(d, b, 0), where c says that a's windows
    are inside and d that b's are; if only a is read in windows, it has the whole condition."""
    if not isinstance(e, Select) or not isinstance(e.no, Const) or e.no.value != 0:
        return None
    if not isinstance(e.yes, Apply) or e.yes.fn != "mul":
        return None
    left, right = e.yes.args
    if _slides(right, reduced) and _slides(left, reduced):
        return _masks_in_factors(e, left, right, reduced)
    if _slides(right, reduced):
        left, right = right, left
    if not _slides(left, reduced) or any(isinstance(a, Clamp) for a in _atoms(right)):
        return None
    inner = ex.select(e.cond, left, e.no)
    return ex.apply("mul", (_mask_in_factor(inner, reduced) or inner, right), e.dtype)


def _masks_in_factors(e: Select, left: Expr, right: Expr, reduced: frozenset[Axis]) -> Expr | None:
    factors: list[Expr] = []
    rest = parts_of(e.cond)
    for factor in (left, right):
        held = [a for a in _atoms(factor) if isinstance(a, Clamp)]
        bounds = {bound for a in held for bound in _bounds(a.num, a.extent)}
        mine = [p for p in rest if any(((fn, *pair) in bounds) for fn, pair in _asks(p))]
        rest = [p for p in rest if p not in mine]
        cond = joined(mine)
        inner = factor if cond is None else ex.select(cond, factor, e.no)
        factors.append(_mask_in_factor(inner, reduced) or inner)
    return None if rest else ex.apply("mul", factors, e.dtype)


def _asks(part: Expr) -> list[tuple[str, tuple[Index, Index]]]:
    return [(fn, pair) for fn in ("ge", "lt") if (pair := sides(part, fn)) is not None]


def _slides(e: Expr, reduced: frozenset[Axis]) -> bool:
    """Return whether a clamped index depends on axes of `reduced` and on others."""
    for a in _atoms(e):
        if isinstance(a, Clamp):
            axes = {x for x in deep_atoms(a.num) if isinstance(x, Axis)}
            if axes & reduced and axes - reduced:
                return True
    return False


def _atoms(e: Expr) -> Iterator[Atom]:
    """Yield the atoms that stand directly in the indices of an expression."""
    for node in ex.walk(e):
        for i in ex.indices(node):
            yield from sorted(i.atoms(), key=lambda a: isinstance(a, Clamp))


# ---- the dims of a copy -----------------------------------------------------------------------


def _dims(e: Select) -> list[_Window | Axis] | None:
    """Return the dims of a padded copy. None if the condition says more than that the windows are
    inside, or if other indices occur."""
    found: dict[_Window | Axis, None] = {}
    for a in _atoms(e.yes):
        if isinstance(a, Axis):
            found[a] = None
        elif isinstance(a, Clamp):
            window = _window(a)
            if window is None:
                return None
            found[window] = None
        elif any(isinstance(x, Axis | Gather) for x in deep_atoms(as_index(a))):
            return None
    windows = [x for x in found if isinstance(x, _Window)]
    moving = {a for w in windows for a in w.atom.num.atoms()}
    if moving & found.keys() or not _is_inside(e.cond, windows):
        return None
    return list(found)


def _window(a: Clamp) -> _Window | None:
    """Return the range of a sum of axes, each with a number as its step."""
    if any(isinstance(x, Axis | Gather) for x in deep_atoms(a.extent)):
        return None
    low = high = a.num
    steps: dict[Axis, int] = {}
    for atom in a.num.atoms():
        if not any(isinstance(x, Axis | Gather) for x in deep_atoms(as_index(atom))):
            continue  # a size
        rest = substitute(a.num, {atom: as_index(0)})
        step = exact_division(a.num - rest, as_index(atom))
        if not isinstance(atom, Axis) or step is None or (c := step.const) is None:
            return None
        steps[atom] = abs(c)
        ends = as_index(0), atom.extent - 1
        low = substitute(low, {atom: ends[c < 0]})
        high = substitute(high, {atom: ends[c > 0]})
    step = math.gcd(*steps.values()) or 1
    length = exact_division(high - low, as_index(step))
    if length is None:
        step, length = 1, high - low
    longest = max(steps, key=lambda a: a.extent.const or 1 << 40, default=None)
    phases = steps[longest] // step if longest is not None else 1
    return _Window(a, low, length + 1, step, phases)


Bound = tuple[str, Index, Index]


def _bounds(place: Index, extent: Index) -> list[Bound]:
    """Return the conditions for a place to be inside, without those that always hold."""
    found: list[Bound] = []
    if not nonnegative(place):
        found.append(("ge", place, as_index(0)))
    if not nonnegative(extent - place - 1):
        found.append(("lt", place, extent))
    return found


def _is_inside(cond: Expr, windows: Sequence[_Window]) -> bool:
    """Return whether the condition says that all windows are inside, and nothing else."""
    parts = [p for p in parts_of(cond) if decided(p) is not True]
    tested = {(fn, *pair) for p in parts for fn in ("ge", "lt") if (pair := sides(p, fn))}
    needed = {bound for w in windows for bound in _bounds(w.atom.num, w.atom.extent)}
    return tested == needed and len(tested) == len(parts)


def _masked_value(
    e: Select, dims: Sequence[_Window | Axis], axes: Sequence[Sequence[Axis]]
) -> Expr:
    """Return the masked value over these axes, one or two for each dim."""
    moved: dict[Atom, Index] = {}
    tests: list[F] = []
    for x, own in zip(dims, axes, strict=True):
        if isinstance(x, Axis):
            moved[x] = as_index(own[0])
            continue
        at, extent = x.place(own), x.atom.extent
        moved[x.atom] = clamp(at, extent)
        tests += [place(left).test(fn, place(right)) for fn, left, right in _bounds(at, extent)]
    value = F(Rewriter(atoms=moved)(e.yes))
    inside = all_of(tests)
    return value.e if inside is None else inside.where(value, F(e.no)).e
