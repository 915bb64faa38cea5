"""The formula of a whole tensor after a write into part of it.

In: a tensor `root`, a view of it (its index map), new values at the view's coordinates. Out: a new
value of root's shape.

    out[:, 0] = v       t[i, j] = v[i] if j == 0 else out[i, j]
    out[a:b] += v       t[i, j] = out[i, j] + v[i - a, j] if a <= i < b else out[i, j]

Invariant: under the condition of the select, a read of `root` at the written element is a load
at plain axes, so that loops recognise an accumulation.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Final

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.conditions import parts_of
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import Axis, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import floordiv, mod, nonnegative
from lowtide.texpr.pullback import OF_THEIR_OWN

MOST_WRITTEN_OUT: Final = 3000  # definitions, each wherever it is read


def index_map(b: Builder, view: Val, root: Val) -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
    """Return the axes of the view and the index into root at these. Raises Unsupported for other
    views."""
    if view.name == root.name:
        axes = tuple(b.axis(s) for s in root.shape)
        return axes, tuple(map(as_index, axes))
    d = b.program.defs[view.name]
    node = _where_taken(b, d.expr)
    while isinstance(node, Load) and node.source != root.name:
        inner = b.program.defs.get(node.source)
        if inner is None:
            break
        expr = at_indices(inner.expr, dict(zip(inner.axes, node.index, strict=True)))
        node = _where_taken(b, expr)
    if not isinstance(node, Load) or node.source != root.name:
        raise Unsupported("writes through a view that copies")
    return d.axes, node.index


def _where_taken(b: Builder, e: Expr) -> Expr:
    """Return the value of an expression on the branch that is traced. Writes are dropped
    elsewhere."""
    known = set[Expr]() if b.mask is None else {*parts_of(b.mask)}
    while isinstance(e, Select) and known.issuperset(parts_of(e.cond)):
        e = e.yes
    return e


def depends(defs: Mapping[str, Def], expr: Expr, name: str, known: dict[str, bool]) -> bool:
    """Return whether an expression reads the value `name`, directly or through definitions."""
    for load in ex.loads(expr):
        if load.source == name:
            return True
        d = defs.get(load.source)
        if d is None:
            continue
        if load.source not in known:
            known[load.source] = depends(defs, d.expr, name, known)
        if known[load.source]:
            return True
    return False


def expanded(b: Builder, expr: Expr, name: str) -> Expr:
    """Return the expression with pointwise definitions inlined that read `name`. Raises Unsupported
    if there are too many: each of many writes may read several elements of the one before."""
    defs, known, left = b.program.defs, dict[str, bool](), MOST_WRITTEN_OUT

    def visit(node: Expr) -> Expr | None:
        nonlocal left
        d = defs.get(node.source) if isinstance(node, Load) else None
        if d is None or not isinstance(node, Load) or node.source == name:
            return None
        if not depends(defs, d.expr, name, known) or isinstance(d.expr, Reduce):
            return None
        if b.records and d.op in OF_THEIR_OWN:
            return None
        left -= 1
        if left < 0:
            raise Unsupported("too many writes that read each other")
        return Rewriter(visit)(at_indices(d.expr, dict(zip(d.axes, node.index, strict=True))))

    return Rewriter(visit)(expr)


def inlined_views(defs: Mapping[str, Def], expr: Expr, own: Container[str]) -> Expr:
    """Return a load traced through definitions (of `own`) that only load."""
    while isinstance(expr, Load) and expr.source in own:
        d = defs[expr.source]
        if not isinstance(d.expr, Load):
            break
        expr = at_indices(d.expr, dict(zip(d.axes, expr.index, strict=True)))
    return expr


def conjunction(b: Builder, parts: Sequence[Expr]) -> Expr | None:
    """Return the conjunction; None for no condition."""
    total: Expr | None = None
    for part in parts:
        total = part if total is None else b.apply("and", total, part)
    return total


def write(b: Builder, root: Val, view: Val, value: Val) -> Val:
    """Return `root` after a write of `value` into the view. `value`: shape of the view, dtype of
    root."""
    axes, places = index_map(b, view, root)

    def body(r: tuple[Index, ...]) -> Expr:
        conditions, at = inverse(b, axes, [b.freed(i) for i in places], r, root.shape)
        here = tuple(at_index(i, axes, at) for i in places)
        new = expanded(b, b.load(value, at), root.name)
        new = _in_place(new, root, here, r)
        cond = conjunction(b, conditions)
        return new if cond is None else b.select(cond, new, b.load(root, r))

    return b.tensor(root.shape, root.dtype, body)


def at_index(i: Index, axes: Sequence[Axis], at: Sequence[Index]) -> Index:
    """Return an index with axes replaced."""
    moved = at_indices(ex.at(i, dtypes.i64), dict(zip(axes, at, strict=True)))
    assert isinstance(moved, ex.At)
    return moved.index


def _in_place(new: Expr, root: Val, here: tuple[Index, ...], r: tuple[Index, ...]) -> Expr:
    def is_here(index: tuple[Index, ...]) -> bool:
        places = zip(index, here, root.shape, strict=True)
        return all(i is j or as_index(size).const == 1 for i, j, size in places)

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source == root.name and is_here(node.index):
            return ex.load(root.name, r, node.dtype)
        return None

    return Rewriter(visit)(new)


def inverse(
    b: Builder,
    axes: Sequence[Axis],
    places: Sequence[Index],
    r: Sequence[Index],
    shape: Sequence[Index | int],
) -> tuple[list[Expr], list[Index]]:
    """Conditions on `r` to lie in the view, and its coordinates there, held in bounds."""
    found: dict[Axis, Index] = {}
    conditions: list[Expr] = []
    for place, at, size in zip(places, r, shape, strict=True):
        mine = [a for a in axes if a in deep_atoms(place)]
        if not mine:
            if as_index(size).const != 1:
                conditions.append(b.apply("eq", b.at(at), b.at(place)))
            continue
        (a, *more) = mine
        start = at_index(place, [a], [as_index(0)])
        step = at_index(place, [a], [as_index(1)]) - start
        whole = start + step * as_index(a)
        if more or a in found or whole is not place or step.const is None or step.const < 1:
            raise Unsupported("writes through a view that cannot be inverted")
        found[a] = _along(b, at - start, step, a.extent, as_index(size), conditions)
    for a in axes:
        if a not in found and a.extent.const != 1:
            raise Unsupported("writes through an expanded view")
    return conditions, [found.get(a, as_index(0)) for a in axes]


def _along(
    b: Builder, offset: Index, step: Index, extent: Index, size: Index, conditions: list[Expr]
) -> Index:
    """Return the coordinate `offset // step` of a slice, and add the conditions that it lies
    within."""
    if extent.const == 1 and size.const != 1:
        conditions.append(b.apply("eq", b.at(offset), b.at(0)))
        return as_index(0)
    if not nonnegative(offset):
        conditions.append(b.apply("ge", b.at(offset), b.at(0)))
    if not nonnegative(extent * step - 1 - offset):
        conditions.append(b.apply("lt", b.at(offset), b.at(extent * step)))
    if step.const == 1:
        return b.clamp(offset, extent)
    held = b.clamp(offset, extent * step)
    rest = mod(held, step)
    if rest.const != 0:
        conditions.append(b.apply("eq", b.at(rest), b.at(0)))
    return floordiv(held, step)
