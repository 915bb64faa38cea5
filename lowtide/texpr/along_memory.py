"""Orders and joins the axes of sums and stored values as the memory that they read.

In, out: definitions in normal form. `strides`: of the inputs; `fixed`: outputs, whose elements stay
in their order; `added_to`: definitions that others add to, which stay as they are.

    x: [n, 4*g + k, h, w], where 4*g + k lies side by side (channels last)

    t[n, g, k, h, w] = f(x[n, 4*g + k, h, w])          t[n, h, w, c] = f(x[n, c, h, w])
    m[n, g] = sum[k, h, w](t[n, g, k, h, w])       ->  m_c[n, c] = sum[h, w](t[n, h, w, c])
                                                       m[n, g]   = sum[k](m_c[n, 4*g + k])

A short k alone fills no vector. If both g and k are summed over, or both are axes of the result,
they become one axis of the definition itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, Index, as_index, row_major, the_axis
from lowtide.texpr.index_ranges import floordiv, mod, substitute
from lowtide.texpr.sizes import points
from lowtide.texpr.split import SUMMED, WIDTH

LEAST = 64  # points that are summed up besides: for fewer a second sum is no gain

Strides = Mapping[str, tuple[Index, ...]]


class _Lane(NamedTuple):
    """An axis, or what two make up: `whole` is `outer * extent of inner + inner`."""

    whole: Axis
    outer: Axis
    inner: Axis

    @property
    def is_cut(self) -> bool:
        return self.outer is not self.inner

    @property
    def axes(self) -> frozenset[Axis]:
        return frozenset((self.outer, self.inner))

    @property
    def parts(self) -> dict[Axis, Index]:
        """Return the index of each of the two axes, as a part of the whole axis."""
        width, place = self.inner.extent, as_index(self.whole)
        return {self.outer: floordiv(place, width), self.inner: mod(place, width)}

    @property
    def place(self) -> Index:
        """Return the whole axis as an index over the two."""
        return as_index(self.outer) * self.inner.extent + as_index(self.inner)


class _Dims(NamedTuple):
    """The new layout of a definition: its old dims in their new order. If `width` is given, the
    extent of the second of the `pair`, the two dims of the pair have become one."""

    order: tuple[int, ...]
    pair: tuple[int, int]
    width: Index | None


def along_memory(
    defs: Sequence[Def],
    strides: Strides,
    hints: Mapping[str, int],
    fixed: Set[str],
    added_to: Set[str],
) -> list[Def]:
    """Return the definitions, in which sums over contiguous channels have one axis for all of them.
    Stored values have that axis last. `hints`: likely sizes."""
    result: list[Def] = []
    laid: dict[str, _Dims] = {}
    known = dict(strides)
    for given in defs:
        d = _reading(given, laid)
        untouched = d.name in added_to or d.adds_to
        for made in [d] if untouched else _placed(d, known, hints, fixed, laid):
            known[made.name] = row_major(made.shape)
            result.append(made)
    return result


def _placed(
    d: Def, strides: Strides, hints: Mapping[str, int], fixed: Set[str], laid: dict[str, _Dims]
) -> list[Def]:
    if isinstance(d.expr, Reduce):
        lane = _lane_of_sum(d, d.expr, strides, hints)
        return [d] if lane is None else _summed(d, d.expr, lane, laid)
    lane = None if d.name in fixed else _lane_of_value(d, strides)
    return [d] if lane is None else [_stored(d, lane, laid)]


# ---- where lanes go ----------------------------------------------------------------------------


def _lane_of_sum(d: Def, e: Reduce, strides: Strides, hints: Mapping[str, int]) -> _Lane | None:
    """Return two summed axes that can be merged: every load is contiguous along both."""
    if e.fn not in SUMMED or e.dtype.name in ("bf16", "f16"):
        return None
    for load in ex.loads(e.body):
        lane = _lane_of(load, strides)
        if lane is None or not lane.is_cut or not _are_one_in(d.axes, lane):
            continue
        rest = [a for a in e.axes if a not in lane.axes]
        streams = [x for x in ex.loads(e.body) if x.free.issuperset(rest)]
        if load in streams and points(rest, hints) >= LEAST and _contiguous(streams, lane, strides):
            return lane
    return None


def _lane_of_value(d: Def, strides: Strides) -> _Lane | None:
    """Return the axis, or the two axes, along which the loads of each point are contiguous."""
    own = frozenset(a for a in d.axes if a.extent.const != 1)
    streams = [load for load in ex.loads(d.expr) if load.free == own]
    for load in streams:
        lane = _lane_of(load, strides)
        if lane is not None and _contiguous(streams, lane, strides):
            is_so = not lane.is_cut and lane.whole is next(a for a in d.axes[::-1] if a in own)
            return None if is_so else lane
    return None


def _lane_of(load: Load, strides: Strides) -> _Lane | None:
    for i, step in zip(load.index, strides.get(load.source, ()), strict=False):
        if step.const != 1:
            continue
        if (axis := the_axis(i)) is not None:
            return _Lane(axis, axis, axis)
        axes = [a for a in i.atoms() if isinstance(a, Axis)]
        for outer, inner in itertools.permutations(axes, 2):
            whole = Axis(outer.name, outer.extent * inner.extent)
            lane = _Lane(whole, outer, inner)
            if (inner.extent.const or WIDTH) < WIDTH and i is lane.place:
                return lane
    return None


def _are_one_in(axes: Sequence[Axis], lane: _Lane) -> bool:
    """Return whether the axes can be one axis of a result whose elements then lie as before."""
    at = [k for k, a in enumerate(axes) if a in lane.axes]
    return len(at) < 2 or (at[1] == at[0] + 1 and axes[at[0]] is lane.outer)


def _contiguous(loads: Sequence[Load], lane: _Lane, strides: Strides) -> bool:
    return all(_is_contiguous(load, lane, strides) for load in loads)


def _is_contiguous(load: Load, lane: _Lane, strides: Strides) -> bool:
    """Return whether the load walks through contiguous memory along the whole axis, or does not
    depend on it."""
    if load.free.isdisjoint(lane.axes):
        return True
    place = as_index(lane.whole)
    parts: dict[Atom, Index] = {**lane.parts} if lane.is_cut else {}
    return any(
        step.const == 1 and substitute(i, parts) is place
        for i, step in zip(load.index, strides.get(load.source, ()), strict=False)
    )


# ---- definitions by them -----------------------------------------------------------------------


def _summed(d: Def, e: Reduce, lane: _Lane, laid: dict[str, _Dims]) -> list[Def]:
    body = at_indices(e.body, lane.parts)
    rest = [a for a in e.axes if a not in lane.axes]
    kept = [a for a in d.axes if a in lane.axes]
    if not kept:
        return [_made(d, d.name, d.axes, ex.reduce(e.fn, (*rest, lane.whole), body, e.dtype))]
    expr = ex.reduce(e.fn, rest, body, e.dtype)
    if len(kept) == 2:
        k = d.axes.index(lane.outer)
        order = tuple(n for n, a in enumerate(d.axes) if a is not lane.inner)
        laid[d.name] = _Dims(order, (k, k + 1), lane.inner.extent)
        axes = [lane.whole if a is lane.outer else a for a in d.axes if a is not lane.inner]
        return [_made(d, d.name, axes, expr)]
    (stays,) = kept
    (goes,) = lane.axes - {stays}
    axes = [lane.whole if a is stays else a for a in d.axes if a.extent.const != 1]
    sums = _made(d, f"{d.name}_whole", axes, expr)
    place = [lane.place if a is lane.whole else as_index(a) for a in axes]
    of_them = ex.reduce(e.fn, (goes,), ex.load(sums.name, place, e.dtype), e.dtype)
    return [sums, _made(d, d.name, d.axes, of_them)]


def _stored(d: Def, lane: _Lane, laid: dict[str, _Dims]) -> Def:
    """Return the value with the lane as its last axis."""
    at = (d.axes.index(lane.outer), d.axes.index(lane.inner))
    others = tuple(n for n in range(len(d.axes)) if n not in at)
    laid[d.name] = _Dims((*others, at[0]), at, lane.inner.extent if lane.is_cut else None)
    expr = at_indices(d.expr, lane.parts) if lane.is_cut else d.expr
    return _made(d, d.name, [*(d.axes[n] for n in others), lane.whole], expr)


def _made(d: Def, name: str, axes: Sequence[Axis], expr: Expr) -> Def:
    return Def(name=name, axes=tuple(axes), expr=expr, loc=d.loc, op=d.op)


def _reading(d: Def, laid: Mapping[str, _Dims]) -> Def:
    """Return the definition with loads changed to the new layouts."""

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or (dims := laid.get(node.source)) is None:
            return None
        index = list(node.index)
        if dims.width is not None:
            outer, inner = dims.pair
            index[outer] = index[outer] * dims.width + index[inner]
        return ex.load(node.source, [index[n] for n in dims.order], node.dtype)

    return _made(d, d.name, d.axes, Rewriter(visit)(d.expr)) if laid else d
