"""Computes a sum that depends on the remainder of an axis for each remainder by itself.

In:  a sum that divides axes it does not sum over, each by one small number.
Out: a definition with two axes instead of one, and an expression that reads it.

    y: sum[m:2](g[clamp(y // 2 - m, n)] * w[clamp(2*m + y % 2, 3)])
    ->
    p[v:2, u] = sum[m:2](g[clamp(u - m, n)] * w[clamp(2*m + v, 3)])        y: p[y % 2, y // 2]

No index is divided along the lanes, and a row of a transposed convolution reads contiguous memory.
The last u may belong to no y: its loads are clamped, and its value is not read.
"""

from __future__ import annotations

from lowtide.texpr import expr as ex
from lowtide.texpr.conditions import in_lowest_terms, joined, parts_of
from lowtide.texpr.expr import Def, Expr, Reduce, Rewriter, Select
from lowtide.texpr.index import Atom, Axis, Clamp, Index, as_index, deep_atoms, exact_division
from lowtide.texpr.index_ranges import clamp, floordiv, mod, substitute
from lowtide.texpr.narrow import STEPS
from lowtide.texpr.split_axis import divisors


def in_phases(d: Def, node: Reduce, name: str) -> tuple[Def, Expr] | None:
    """Return the sum by phases, as a definition of this name, and the values that `d` reads of it.
    None if it has no divisions, or if some would remain."""
    own = ex.ordered_axes(node, d.axes)
    found = {a: by for a in own if (by := _divisor(node, a)) is not None}
    if not found:
        return None
    phases = {a: Axis(f"{a.name}p", as_index(by)) for a, by in found.items()}
    lines = {a: Axis(a.name, floordiv(a.extent + (by - 1), by)) for a, by in found.items()}
    for a, by in found.items():
        exact = exact_division(a.extent, as_index(by)) is not None
        node = _cut(node, a, as_index(lines[a]) * by + as_index(phases[a]), exact)
    if any(divisors(ex.indices_in(node), u) for u in lines.values()):
        return None
    whole = [a for a in own if a not in found]
    index = [as_index(a) for a in whole]
    index += [mod(as_index(a), by) for a, by in found.items()]
    index += [floordiv(as_index(a), by) for a, by in found.items()]
    axes = (*whole, *phases.values(), *lines.values())
    made = Def(name=name, axes=axes, expr=node, loc=d.loc, op=d.op)
    return made, ex.load(name, index, node.dtype)


def _divisor(e: Expr, a: Axis) -> int | None:
    """By which number the axis is divided, if it is one."""
    found = divisors(ex.indices_in(e), a)
    size = found[0].const if len(found) == 1 else None
    return size if size is not None and 2 <= size <= STEPS else None


def _cut(node: Reduce, a: Axis, value: Index, exact: bool) -> Reduce:
    """Return the sum with the axis replaced by one that may go beyond the end, unless `exact`.
    Loads beyond the end are clamped if they are not yet."""
    atoms: dict[Atom, Index] = {
        x: clamp(substitute(x.num, {a: value}), x.extent)
        for i in ex.indices_in(node)
        for x in deep_atoms(i)
        if isinstance(x, Clamp) and a in deep_atoms(x.num)
    }
    exactly = Rewriter(atoms={**atoms, a: value})
    held = exactly if exact else Rewriter(atoms={**atoms, a: clamp(value, a.extent)})
    body = node.body
    if isinstance(body, Select):
        cond = joined([in_lowest_terms(p) for p in parts_of(exactly(body.cond))])
        assert cond is not None
        body = ex.select(cond, held(body.yes), held(body.no))
    else:
        body = held(body)
    return ex.reduce(node.fn, node.axes, body, node.dtype)
