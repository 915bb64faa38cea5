"""Inlines or stores values that are loaded at shifted, reversed or data-dependent indices.

In:  the definitions of a Program, likely sizes. Out: `OffAxes`, a rewrite that inlines such loads.

    y[i] = tanh(x[i])                 y is read at two places for each i. Computing it twice is
    z[i] = y[i + 1] - y[i]       ->   cheap, so z[i] = tanh(x[i + 1]) - tanh(x[i]). If y and what is
                                      inlined into it were costly, y would be stored

Invariant: a value that is larger than inputs and outputs together is not stored for this; a
value that only moves others (a padding, a shift) is always inlined.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import simplify, work
from lowtide.texpr.expr import Apply, Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, FloorDiv, Index, Mod, as_index, deep_atoms, the_axis
from lowtide.texpr.sizes import points

MOVED_NODES = 120  # an expression that is inlined at shifted indices has at most so many nodes
MOVED_WORK = 64  # … and at most so many operations over all the places that compute it
AGAIN_WORK = 32  # operations for each element, about the cost of storing and loading it
GATHER_WORK = 16  # of a load whose index divides, which is a gather


class OffAxes:
    """Inlines pointwise values that are read off their axes, at other than plain indices, unless
    the result grows too large or takes too long. `roots`: names that are stored anyway; `limit`:
    the most elements of a value that may be stored instead."""

    def __init__(
        self, defs: Mapping[str, Def], roots: Iterable[str], hints: Mapping[str, int], limit: int
    ) -> None:
        few = {n: d for n, d in defs.items() if points(d.axes, hints) <= limit}
        stored = {n for n in _costly_recomputations(defs) if n in few}
        stored.update(_often(defs, roots, stored, few.keys(), hints))
        self._defs = {n: d for n, d in defs.items() if n not in stored and _may_be_written_in(d)}
        self._written: dict[Load, Expr | None] = {}  # what each load became

    def __call__(self, expr: Expr) -> Expr:
        if all(self._visit(load) is None for load in ex.loads(expr)):
            return expr
        return simplify(Rewriter(self._visit)(expr))

    def _visit(self, node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in self._defs:
            return None
        if node not in self._written:
            self._written[node] = self._write(node)
        return self._written[node]

    def _write(self, node: Load) -> Expr | None:
        producer = self._defs[node.source]
        if is_whole(node, producer):
            return None
        moved = dict[Atom, Index](zip(producer.axes, node.index, strict=True))
        full = Rewriter(self._visit, moved)(producer.expr)
        return full if _is_short(full) else None


def is_costly_at(reads: Iterable[Load], d: Def, hints: Mapping[str, int]) -> bool:
    """Return whether inlining a pointwise value would compute each element several times, at a
    higher cost than storing it."""
    return _costs_much(_operations(d.expr), 0, reads, d, hints)


def _often(
    defs: Mapping[str, Def],
    roots: Iterable[str],
    stored: Set[str],
    few: Set[str],
    hints: Mapping[str, int],
) -> Iterator[str]:
    """Yield values to store, because their elements would be computed often. In a chain of shifts
    this is decided from the beginning: an inlined value is computed with its reader."""
    reads: dict[str, list[Load]] = {}
    anyway = set(roots)  # what is computed once in any case
    for d in defs.values():
        for load in set(ex.loads(d.expr)):
            if load.source in defs and is_whole(load, defs[load.source]):
                anyway.add(load.source)
            elif load.source in defs:
                reads.setdefault(load.source, []).append(load)
    operations: dict[str, int] = {}  # for one element of what may be written in
    for name, d in defs.items():
        if name in stored or not _may_be_written_in(d):
            continue
        ops = _operations(d.expr)
        ops += sum(operations.get(load.source, 0) for load in set(ex.loads(d.expr)))
        if name in few and _costs_much(ops, name in anyway, reads.get(name, ()), d, hints):
            yield name
        else:
            operations[name] = ops


def _costs_much(
    ops: int, times: int, reads: Iterable[Load], d: Def, hints: Mapping[str, int]
) -> bool:
    """Of a value that is computed so many times for each element, and at what reads it."""
    size = points(d.axes, hints)
    computed = times * size + sum(points(axes_of(load), hints) for load in reads)
    return ops * (computed - size) > AGAIN_WORK * size


def _operations(e: Expr) -> int:
    """Return the operations for one element; 0 if it only moves data."""
    if not any(isinstance(n, Apply) and ex.loads(n) for n in ex.walk(e)):
        return 0
    uneven = (load for load in set(ex.loads(e)) if any(map(_divides, load.index)))
    return work(e) + sum(GATHER_WORK for _ in uneven)


def _divides(i: Index) -> bool:
    return any(isinstance(a, FloorDiv | Mod) and _axes_in(a.num) for a in deep_atoms(i))


def _may_be_written_in(d: Def) -> bool:
    return not isinstance(d.expr, Reduce) and _is_short(d.expr)


def _is_short(expr: Expr) -> bool:
    return all(k < MOVED_NODES for k, _ in enumerate(ex.walk(expr)))


def _costly_recomputations(defs: Mapping[str, Def]) -> Iterator[str]:
    """Pointwise values that would be computed at each of many places: where a sum over a few terms
    is written out, say."""
    loads = {load for d in defs.values() for load in ex.loads(d.expr) if load.source in defs}
    places = Counter(x.source for x in loads if any(not _axes_in(i) for i in x.index))
    for name, count in places.items():
        d = defs[name]
        if not isinstance(d.expr, Reduce) and work(d.expr) * count > MOVED_WORK:
            yield name


def _axes_in(i: Index) -> bool:
    return any(isinstance(a, Axis) for a in deep_atoms(i))


def is_whole(node: Load, d: Def) -> bool:
    """Return whether the load reads at plain axes, each from one end to the other: `x[0, i]` does
    not read all of two rows."""
    if not ex.aligned(node):
        return False
    read = (the_axis(i) for i in node.index)
    pairs = zip(read, d.axes, strict=True)
    return all((a.extent if a else as_index(1)) is own.extent for a, own in pairs)


def axes_of(node: Load) -> tuple[Axis, ...]:
    """Return the axes on which the loaded element depends, in a fixed order."""
    return tuple(sorted(node.free, key=lambda a: a.key))
