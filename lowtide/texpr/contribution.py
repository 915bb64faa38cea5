"""The contribution of a load to the cotangent of the tensor that it reads.

In: cotangents at the points of a loop nest, and the index of the load. Out: an expression over the
tensor's own axes, or a scatter if the index comes from data.

    x[i, j] read at (i, j) of i, j, c     sum[c](value)              over x's own axes
    x[[n[i]], j]                          the places n[i] and values, to be added up one by one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.adjoint import Inverse, invert
from lowtide.texpr.algebra import at_indices, simplify
from lowtide.texpr.bounds import is_positive_part
from lowtide.texpr.build import Unsupported
from lowtide.texpr.conditions import joined, only_place, parts_of, where_not_zero
from lowtide.texpr.conditions import within as is_within
from lowtide.texpr.expr import Def, Expr, Load, Rewriter, Select
from lowtide.texpr.formula import F, all_of, is_number
from lowtide.texpr.index import Atom, Axis, Clamp, Gather, Index, as_index, deep_atoms, product
from lowtide.texpr.index_ranges import substitute

MOST_MASKED = 64  # a scatter of at most so many values is a sum with a mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """`values` are added to the gradient of `input` at the places `index`, counted row by row."""

    input: str
    values: str
    index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """At each point of `scope`, `value` belongs to the element at `index`.

    `user` names the definition that it comes from; `dropping`: see `adjoint.invert`."""

    user: str
    scope: tuple[Axis, ...]
    index: tuple[Index, ...]
    value: Expr
    dropping: bool

    @property
    def is_sparse(self) -> bool:
        """Return whether the data decide to which element the contribution goes."""
        return any(isinstance(a, Gather) for i in self.index for a in deep_atoms(i))

    @property
    def is_to_be_summed(self) -> bool:
        """Return whether several points along an axis go to one element, whatever the data are."""
        named = self._named
        return any(a not in named and a.extent.const != 1 for a in self.scope)

    @property
    def places(self) -> Index:
        """Return the number of places with a value, after the sums along other axes."""
        named = self._named
        return product(a.extent for a in self.scope if a in named)

    @property
    def _named(self) -> set[Axis]:
        return {a for i in self.index for a in ex.at(i, dtypes.i64).free}

    def as_mask(self, y: tuple[Axis, ...]) -> bool:
        """Return whether each element receives at most one point, or only a few."""
        try:
            inverse = self.inverse(y)
        except Unsupported:
            return False
        return not inverse.data or _is_few(inverse.rest)

    def inverse(self, y: tuple[Axis, ...]) -> Inverse:
        """Return the points at which element y is read; raises Unsupported."""
        return invert(self.index, y, self.scope, self.dropping, where_not_zero(self.value))

    def through(self, d: Def, seed: Load, handed: Contribution) -> Contribution:
        """Return the contribution, passed on by a definition of which it is the cotangent.

        `handed`: what the definition passes on for its whole cotangent `seed`.
        """
        scope = handed.scope
        inner = tuple(a for a in scope if a not in d.axes)
        fresh = {a: Axis(a.name, a.extent) for a in inner}
        moved = {a: as_index(b) for a, b in fresh.items()}
        moved |= dict(zip(d.axes, self.index, strict=True))
        own = ex.cast(self.value, d.dtype)

        def visit(node: Expr) -> Expr | None:
            return own if isinstance(node, Load) and node.source == seed.source else None

        atoms: dict[Atom, Index] = {**moved}
        turn = Rewriter(atoms=atoms)

        return Contribution(
            user=f"{self.user} {d.name}",
            scope=(*self.scope, *fresh.values()),
            index=tuple(turn.index(i) for i in handed.index),
            value=Rewriter(visit)(at_indices(handed.value, moved)),
            dropping=self.dropping or handed.dropping,
        )


def accumulator(dtype: DType, values: Sequence[Expr]) -> DType:
    """Return the dtype in which contributions are summed."""
    wide = any(v.dtype is dtypes.f64 for v in values) or dtype is dtypes.f64
    return dtypes.f64 if wide else dtypes.f32


def placed(p: Contribution, y: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], Expr]:
    """Return the contribution at element y, and the axes that it is to be summed over."""
    inverse = p.inverse(y)
    value = F(at_indices(p.value, dict(inverse.at)))
    conditions = list(inverse.conditions)
    for rhs, e in inverse.data:
        conditions.append(F(ex.cast(e, dtypes.i64)).equals(F(ex.at(rhs, dtypes.i64))))
    held = all_of(conditions)
    return _at_only_places(inverse.rest, (value if held is None else held.or_zero(value)).e)


def _at_only_places(rest: tuple[Axis, ...], value: Expr) -> tuple[tuple[Axis, ...], Expr]:
    """Drop the axes along which the value is zero except at one place: there is nothing to sum.

    sum[k](0 if k == 0 else (g[k] if k == 1 else 0))        g[1]
    """
    known = where_not_zero(value) if rest else []
    at = {a: place for a in rest if (place := only_place(a, known)) is not None}
    if not at:
        return rest, value
    return tuple(a for a in rest if a not in at), simplify(at_indices(value, at))


def without_clamps(p: Contribution) -> list[Contribution]:
    """x[max(0, i - 3)] as x[i - 3] where i >= 3, and x[0] where it is not: the element that is read
    is then one that can be solved for."""
    if p.dropping or p.is_sparse:
        return [p]
    known = where_not_zero(p.value)
    for a in [a for i in p.index for a in deep_atoms(i) if isinstance(a, Clamp)]:
        inside = set(p.scope) & {*deep_atoms(as_index(a))}
        if not inside or not is_positive_part(a) or is_within(a.num, a.extent, known):
            continue
        low, high = (
            replace(p, index=tuple(substitute(i, {a: to}) for i in p.index), value=value)
            for to, value in (
                (as_index(0), _where(-a.num - 1, p.value)),
                (a.num, _where(a.num, p.value)),
            )
        )
        low = replace(low, user=f"{p.user} {a}")  # a sum of its own: it may be of one element
        return [*without_clamps(low), *without_clamps(high)]
    return [p]


def _where(index: Index, value: Expr) -> Expr:
    """Return the value where index >= 0, else 0."""
    zero = ex.at(as_index(0), dtypes.i64)
    cond = ex.apply("ge", (ex.at(index, dtypes.i64), zero), dtypes.boolean)
    return ex.select(cond, value, ex.const(0, value.dtype))


def summed_terms(parts: Sequence[Contribution], y: tuple[Axis, ...], within: DType) -> list[Expr]:
    """Return the sums that make up a cotangent. Sums of one definition over the same axes are
    joined."""
    groups: dict[tuple[str, tuple[Axis, ...]], F] = {}
    for p in [q for part in parts for q in without_clamps(part)]:
        if is_number(p.value, 0):
            continue
        rest, body = placed(p, y)
        part = F(ex.cast(body, within))
        key = (p.user, rest)
        groups[key] = groups[key] + part if key in groups else part
    return [_summed(rest, body.e, within) for (_, rest), body in groups.items()]


def _is_few(rest: tuple[Axis, ...]) -> bool:
    count = product(a.extent for a in rest).const
    return count is not None and count <= MOST_MASKED


def _summed(rest: tuple[Axis, ...], body: Expr, within: DType) -> Expr:
    if not rest:
        return body
    if isinstance(body, Select) and is_number(body.no, 0):  # the element is tested once
        conds = parts_of(body.cond)
        outer = joined([c for c in conds if not c.free & frozenset(rest)])
        if outer is not None:
            inner = joined([c for c in conds if c.free & frozenset(rest)])
            value = body.yes if inner is None else ex.select(inner, body.yes, body.no)
            return ex.select(outer, _summed(rest, value, within), body.no)
    fresh = {a: Axis(a.name, a.extent) for a in rest}
    moved = at_indices(body, {a: as_index(b) for a, b in fresh.items()})
    return ex.reduce("sum", [fresh[a] for a in rest], moved, within)
