"""Computes only the elements of a reduction that are read, or selects them out of it.

In:  definitions in normal form, the names that are stored anyway.
Out: definitions with fewer reads of a reduction at computed indices, for which it must be stored.

    l[n, v] = sum[k](x[n, k] * w[k, v])        n elements are read of l: these are computed
    y[n] = -l[n, t[n]]                    ->   p[n] = sum[k](x[n, k] * w[k, t[n]]);  y[n] = -p[n]

    own[i] = s[i, i]                           s is read as a whole, too: elements are selected
    r[i] = sum[j](s[i, j] > own[i])       ->   own[i] = sum[j](s[i, j] if j == i else 0)

Invariant: an element has one value. A float sum in another order differs in its last bits, and a
program may compare the two. So an element of a float sum gets a definition of its own only if no
other definition computes that element; otherwise it is selected out of the sum, or loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from lowtide.ir import dtypes
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Atom, Axis, Gather, Index, as_index, deep_atoms, numbered, the_axis
from lowtide.texpr.index_ranges import nonnegative
from lowtide.texpr.shifted_reads import axes_of, is_whole
from lowtide.texpr.sizes import points

FEW = 4  # elements are few if they are at most this fraction of all


def few_elements(
    defs: list[Def], stored: Set[str], hints: Mapping[str, int], limit: int
) -> list[Def]:
    """Return the definitions without elements that nothing reads; see the module's text. `limit`:
    the number of elements that may be stored instead."""
    return _FewElements(defs, stored, hints, limit).defs()


class _FewElements:
    def __init__(
        self, defs: list[Def], stored: Set[str], hints: Mapping[str, int], limit: int
    ) -> None:
        self._defs = defs
        self._hints = hints
        self._limit = limit
        self._every = {d.name: d for d in defs}
        self._made: dict[tuple[str, tuple[Index, ...]], str] = {}
        self._result: list[Def] = []
        large = {d.name for d in defs if points(d.axes, hints) > limit}
        self._parts: dict[str, list[Load]] = {}
        for name, found in _read_parts(defs).items():
            d = self._every[name]
            # two parts of a sum over pairs would read stored ones
            reads_pairs = not large.isdisjoint(load.source for load in ex.loads(d.expr))
            if name not in stored and not reads_pairs and isinstance(d.expr, Reduce):
                self._parts[name] = list(found.values())
        self._apart = {n for n, found in self._parts.items() if self._are_apart(n, found)}
        self._few = {n for n, found in self._parts.items() if self._are_few(n, found)}

    def defs(self) -> list[Def]:
        for d in self._defs:
            new = Rewriter(self._visit)(d.expr)
            self._result.append(Def(name=d.name, axes=d.axes, expr=new, loc=d.loc, op=d.op))
        return self._result

    def _visit(self, node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source not in self._parts:
            return None
        name, producer = node.source, self._every[node.source]
        if name not in self._apart and (name not in self._few or is_whole(node, producer)):
            return None
        key = (name, _canonical(node))
        if key not in self._made:
            part = self._part(self._fresh(f"{name}at{len(self._result)}"), producer, node)
            if part is None:
                return None
            self._made[key] = part.name
            self._result.append(part)
        return ex.load(self._made[key], [as_index(a) for a in axes_of(node)], node.dtype)

    def _fresh(self, name: str) -> str:
        """Return a name that no definition has. In a Program in normal form, parts have such
        names."""
        while name in self._every:
            name += "_"
        return name

    def _part(self, name: str, producer: Def, node: Load) -> Def | None:
        """Return the elements that a load reads; None if they are read from memory."""
        if not producer.is_rounded or self._is_all(producer.name):
            return _computed(name, producer, node)
        return None if self._is_needed_for(node) else _selected(name, producer, node)

    def _is_all(self, name: str) -> bool:
        """Return whether no other part of the value shares an element with a part."""
        return name in self._apart or len(self._parts[name]) == 1

    def _are_apart(self, name: str, parts: Sequence[Load]) -> bool:
        """Return whether several parts have one shape, and together are no larger than the
        whole."""
        d = self._every[name]
        shapes = {tuple(a.extent for a in axes_of(load)) for load in parts}
        total = len(parts) * points(axes_of(parts[0]), self._hints)
        if len(parts) == 1 or len(shapes) > 1 or total > points(d.axes, self._hints):
            return False
        return not d.is_rounded or _are_disjoint(parts)

    def _are_few(self, name: str, parts: Sequence[Load]) -> bool:
        """Return whether the elements that are read at other than plain axes are few, all parts
        together."""
        d = self._every[name]
        off = [points(axes_of(load), self._hints) for load in parts if not is_whole(load, d)]
        return sum(off) * FEW <= points(d.axes, self._hints)

    def _is_needed_for(self, node: Load) -> bool:
        """Return whether the index of the load is computed from the value that it reads. Then
        storing the value is as good, if it fits in memory."""
        if points(self._every[node.source].axes, self._hints) > self._limit:
            return False
        todo = [load.source for e in ex.gathered(node.index) for load in ex.loads(e)]
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name == node.source:
                return True
            if name not in seen and name in self._every:
                seen.add(name)
                todo += [load.source for load in ex.loads(self._every[name].expr)]
        return False


def _computed(name: str, producer: Def, node: Load) -> Def:
    """Return the elements of a reduction that one load reads."""
    assert isinstance(producer.expr, Reduce)
    fresh = {a: Axis(a.name, a.extent) for a in (*axes_of(node), *producer.expr.axes)}
    moved = {a: as_index(b) for a, b in fresh.items()}
    at = Rewriter(atoms=dict[Atom, Index](moved.items()))
    index = [at.index(i) for i in node.index]
    expr = at_indices(producer.expr, {**moved, **dict(zip(producer.axes, index, strict=True))})
    axes = tuple(fresh[a] for a in axes_of(node))
    return Def(name=name, axes=axes, expr=expr, loc=producer.loc, op=producer.op)


def _selected(name: str, producer: Def, node: Load) -> Def | None:
    """Return a formula for the elements that one load reads; None if each would be searched several
    times."""
    fresh = {a: Axis(a.name, a.extent) for a in axes_of(node)}
    at = Rewriter(atoms={a: as_index(b) for a, b in fresh.items()})
    index = [at.index(i) for i in node.index]
    plain: set[Axis] = set()
    sought: dict[Axis, Index] = {}
    for k, a in enumerate(producer.axes):
        own = the_axis(index[k])
        if a.extent.const == 1 or (own is not None and own.extent is a.extent and own not in plain):
            plain.update((own,) if own is not None else ())
        else:
            place = Axis(a.name, a.extent)
            sought[place], index[k] = index[k], as_index(place)
    if not sought or not plain.issuperset(fresh.values()):
        return None
    body: Expr = ex.load(producer.name, index, node.dtype)
    for place, i in sought.items():
        same = (ex.at(as_index(place), dtypes.i64), ex.at(i, dtypes.i64))
        body = ex.select(ex.apply("eq", same, dtypes.boolean), body, ex.const(0, node.dtype))
    expr = ex.reduce("sum", tuple(sought), body, node.dtype)
    axes = tuple(fresh[a] for a in axes_of(node))
    return Def(name=name, axes=axes, expr=expr, loc=producer.loc, op=producer.op)


def _are_disjoint(parts: Sequence[Load]) -> bool:
    """Return whether no two parts read the same element."""
    return all(_never_meet(a, b) for k, a in enumerate(parts) for b in parts[:k])


def _never_meet(a: Load, b: Load) -> bool:
    return any(_is_behind(i, j) or _is_behind(j, i) for i, j in zip(a.index, b.index, strict=True))


def _is_behind(i: Index, j: Index) -> bool:
    """Return whether each place that one index reaches is behind all those of the other."""
    start, other = (_from(x) for x in (i, j))
    if start is None or other is None:
        return False
    return nonnegative(start[0] - other[0] - other[1])


def _from(i: Index) -> tuple[Index, Index] | None:
    """Return the start and length of a run of places; None for other indices."""
    along = [a for a in i.atoms() if isinstance(a, Axis)][:1]
    start = i - as_index(along[0]) if along else i
    if any(isinstance(a, Axis | Gather) for a in deep_atoms(start)):
        return None
    return start, along[0].extent if along else as_index(1)


def _read_parts(defs: list[Def]) -> dict[str, dict[tuple[Index, ...], Load]]:
    """Return the parts of each definition that are read, each part once."""
    known = {d.name for d in defs}
    found: dict[str, dict[tuple[Index, ...], Load]] = {}
    for d in defs:
        for load in ex.loads(d.expr):
            if load.source in known:
                found.setdefault(load.source, {}).setdefault(_canonical(load), load)
    return found


def _canonical(node: Load) -> tuple[Index, ...]:
    """Return the index with axes that depend only on their order and extent."""
    names = {a: as_index(numbered(k, a.extent)) for k, a in enumerate(axes_of(node))}
    at = Rewriter(atoms=dict[Atom, Index](names.items()))
    return tuple(at.index(i) for i in node.index)
