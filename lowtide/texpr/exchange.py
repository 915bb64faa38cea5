"""Exchanges the order of two sums, if the sum over the other axis is already computed.

In:  definitions, and known sums.
Out: the definitions; a sum over j of products with a sum over c reads a known sum over j instead.

    o[i, c] = sum[j](p[i, j] * v[j, c])          known
    q[i, j] = sum[c](g[i, c] * v[j, c])
    d[i]    = sum[j](q[i, j] * p[i, j])     ->   d[i] = sum[c](g[i, c] * o[i, c])

The gradient of softmax(s) @ v needs d for each row; without the exchange, that takes another pass
over all pairs. It is done only for the weights p of a softmax (`texpr/softmax`), where rounding in
o is small compared with the largest v. If all p could be tiny, as in a kernel mean, o could vanish
where d does not. It is done only in f32 and f64, where o has at least the precision of q.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Apply, Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.formula import F
from lowtide.texpr.index import Axis, as_index, the_axis
from lowtide.texpr.softmax import has_weights

MOST_FACTORS = 8


@dataclass(slots=True)
class _Product:
    """Factors above and below the line, and the sign."""

    numerators: list[Expr] = field(default_factory=list[Expr])
    denominators: list[Expr] = field(default_factory=list[Expr])
    negative: bool = False


def exchanged(d: Def, defs: Mapping[str, Def], known: Iterable[Def]) -> Def:
    """Return the definition with its sums taken in the other order where that is less work."""
    sums = [s for s in known if s.name != d.name and _is_sum(s.expr)]

    def visit(node: Expr) -> Expr | None:
        if not isinstance(node, Reduce) or not _is_sum(node):
            return None
        product = _product(node.body, defs)
        for k, factor in enumerate(product.numerators):
            inner = defs.get(factor.source) if isinstance(factor, Load) else None
            if inner is None or not isinstance(inner.expr, Reduce) or not _is_sum(inner.expr):
                continue
            whole, axes = _with_inner(product, k, inner, defs)
            for s in sums:
                found = _read_from(s, whole, frozenset(node.axes), defs)
                if found is not None:
                    return ex.reduce("sum", axes, found, node.dtype)
        return None

    return Def(name=d.name, axes=d.axes, expr=Rewriter(visit)(d.expr), loc=d.loc, op=d.op)


def _is_sum(e: Expr) -> bool:
    return isinstance(e, Reduce) and e.fn == "sum" and e.dtype in (dtypes.f32, dtypes.f64)


def _product(e: Expr, defs: Mapping[str, Def]) -> _Product:
    """Return the factors of an expression, down to those that are no products."""
    found = _Product()

    def split(e: Expr, inverse: bool) -> None:
        if isinstance(e, Apply) and e.fn in ("mul", "div"):
            split(e.args[0], inverse)
            split(e.args[1], inverse != (e.fn == "div"))
        elif isinstance(e, Apply) and e.fn == "neg":
            found.negative = not found.negative
            split(e.args[0], inverse)
        elif (written := _written_out(e, defs)) is not None:
            split(written, inverse)
        else:
            (found.denominators if inverse else found.numerators).append(e)

    split(e, False)
    return found


def _written_out(e: Expr, defs: Mapping[str, Def]) -> Expr | None:
    """Return the expression that a load reads, if it is a view or a product, else None."""
    d = defs.get(e.source) if isinstance(e, Load) else None
    if d is None or not isinstance(e, Load):
        return None
    if isinstance(d.expr, Load) or (
        isinstance(d.expr, Apply) and d.expr.fn in ("mul", "div", "neg")
    ):
        return at_indices(d.expr, dict(zip(d.axes, e.index, strict=True)))
    return None


def _with_inner(
    product: _Product, k: int, inner: Def, defs: Mapping[str, Def]
) -> tuple[_Product, list[Axis]]:
    """Return the product with its factor k, a sum, replaced by the sum's body, and the sum's
    axes."""
    load, e = product.numerators[k], inner.expr
    assert isinstance(load, Load)
    assert isinstance(e, Reduce)
    fresh = {a: Axis(a.name, a.extent) for a in e.axes}
    moved = {a: as_index(b) for a, b in fresh.items()}
    moved |= dict(zip(inner.axes, load.index, strict=True))
    body = _product(at_indices(e.body, moved), defs)
    rest = [*product.numerators[:k], *product.numerators[k + 1 :]]
    denominators = [*product.denominators, *body.denominators]
    return _Product([*rest, *body.numerators], denominators, product.negative != body.negative), [
        *fresh.values()
    ]


def _read_from(
    s: Def, whole: _Product, reduced: frozenset[Axis], defs: Mapping[str, Def]
) -> Expr | None:
    """Return the product with those factors that `s` sums over `reduced` replaced by its value."""
    assert isinstance(s.expr, Reduce)
    own = _product(s.expr.body, defs)
    if len(own.numerators) + len(own.denominators) > MOST_FACTORS or len(s.expr.axes) != len(
        reduced
    ):
        return None
    if not has_weights(own.numerators, s.expr.axes, defs):
        return None
    for left, binding in _matches(own.numerators, whole.numerators, {}):
        for denominators, axes in _matches(own.denominators, whole.denominators, binding):
            if any(e.free & reduced for e in (*left, *denominators)):
                continue
            summed = [axes.get(a) for a in s.expr.axes]
            if not all(a in summed for a in reduced):
                continue
            places = [as_index(0) if a.extent.const == 1 else axes.get(a) for a in s.axes]
            if None in places or reduced & set(places):
                continue
            read = ex.load(s.name, [as_index(p) for p in places if p is not None], s.dtype)
            total = F(read)
            for e in left:
                total = total * F(e)
            for e in denominators:
                total = total / F(e)
            return (-total if own.negative != whole.negative else total).e
    return None


Binding = Mapping[Axis, Axis]


def _matches(
    wanted: Sequence[Expr], given: Sequence[Expr], binding: Binding
) -> Iterable[tuple[list[Expr], Binding]]:
    """Yield all ways to find the wanted factors among the given ones: the rest, and a renaming of
    axes."""
    if not wanted:
        yield list(given), binding
        return
    for k, e in enumerate(given):
        found = _same(wanted[0], e, binding)
        if found is not None:
            yield from _matches(wanted[1:], [*given[:k], *given[k + 1 :]], found)


def _same(a: Expr, b: Expr, binding: Binding) -> Binding | None:
    """Return the renaming of axes that makes `a` the same as `b`."""
    if type(a) is not type(b) or a.dtype is not b.dtype:
        return None
    if isinstance(a, Load) and isinstance(b, Load):
        if a.source != b.source:
            return None
        found = dict(binding)
        for i, j in zip(a.index, b.index, strict=True):
            mine, theirs = the_axis(i), the_axis(j)
            if mine is None or theirs is None:
                if i is not j:
                    return None
            elif mine.extent is not theirs.extent or found.setdefault(mine, theirs) is not theirs:
                return None
        return found if len(set(found.values())) == len(found) else None
    if isinstance(a, Apply) and isinstance(b, Apply) and a.fn == b.fn:
        found_or_none: Binding | None = binding
        for x, y in zip(a.args, b.args, strict=True):
            found_or_none = None if found_or_none is None else _same(x, y, found_or_none)
        return found_or_none
    return binding if a is b and not a.free else None
