"""Tables that a loop fills row by row from earlier rows: only rows are carried.

In: the closed definitions of a loop's body, and a tensor that the body writes. Out: the tensor
after the loop; its rows are a value per iteration, and the body's reads are delays of that value.

    for t in range(1, n):                          row[l, j]    = f(before[l, j])
        alpha[t] = f(alpha[t - 1])          ->     before[l, j] = row[l - 1, j] from alpha0[0, j]
    return alpha                                   alpha[r, j]  = row[r - 1, j] if r >= 1
                                                                  else alpha0[r, j]

Rows that no iteration has written yet are read as they were before the loop. An inner loop within
one row, `R[i, j] = f(R[i, j - 1], R[i - 1, j])` over j, carries the part of that row that it
writes, here one element, and reads other rows as they were before it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from lowtide.errors import Loc
from lowtide.specialise.lifting import invert
from lowtide.specialise.lifting.closing import Body
from lowtide.specialise.lifting.invert import Solution
from lowtide.specialise.lifting.match import NotLifted, assumed
from lowtide.specialise.lifting.updates import at_index, conjunction
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Val
from lowtide.texpr.conditions import parts_of, sides
from lowtide.texpr.expr import Def, Delay, Expr, Load, Rewriter, Select
from lowtide.texpr.index import Axis, Index, as_index, deep_atoms, the_axis
from lowtide.texpr.index_ranges import nonnegative, substitute


def carried(body: Body, name: Val, value: Val, start: Val, loc: Loc, why: str) -> Val | None:
    """Return the tensor `name` after the loop, None if it is no table of rows. Raises NotLifted if
    an iteration reads rows other than those of earlier ones."""
    axes = tuple(Axis(f"r{k}", as_index(size)) for k, size in enumerate(name.shape))
    places = tuple(map(as_index, axes))
    whole = assumed(_opened(body.element(value, places, ""), body), {})
    base = ex.load(name.name, [as_index(body.axis), *places], name.dtype)
    writes = _written(whole, base, body.axis, ())
    if not writes:
        return None
    first = writes[0].iteration
    if any(
        (s.target, s.step, s.width) != (first.target, first.step, first.width)
        for s in (w.iteration for w in writes)
    ):
        return None
    row = _row(first, axes)
    if row is None:
        return None
    fixed = _fixed(body, name.name, writes, axes)
    fixed.pop(row.dim, None)
    return _Table(body, name, start, row, fixed, loc, why).after(whole, axes, first)


def _opened(e: Expr, body: Body) -> Expr:
    """Return the selects that writes have made, down to the values that they choose."""
    if isinstance(e, Select):
        return ex.select(e.cond, _opened(e.yes, body), _opened(e.no, body))
    if isinstance(e, Load) and e.source in body.own:
        d = body.b.program.defs[e.source]
        if isinstance(d.expr, Load | Select):
            return _opened(at_indices(d.expr, dict(zip(d.axes, e.index, strict=True))), body)
    return e


@dataclass(frozen=True, slots=True)
class _Write:
    """In which iteration an element is written, and under which conditions."""

    iteration: Solution
    conditions: tuple[Expr, ...]


def _written(e: Expr, base: Expr, axis: Axis, conditions: tuple[Expr, ...]) -> list[_Write] | None:
    """Return the writes of an element; None if their iterations are unknown."""
    if e is base:
        return []
    if not isinstance(e, Select) or any(load is base for load in ex.loads(e.cond)):
        return None
    inside = (*conditions, *parts_of(e.cond))
    found, no = invert.solve(e.cond, axis), _written(e.no, base, axis, conditions)
    if found is not None:
        return None if no is None else [_Write(found, inside), *no]
    yes = _written(e.yes, base, axis, inside)
    return None if yes is None or no is None else [*yes, *no]


def _fixed(
    body: Body, name: str, writes: Sequence[_Write], axes: Sequence[Axis]
) -> dict[int, Index]:
    """Dims along which all iterations write at one place, and read there or surely elsewhere: by
    dim, the place."""
    found: dict[int, Index] | None = None
    for write in writes:
        mine = dict(_places(write.conditions, axes, body.axis))
        known = mine if found is None else found
        found = {k: at for k, at in known.items() if mine.get(k) is at}
    found = found or {}
    for d in body.b.program.defs.values():
        for load in ex.loads(d.expr):
            at = load.index[1:]
            if load.source == name and not all(the_axis(i) in d.axes for i in at):  # not all of it
                found = {k: i for k, i in found.items() if _are_apart(at[k], i) is not None}
    return found


def _are_apart(a: Index, b: Index) -> bool | None:
    """Return True if the indices are never equal, False if they always are, else None."""
    far = a - b
    if far.const == 0:
        return False
    return True if nonnegative(far - 1) or nonnegative(-far - 1) else None


def _places(
    conditions: Iterable[Expr], axes: Sequence[Axis], axis: Axis
) -> Iterator[tuple[int, Index]]:
    """Yield the dims whose place a condition fixes, with the place."""
    for part in conditions:
        equal = sides(part, "eq")
        if equal is None:
            continue
        for k, a in enumerate(axes):
            for sign in (1, -1):
                place = (equal[0] - equal[1]) * sign + as_index(a)
                if deep_atoms(place).keys().isdisjoint((*axes, axis)):
                    yield k, place


@dataclass(frozen=True, slots=True)
class _Row:
    """Iteration L writes what lies at `sign * (L - rest)` of dim `dim`."""

    dim: int
    sign: int
    rest: Index

    def of(self, iteration: Index) -> Index:
        return (iteration - self.rest) * self.sign

    def is_never(self, place: Index, trips: Index) -> bool:
        """Return whether surely no iteration writes the place."""
        writer = self.rest + place * self.sign
        return nonnegative(-writer - 1) or nonnegative(writer - trips)


def _row(s: Solution, axes: tuple[Axis, ...]) -> _Row | None:
    """Return the dim of which each iteration writes one row."""
    if s.step.const != 1 or s.width.const != 1 or s.offset is not None:
        return None
    used = [k for k, a in enumerate(axes) if a in deep_atoms(s.target)]
    for dim in used if len(used) == 1 else ():
        a = as_index(axes[dim])
        rest = substitute(s.target, {axes[dim]: as_index(0)})
        for sign in (1, -1):
            if s.target is rest + a * sign:
                return _Row(dim, sign, rest)
    return None


@dataclass(slots=True)
class _Table:
    body: Body
    name: Val
    start: Val
    row: _Row
    fixed: dict[int, Index]  # where all iterations are, along other dims
    loc: Loc
    why: str
    behind: dict[int, str] = field(default_factory=dict[int, str])  # delays, by how many steps

    def after(self, whole: Expr, axes: tuple[Axis, ...], s: Solution) -> Val:
        """Adds the rows and their delays; gives the table after the loop."""
        b, axis = self.body.b, self.body.axis
        at = {axes[k]: place for k, place in self.fixed.items()}
        mine = at_indices(whole, {**at, axes[self.row.dim]: self.row.of(as_index(axis))})
        mine = self._reading(self._chosen(assumed(mine, {})))
        others = [axes[k] for k in self._others(len(axes))]

        def element(idx: tuple[Index, ...]) -> Expr:
            return at_indices(mine, {axis: idx[0], **dict(zip(others, idx[1:], strict=True))})

        for n, d in list(b.program.defs.items()):
            if n in self.body.own:
                with contextlib.suppress(NotLifted):  # the table as a whole; who reads it, fails
                    new = self._reading(self._chosen(d.expr))
                    if new is not d.expr:
                        b.program.defs[n] = Def(name=n, axes=d.axes, expr=new, loc=d.loc, op=d.op)
        shape = (axis.extent, *(a.extent for a in others))
        rows = b.tensor(shape, self.name.dtype, element)
        self._delays(rows)

        def final(r: tuple[Index, ...]) -> Expr:
            moved = dict(zip(axes, r, strict=True))
            at = b.clamp(at_index(s.target, axes, r), axis.extent)
            valid = s.valid(b)
            here = [b.apply("eq", b.at(r[k]), b.at(place)) for k, place in self.fixed.items()]
            if valid is not None:
                here.append(at_indices(valid, moved))
            written, valid = b.load(rows, (at, *self._rest(r))), conjunction(b, here)
            if valid is None:
                return written
            return b.select(valid, written, b.load(self.start, r))

        return b.tensor(self.name.shape, self.name.dtype, final)

    def _others(self, count: int) -> list[int]:
        """Return the dims that rows have."""
        return [k for k in range(count) if k != self.row.dim and k not in self.fixed]

    def _rest(self, index: Sequence[Index]) -> list[Index]:
        return [index[k] for k in self._others(len(index))]

    def _chosen(self, e: Expr) -> Expr:
        """Replace loads of the table between two writes. The own row has the value of the first
        write; other rows have the table's."""
        defs = self.body.b.program.defs

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.source not in self.body.own:
                return None
            d = defs[node.source]
            is_choice = isinstance(d.expr, Load | Select)
            if not is_choice or all(x.source != self.name.name for x in ex.loads(d.expr)):
                return None
            here = at_indices(d.expr, dict(zip(d.axes, node.index, strict=True)))
            return self._chosen(assumed(here, {}))

        return Rewriter(visit)(e)

    def _reading(self, e: Expr) -> Expr:
        """Replace loads of the table by loads of rows that were written a fixed number of
        iterations before."""

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.source != self.name.name:
                return None
            iteration, *at = node.index
            steps = (self.row.of(iteration) - at[self.row.dim]) * self.row.sign
            apart = [_are_apart(at[k], place) for k, place in self.fixed.items()]
            if True in apart or self.row.is_never(at[self.row.dim], self.body.axis.extent):
                return ex.load(self.start.name, at, node.dtype)
            if steps.const is None or None in apart:
                raise NotLifted("an iteration reads other rows than those at a fixed distance")
            if steps.const <= 0:
                return ex.load(self.start.name, at, node.dtype)
            delay = self.behind.setdefault(steps.const, f"{self.name.name}_{steps.const}")
            return ex.load(delay, [iteration, *self._rest(at)], node.dtype)

        return Rewriter(visit)(e)

    def _delays(self, rows: Val) -> None:
        """Define delays, each a step behind the one before, down to the farthest that is read."""
        b, source = self.body.b, rows
        size = as_index(self.name.shape[self.row.dim])
        for k in range(1, max(self.behind, default=0) + 1):
            place = self.row.of(as_index(-k))
            if not nonnegative(place) or not nonnegative(size - 1 - place):
                raise NotLifted("the first iterations read rows that may not exist")

            def first(idx: tuple[Index, ...], place: Index = place) -> Expr:
                full = {**self.fixed, self.row.dim: place}
                full.update(zip(self._others(len(self.name.shape)), idx, strict=True))
                return b.load(self.start, [full[k] for k in range(len(full))])

            made = Val(self.behind.get(k, f"{self.name.name}_{k}"), rows.shape, rows.dtype)
            b.program.delays[made.name] = Delay(
                name=made.name,
                source=source.name,
                init=b.tensor(rows.shape[1:], rows.dtype, first).name,
                shape=tuple(map(as_index, rows.shape)),
                dtype=rows.dtype,
                loc=self.loc,
                why=self.why,
            )
            if k < max(self.behind):
                source = b.tensor(made.shape, made.dtype, lambda idx, m=made: b.load(m, idx))
