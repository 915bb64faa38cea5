"""Fusion: groups definitions that share a kernel.

In:  a normalised `Program`.
Out: groups in an order in which they can run; each group becomes one kernel.
Invariant: the axes of a group's definitions are unified, so a value of the group is loaded at
its own axes. In one tile of the group's `common` axes, each definition needs only those parts of
the others that lie in the same tile.

    t[i, j] = (a[i] - b[j])**2           one group: both reductions load t at the same pair of
    r[i]    = min[j1](t[i, j1])     ->   axes, neither is used inside, common axes {i, j};
    c[j]    = min[i1](t[i1, j])          t is written into both and computed once
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Load, Program, Reduce
from lowtide.texpr.index import Axis, Gather, Index, as_index, deep_atoms, the_axis
from lowtide.texpr.library import Product
from lowtide.texpr.normalise import INLINE_NODES, inline
from lowtide.texpr.sizes import elements, elements_stored
from lowtide.tile.axes import (
    common_axes,
    consumed,
    is_long,
    own_axes,
    points,
    reduced_axes,
    sources,
    with_axes,
)
from lowtide.tile.items import cost, memory_strides
from lowtide.tile.merge_profit import Limits, keeps_freedom, large_axes, leaves_tasks, pays

INLINE_COST: Final = 200  # operations: a shared value that costs more, written out, is stored
MOST_READ: Final = 2  # a shared value computed from more tensors of its own size is stored
RECOMPUTED: Final = "again"  # the ending of the name of a value that a second kernel computes anew

Pattern = tuple[Axis, ...] | None


@dataclass(frozen=True, eq=False)
class Group:
    """Definitions of one kernel, by name, with unified axes.

    `epilogue`: single values computed from the group's own results once these are complete."""

    defs: Mapping[str, Def]
    epilogue: Mapping[str, Def] = field(default_factory=dict[str, Def])

    @functools.cached_property
    def sources(self) -> frozenset[str]:
        """Return the names that the group reads and does not define."""
        return frozenset(s for d in self.defs.values() for s in sources(d) if s not in self.defs)

    @functools.cached_property
    def patterns(self) -> Mapping[str, Pattern]:
        """The axes at which it reads each value, if its reads agree but for where they begin."""
        found: dict[str, Pattern] = {}
        for d in self.defs.values():
            for load in ex.loads(d.expr):
                walked = [_walked(i) for i in load.index if not _is_fixed(i)]
                axes = tuple(a for a in walked if a is not None)
                if len(axes) < len(walked) or found.setdefault(load.source, axes) != axes:
                    found[load.source] = None
        return found

    def all_sources(self) -> set[str]:
        """Return the names that must lie in memory before the group runs, those of its epilogue
        included."""
        return {*self.sources, *(s for d in self.epilogue.values() for s in sources(d))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """A Program, its normal form, and which definitions of that share a kernel. `by_library`: the
    products that the library does; `products`: those that it could do."""

    program: Program
    normal: Program
    groups: Sequence[Group]
    by_library: Set[str] = frozenset()
    products: Mapping[str, Product] = field(default_factory=dict[str, Product])

    @property
    def stored(self) -> set[str]:
        """The values that lie in memory: outputs, checks, and what a group reads of others."""
        read = (g.all_sources() for g in self.groups)
        return {*self.normal.outputs, *self.normal.checks}.union(*read)


def group(
    program: Program,
    hints: Mapping[str, int],
    threads: int,
    independent: bool = False,
    once: Set[str] = frozenset(),
    alone: Set[str] = frozenset(),
) -> list[Group]:
    """Merge groups greedily: first where nothing is lost or values of pairs would have to be
    stored, then wherever possible. `independent`: a task keeps nothing for the next one. `once`:
    values that no second kernel may compute. `alone`: values that share no kernel."""
    roots = set(program.outputs) | set(program.checks)
    kept = roots.union(*(sources(program.defs[n]) for n in alone))
    limits = _limits(program, kept, 2 * threads, hints, independent)
    shared = _shared(program, kept, limits, hints)
    groups = [Group({d.name: d}) for d in program.defs.values() if d.name not in shared]
    for careful in (True, False):
        groups = _in_order(_merge_all(groups, shared, hints, careful, alone), shared)
    groups = _recomputed(groups, program, shared, roots | once | alone, hints)
    full = [
        Group({n: _inlined(g.defs[n], shared) for n in _program_order(g, program)}) for g in groups
    ]
    return _with_epilogues(full, independent)


def _merge_all(
    groups: list[Group], shared: Shared, hints: Mapping[str, int], careful: bool, alone: Set[str]
) -> list[Group]:
    """Return the groups in order, each merged with as many earlier ones as possible."""
    done: list[Group] = []
    for new in groups:
        for earlier in reversed(list(done)):
            if not alone.isdisjoint((*earlier.defs, *new.defs)):
                continue
            if not _meets(earlier, new, shared):
                continue
            if _between(earlier, new, done, shared) or _between(new, earlier, done, shared):
                continue
            merged = _merged(earlier, new, shared, hints, careful)
            if merged is not None:
                done.remove(earlier)
                new = merged
        done.append(new)
    return done


def _program_order(g: Group, program: Program) -> list[str]:
    """Members in the order of the program; copies come first, for all may read them."""
    copies = [n for n in g.defs if n not in program.defs]
    return [*copies, *(n for n in program.defs if n in g.defs)]


def _recomputed(
    groups: list[Group],
    program: Program,
    shared: Shared,
    roots: set[str],
    hints: Mapping[str, int],
) -> list[Group]:
    """Recompute a value of pairs in a second kernel that reads it, instead of storing it.

    This is for values larger than all inputs and outputs together, if the copy fits the reader's
    kernel.
    """
    made = {n: d for g in groups for n, d in g.defs.items()}
    result: list[Group] = []
    for g in groups:
        for name in sorted(_needs(g, shared) - set(g.defs)):
            d = made.get(name)
            if d is None or name in roots or not isinstance(d.expr, Reduce):
                continue
            if (
                elements(d.shape, hints) <= shared.limits.stored
                or len(large_axes(own_axes(d), hints)) < 2
            ):
                continue
            fresh = name + RECOMPUTED
            copy = Group({fresh: Def(name=fresh, axes=d.axes, expr=d.expr, loc=d.loc, op=d.op)})
            defs = {n: _reading(_inlined(m, shared), name, fresh) for n, m in g.defs.items()}
            merged = _merged(copy, Group(defs), shared, hints, careful=False)
            if merged is not None:
                g = merged
        result.append(g)
    return result


def _reading(d: Def, old: str, new: str) -> Def:
    """Return the definition with loads of one value replaced by loads of another."""
    return Def(name=d.name, axes=d.axes, expr=ex.reading(d.expr, {old: new}), loc=d.loc, op=d.op)


def _with_epilogues(groups: list[Group], independent: bool) -> list[Group]:
    """Merge a group of single values into the earlier group that it reads: mean = sum / count.

    `independent`: only if both are one tile.
    """
    result: list[Group] = []
    for g in groups:
        single = all(
            not (own_axes(d) or isinstance(d.expr, Reduce) or d.expr.free or d.adds_to)
            for d in g.defs.values()
        )
        made = {n: k for k, r in enumerate(result) for n in (*r.defs, *r.epilogue)}
        feeding = {made[s] for s in g.sources if s in made}
        if independent and any(own_axes(d) for k in feeding for d in result[k].defs.values()):
            single = False
        if single and len(feeding) == 1:
            k = feeding.pop()
            result[k] = Group(result[k].defs, {**result[k].epilogue, **g.defs})
        else:
            result.append(g)
    return result


class Shared(dict[str, Def]):
    """Pointwise values of several users: written into each user once the groups are known.

    `written` caches definitions with all of these written in, `needs` the names that groups then
    read."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.written: dict[Def, Def] = {}
        self.needs: dict[Group, frozenset[str]] = {}


def _limits(
    program: Program, roots: set[str], tasks: int, hints: Mapping[str, int], independent: bool
) -> Limits:
    stored = elements_stored(program, roots, hints)
    large = (d for d in program.defs.values() if elements(d.shape, hints) > stored)
    long = [d.name for d in large if is_long(d, hints)]
    return Limits(
        tasks=tasks,
        stored=stored,
        long=frozenset((*long, *(n + RECOMPUTED for n in long))),
        independent=independent,
        strides=memory_strides(program.inputs, program.defs),
    )


def _shared(program: Program, roots: set[str], limits: Limits, hints: Mapping[str, int]) -> Shared:
    found = Shared(limits)
    loads = [load for d in program.defs.values() for load in ex.loads(d.expr)]
    moved = {load.source for load in loads if not ex.aligned(load)}  # a padded copy
    for d in program.defs.values():
        if d.name in roots or d.name in moved or isinstance(d.expr, Reduce):
            continue
        if sum(1 for _ in ex.walk(d.expr)) > INLINE_NODES:
            continue
        if elements(d.shape, hints) <= limits.stored and _is_dear(d, found, hints):
            continue
        found[d.name] = d
    return found


def _is_dear(d: Def, shared: Shared, hints: Mapping[str, int]) -> bool:
    """Return whether reading the value is cheaper than recomputing it where it is used."""
    expr = _inlined(d, shared).expr
    large = {load for load in ex.loads(expr) if points(load.free, hints) == points(d.axes, hints)}
    return len(large) > MOST_READ or cost(expr) > INLINE_COST


def _inlined(d: Def, shared: Shared) -> Def:
    found = shared.written.get(d)
    if found is None:
        found = shared.written[d] = _written(d, shared)
    return found


def _written(d: Def, shared: Shared) -> Def:
    expr = d.expr
    while any(load.source in shared for load in ex.loads(expr)):
        expr = inline(expr, shared)
    return Def(name=d.name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)


def _reached(d: Def, shared: Shared) -> tuple[Load, ...]:
    """Loads of a definition, seen through shared values, at the definition's own axes."""
    return ex.loads(_inlined(d, shared).expr)


def _meets(a: Group, b: Group, shared: Shared) -> bool:
    """Return whether one group reads the other, or both read the same values."""
    read_a = _needs(a, shared) | a.sources
    read_b = _needs(b, shared) | b.sources
    return bool(read_b & a.defs.keys() or read_a & b.defs.keys() or read_a & read_b)


def _needs(g: Group, shared: Shared) -> frozenset[str]:
    found = shared.needs.get(g)
    if found is None:
        read = (sources(_inlined(d, shared)) for d in g.defs.values())
        found = shared.needs[g] = frozenset[str]().union(*read)
    return found


def _between(a: Group, b: Group, groups: list[Group], shared: Shared) -> bool:
    """Return whether a third group needs `a` and is needed by `b`. A merge would then close a
    cycle."""
    reach = set(a.defs)
    left = [g for g in groups if g is not a and g is not b]
    while grown := [g for g in left if not reach.isdisjoint(_needs(g, shared))]:
        for g in grown:
            reach |= set(g.defs)
            left.remove(g)
            if _needs(b, shared) & g.defs.keys():
                return True
    return False


def _in_order(groups: list[Group], shared: Shared) -> list[Group]:
    left = list(groups)
    done: list[Group] = []
    waiting = {n for g in left for n in g.defs}
    while left:
        ready = next(g for g in left if not (_needs(g, shared) - set(g.defs)) & waiting)
        left.remove(ready)
        done.append(ready)
        waiting -= set(ready.defs)
    return done


# ---- one merge ------------------------------------------------------------------------------


def _merged(
    first: Group,
    second: Group,
    shared: Shared,
    hints: Mapping[str, int],
    careful: bool,
) -> Group | None:
    own, theirs = ({n: _inlined(d, shared) for n, d in g.defs.items()} for g in (first, second))
    renaming = _alignment(first, second, shared, by_sources=True)
    if renaming is not None and _reduces_inside({**own, **_outlines(theirs, renaming)}):
        renaming = _alignment(first, second, shared, by_sources=False)
    if renaming is None:
        return None
    outlines = {**own, **_outlines(theirs, renaming)}
    if _reduces_inside(outlines):
        return None
    read = consumed(outlines)
    common = common_axes(outlines, read)
    if not common or not leaves_tasks(outlines, read, common, hints):
        return None
    before = [own, {n: with_axes(d, renaming) for n, d in theirs.items()}]
    full = {**before[0], **before[1]}
    if not shared.limits.independent and any(d.adds_to for d in full.values()):
        return None  # its tasks own columns: see `axes.without_races`
    if not _loads_at_own_axes(full):
        return None
    if not pays(before, common, shared.limits, hints):
        return None
    pairs = [shared[n] for n in first.sources & second.sources if n in shared]
    if careful and not keeps_freedom(before, pairs, common, hints):
        return None
    moved = {n: with_axes(d, renaming) for n, d in second.defs.items()}
    shared.written.update((moved[n], before[1][n]) for n in moved)
    return Group({**first.defs, **moved})


def _outlines(defs: Mapping[str, Def], renaming: Mapping[Axis, Axis]) -> dict[str, Def]:
    """Return the definitions over other axes, with unchanged bodies: only to ask about axes."""
    found: dict[str, Def] = {}
    for n, d in defs.items():
        e, axes = d.expr, tuple(renaming.get(a, a) for a in d.axes)
        if isinstance(e, Reduce):
            e = ex.reduce(e.fn, [renaming.get(a, a) for a in e.axes], e.body, e.dtype)
        found[n] = Def(name=n, axes=axes, expr=e, loc=d.loc, op=d.op)
    return found


def _reduces_inside(defs: Mapping[str, Def]) -> bool:
    """Return whether a value would be reduced within a sweep over the very axis that it reduces.

    `out[i, c] = sum[j](exp(s[i, j]) * k[j, c])` with `s[i, j] = sum[c](q[i, c] * k[j, c])`: one
    tile of c needs s, and s needs all of c. s is too large to be stored, so these c are not one
    axis.
    """
    for d in defs.values():
        own = set(own_axes(d))
        todo, seen = [d.name], {d.name}
        while todo:
            for name in (sources(defs[todo.pop()]) & defs.keys()) - seen:
                seen.add(name)
                todo.append(name)
                if set(reduced_axes(defs[name])) & own and set(own_axes(defs[name])) - own:
                    return True
    return False


def _loads_at_own_axes(defs: Mapping[str, Def]) -> bool:
    for d in defs.values():
        for load in ex.loads(d.expr):
            producer = defs.get(load.source)
            if producer is None:
                continue
            for i, a in zip(load.index, producer.axes, strict=True):
                if a.extent.const != 1 and the_axis(i) is not a:
                    return False
    return True


def _alignment(
    first: Group, second: Group, shared: Shared, by_sources: bool
) -> dict[Axis, Axis] | None:
    """Return the axis of `second` for each axis of `first`; None if the uses do not line up.
    `by_sources`: axes are also the same where both groups read one value along them."""
    renaming: dict[Axis, Axis] = {}

    def link(mine: Axis, theirs: Axis) -> bool:
        if mine.extent is not theirs.extent:
            return False
        if mine in renaming:
            return renaming[mine] is theirs
        if theirs in renaming.values():
            return False
        renaming[mine] = theirs
        return True

    for user, used, swap in ((second, first, False), (first, second, True)):
        for d in user.defs.values():
            for load in _reached(d, shared):
                if load.source not in used.defs:
                    continue
                if not ex.aligned(load) or load.source == d.adds_to:
                    return None  # what is added to must be there before the first program adds
                for i, a in zip(load.index, used.defs[load.source].axes, strict=True):
                    b = the_axis(i)
                    if b is not None and not (link(a, b) if swap else link(b, a)):
                        return None
    for source in sorted(first.sources & second.sources) if by_sources else ():
        mine, theirs = second.patterns[source], first.patterns[source]
        if mine is None or theirs is None or len(mine) != len(theirs):
            continue
        before = dict(renaming)
        if not all(link(a, b) for a, b in zip(mine, theirs, strict=True)):
            renaming.clear()
            renaming.update(before)
    return {**renaming, **_out_of_the_way(second, renaming)}


def _out_of_the_way(second: Group, renaming: Mapping[Axis, Axis]) -> dict[Axis, Axis]:
    """New axes for those of `second` that another one of it becomes.

    a @ b - b @ a: both sums are over the same [i, j]; if the second's k becomes i, for both then
    read a[i, ...], its own i is another axis from then on."""
    axes = (a for d in second.defs.values() for a in (*d.axes, *reduced_axes(d)))
    taken = set(renaming.values()) - renaming.keys()
    return {a: Axis(a.name, a.extent) for a in dict.fromkeys(axes) if a in taken}


def _walked(i: Index) -> Axis | None:
    """Return the axis of `axis + start`."""
    along = [a for a in i.atoms() if isinstance(a, Axis)]
    return along[0] if len(along) == 1 and _is_fixed(i - as_index(along[0])) else None


def _is_fixed(i: Index) -> bool:
    return not any(isinstance(a, Axis | Gather) for a in deep_atoms(i))
