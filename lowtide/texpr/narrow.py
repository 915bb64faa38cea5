"""Narrows a sum to the terms whose condition can hold.

In:  a sum whose terms are 0 unless an index lies in a short window, or divides evenly.
Out: the sum over the window, or over the indices that divide.

    sum[i:n](select(0 <= r - 2*i < 3, x[i] * w[clamp(r - 2*i, 3)], 0))
    -> sum[k:2](select(0 <= r//2 - k < n and 2*k + r%2 < 3,
                       x[clamp(r//2 - k, n)] * w[clamp(2*k + r%2, 3)], 0))

    sum[k:3](select((y - k) % 2 == 0 and ..., g[clamp((y - k) // 2, n)] * w[k], 0))
    -> sum[m:2](select(2*m + y%2 < 3 and ..., g[clamp(y//2 - m, n)] * w[clamp(2*m + y%2, 3)], 0))

The terms left out are 0, so only the order of addition changes. The gradient of a strided
convolution, and a transposed convolution, then have no idle terms. `phases` makes the divided index
an axis of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.conditions import (
    decided,
    freed,
    in_lowest_terms,
    joined,
    one_choice,
    parts_of,
    sides,
)
from lowtide.texpr.expr import Const, Expr, Reduce, Rewriter, Select
from lowtide.texpr.index import Atom, Axis, Clamp, Index, Mod, as_index, deep_atoms, exact_division
from lowtide.texpr.index_ranges import clamp, floordiv, mod, nonnegative, substitute

STEPS = 8  # strides up to this


@dataclass(frozen=True, slots=True)
class _Found:
    """The axis `a` is `value`, an index over `axis` instead, which replaces `conditions`.
    In a window, `shift` is what `place` was."""

    a: Axis
    axis: Axis
    value: Index
    conditions: tuple[Expr, ...]
    place: Index | None = None
    shift: Index | None = None


def narrowed(node: Reduce) -> Expr | None:
    """Return the sum over fewer terms, None where all of them may count."""
    result: Expr | None = None
    left: Expr = node
    while isinstance(left, Reduce) and left.fn == "sum" and left.dtype.is_float:
        body = Rewriter(one_choice)(left.body)
        if not isinstance(body, Select) or not isinstance(body.no, Const) or body.no.value != 0:
            break
        if any(True for x in ex.loads(body) for _ in ex.gathered(x.index)):
            break
        parts = freed(parts_of(body.cond))
        if any(_comparison(p) is None for p in parts):
            break
        found = (
            _by_equality(parts, left.axes)
            or _by_window(parts, left.axes)
            or _by_remainder(parts, left.axes)
        )
        if found is None:
            break
        result = left = _over_range(left, body, parts, found)
    return result


def _over_range(node: Reduce, body: Select, parts: Sequence[Expr], found: _Found) -> Expr:
    a, value = found.a, found.value
    held = clamp(value, a.extent)

    def moved(i: Index) -> Index:
        if found.place is not None and found.shift is not None:
            for sign in (1, -1):
                rest = i - found.place * sign
                if a not in deep_atoms(rest):
                    return rest + found.shift * sign
        return substitute(i, {a: value})

    atoms: dict[Atom, Index] = {
        x: clamp(moved(x.num), moved(x.extent))
        for i in ex.indices_in(body.yes)
        for x in deep_atoms(i)
        if isinstance(x, Clamp) and a in deep_atoms(x.num)
    }
    yes = Rewriter(atoms={**atoms, a: held})(body.yes)
    conditions = [_moved_part(p, moved) for p in parts if p not in found.conditions]
    if held is not value:
        at, low = ex.at(value, dtypes.i64), ex.at(as_index(0), dtypes.i64)
        conditions.append(ex.apply("ge", (at, low), dtypes.boolean))
        conditions.append(ex.apply("lt", (at, ex.at(a.extent, dtypes.i64)), dtypes.boolean))
    cond = joined([in_lowest_terms(p) for p in conditions if decided(p) is not True])
    whole = yes if cond is None else ex.select(cond, yes, body.no)
    axes = [found.axis if x is a else x for x in node.axes]
    axes = [x for x in axes if x.extent.const != 1]
    return ex.reduce("sum", axes, whole, node.dtype) if axes else whole


def _moved_part(part: Expr, moved: Callable[[Index], Index]) -> Expr:
    fn = _comparison(part)
    pair = sides(part, fn) if fn is not None else None
    assert pair is not None
    assert fn is not None
    return ex.apply(fn, [ex.at(moved(i), dtypes.i64) for i in pair], part.dtype)


def _linear(i: Index, a: Axis) -> tuple[Index, int] | None:
    """Return (rest, factor) with i == rest + factor * a, for a number as the factor."""
    rest = substitute(i, {a: as_index(0)})
    step = exact_division(i - rest, as_index(a)) if i is not rest else None
    if step is None or (c := step.const) is None or a in deep_atoms(rest):
        return None
    return rest, c


def _shorter(a: Axis, count: int) -> bool:
    n = a.extent.const
    return n is None or count < n


def _by_equality(parts: Sequence[Expr], axes: Sequence[Axis]) -> _Found | None:
    """rest ± a == 0: there is only one term."""
    for part in parts:
        pair = sides(part, "eq")
        for a in axes if pair is not None else ():
            assert pair is not None
            found = _linear(pair[0] - pair[1], a)
            if found is not None and found[1] in (1, -1):
                return _Found(a, Axis(a.name, as_index(1)), found[0] * -found[1], (part,))
    return None


def _by_window(parts: Sequence[Expr], axes: Sequence[Axis]) -> _Found | None:
    """0 <= e < K, e = rest ± S*a, for a number K: a is rest // S, a few more or less."""
    above = [(s[0] - s[1], p) for p in parts if (s := sides(p, "ge")) is not None]
    below = [(s[1] - s[0] - 1, p) for p in parts if (s := sides(p, "lt")) is not None]
    for e, low in above:
        for slack, high in below:
            last = (e + slack).const  # e == last at the most
            if last is None or last < 0:
                continue
            for a in axes:
                found = _linear(e, a)
                if found is None or not 1 <= abs(found[1]) <= STEPS:
                    continue
                rest, step = found[0], abs(found[1])
                count = last // step + 1
                if not _shorter(a, count):
                    continue
                axis = Axis(a.name, as_index(count))
                k = as_index(axis) if count > 1 else as_index(0)
                whole = floordiv(rest, as_index(step))
                value = whole - k if found[1] < 0 else k - whole
                shift = k * step + mod(rest, as_index(step))
                room_left = as_index(last) - shift
                conditions = (low,) if not nonnegative(room_left) else (low, high)
                return _Found(a, axis, value, conditions, e, shift)
    return None


def _comparison(part: Expr) -> str | None:
    return next((fn for fn in ("ge", "lt", "eq") if sides(part, fn) is not None), None)


def _by_remainder(parts: Sequence[Expr], axes: Sequence[Axis]) -> _Found | None:
    """num % S == 0, with a in num: a is S*m + r, where r follows from the rest of num."""
    for part in parts:
        atom = remainder(part)
        if atom is None or (size := atom.den.const) is None or size > STEPS:
            continue
        for a in axes:
            found = _linear(atom.num, a)
            inverse = None if found is None else _inverse(found[1], size)
            n = a.extent.const
            if found is None or inverse is None or n is None:
                continue
            axis = Axis(a.name, as_index(-(-n // size)))
            m = as_index(axis) if n > size else as_index(0)
            value = m * size + mod(found[0] * -inverse, atom.den)
            return _Found(a, axis, value, (part,))
    return None


def remainder(part: Expr) -> Mod | None:
    """Return the remainder that the conditions say is 0."""
    pair = sides(part, "eq")
    if pair is None or pair[1].const != 0 or len(pair[0].terms) != 1:
        return None
    (monomial, factor) = pair[0].terms[0]
    atom = monomial[0] if len(monomial) == 1 and factor == 1 else None
    return atom if isinstance(atom, Mod) else None


def _inverse(factor: int, size: int) -> int | None:
    return next((k for k in range(1, size) if factor * k % size == 1), None)
