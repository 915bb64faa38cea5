"""Splits a sum over several products into one sum per product, for tensor cores.

In, out: a normalised `Program`. Invariant: each new sum is one product of factors that depend on
the result's rows, and factors that depend on its columns.

    dh[i, j] = sum[k](a[i, k] * u[j, k]          p0[i, j] = sum[k](a[i, k] * u[j, k])
                    + b[i, k] * v[j, k])    ->   p1[i, j] = sum[k](b[i, k] * v[j, k])
                                                 dh[i, j] = p0[i, j] + p1[i, j]

Only the order of addition changes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, factors
from lowtide.texpr.expr import Apply, Def, Expr, Program, Reduce
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.sizes import likely

LEAST_EXTENT = 16  # of rows, columns and terms: what the units for products take at least
MOST_TERMS = 8


def products_apart(program: Program, hints: Mapping[str, int]) -> Program:
    """See the module's text; `hints` are likely sizes."""
    defs: dict[str, Def] = {}
    for d in program.defs.values():
        for made in _apart(d, program, hints):
            defs[made.name] = made
    return dataclasses.replace(program, defs=defs)


def _apart(d: Def, program: Program, hints: Mapping[str, int]) -> Iterator[Def]:
    """Yield the definition, preceded by its sums."""
    e = d.expr
    if not isinstance(e, Reduce) or e.fn != "sum" or not e.dtype.is_float:
        yield d
        return
    terms = list(_terms(e.body))
    rest = [a for a in (*d.axes, *e.axes) if likely(a.extent, hints) >= LEAST_EXTENT]
    if not 2 <= len(terms) <= MOST_TERMS or not all(_is_product(x, rest, e.axes) for x in terms):
        yield d
        return
    loads: list[Expr] = []
    for k, term in enumerate(terms):
        name = f"{d.name}_term{k}"
        if name in program.defs or name in program.inputs:
            raise AssertionError(f"{name} is taken")
        fresh = {a: Axis(a.name, a.extent) for a in (*d.axes, *e.axes)}
        body = at_indices(term, {a: as_index(b) for a, b in fresh.items()})
        axes = tuple(fresh[a] for a in d.axes)
        total = ex.reduce("sum", [fresh[a] for a in e.axes], body, e.dtype)
        yield dataclasses.replace(d, name=name, axes=axes, expr=total)
        places = [as_index(a if a.extent.const != 1 else 0) for a in d.axes]
        loads.append(ex.load(name, places, e.dtype))
    whole = functools.reduce(lambda x, y: ex.apply("add", (x, y), e.dtype), loads)
    yield dataclasses.replace(d, expr=whole)


def _terms(e: Expr) -> Iterator[Expr]:
    """Yield the terms of a sum; of a difference, the negative."""
    if isinstance(e, Apply) and e.fn in ("add", "sub"):
        left, right = e.args
        yield from _terms(left)
        for term in _terms(right):
            yield term if e.fn == "add" else _negative(term)
    else:
        yield e


def _negative(e: Expr) -> Expr:
    """Of a product, one of its factors."""
    if isinstance(e, Apply) and e.fn == "mul":
        first, second = e.args
        return ex.apply("mul", (_negative(first), second), e.dtype)
    return ex.apply("neg", (e,), e.dtype)


def _is_product(e: Expr, large: Sequence[Axis], reduced: Sequence[Axis]) -> bool:
    """Return whether each factor belongs to the rows or to the columns."""
    parts = [f for f in factors(e) if f.free]
    kept = [a for a in large if a not in reduced]
    summed = [a for a in large if a in reduced]
    return any(
        not any(i in f.free and j in f.free for f in parts)
        and all(any(a in f.free and k in f.free for f in parts) for a in (i, j))
        for i in kept
        for j in kept
        if i is not j
        for k in summed
    )
