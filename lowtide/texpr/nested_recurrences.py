"""Nests recurrences: finds the outer loop of a cycle of delays, and the loops within its steps.

In:  a Program whose definitions form cycles through delays.
Out: its cycles, and the Program in which the definitions of a cycle have the cycle's step as their
     first axis. `inner`: delays within one step, which are inner loops.

    delay d'[l, t] = d[l-1, t] from e[t]        loop t    delay d'[l] = d[l-1] from e[t]
    delay r'[t, j] = r[t-1, j] from g[j]   ->             d[l] = x[t, l] + min(d'[l], r'[l + 1])
    d[l, t] = x[t, l] + min(d'[l, t],                     r[j] = 0 if j < 1 else d[j - 1]
                            r'[t, l + 1])
    r[t, j] = 0 if j < 1 else d[j - 1, t]

The outer loop's axis is a plain index in every load between values of the cycle, except in its own
delays. A step then needs only its own values and those of earlier steps. (Karp, Miller and Winograd
1967 find loop nests of recurrence equations this way.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Delay, Expr, Load, Program, Rewriter
from lowtide.texpr.index import Index, as_index, the_axis

_T = TypeVar("_T")


@dataclass(slots=True)
class Cycle:
    """Definitions and delays that depend on each other. `inner`: delays as they are in one step,
    and at which dim their `init` has the steps, if it is no member itself."""

    members: set[str]
    delays: list[Delay] = field(default_factory=list[Delay])
    inner: list[tuple[Delay, int | None]] = field(default_factory=list[tuple[Delay, int | None]])

    @property
    def inits(self) -> list[tuple[str, str]]:
        """Return, for each loop, the name of its initial value and of the value that it carries."""
        every = [*self.delays, *(y for y, _ in self.inner)]
        return [(y.init, y.source) for y in every]


class NoNest(Exception):
    """No loop of the cycle can be the one outside."""


def cycles(program: Program) -> list[Cycle]:
    """Return the cycles: each with the values that a delay depends on and that depend on it."""
    edges = {n: {x.source for x in ex.loads(d.expr)} for n, d in program.defs.items()}
    edges |= {y.name: {y.source, y.init, *_tied(program, y)} for y in program.delays.values()}
    back: dict[str, set[str]] = {}
    for user, sources in edges.items():
        for source in sources:
            back.setdefault(source, set()).add(user)
    found: list[Cycle] = []
    for y in program.delays.values():
        known = next((c for c in found if y.name in c.members), None)
        if known is None:
            members = _reached(y.name, edges) & _reached(y.name, back)
            known = Cycle(members)
            found.append(known)
        known.delays.append(y)
    for c in found:
        c.members -= {y.name for y in c.delays}
    return found


def _tied(program: Program, y: Delay) -> Iterator[str]:
    """Join the cycle of a bool that ends a loop with those of the values that end with it."""
    return (n for n in y.ends if n in program.delays)


def _reached(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    todo = [start]
    while todo:
        for name in edges.get(todo.pop(), ()):
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


def nested(program: Program) -> tuple[Program, list[Cycle]]:
    """See the module's text; raises NoNest. Results of the Program are unchanged."""
    dims: dict[str, int] = {}
    found: list[Cycle] = []
    for c in cycles(program):
        if c.members:
            at = _outside(program, c)
            dims |= at
            found.append(_in_steps(c, at))
    moved = {n: k for n, k in dims.items() if k}
    if not moved:
        return program, found
    roots = {*program.outputs, *program.checks}
    called = {n: f"{n}_steps" for n in moved if n in roots}

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in moved:
            index = _in_front(node.index, moved[node.source])
            return ex.load(called.get(node.source, node.source), index, node.dtype)
        return None

    defs: dict[str, Def] = {}
    for n, d in program.defs.items():
        axes, expr, own = (
            _in_front(d.axes, moved.get(n, 0)),
            Rewriter(visit)(d.expr),
            called.get(n, n),
        )
        defs[own] = dataclasses.replace(d, name=own, axes=axes, expr=expr)
        if n in called:
            whole = visit(ex.load(n, [as_index(a) for a in d.axes], d.dtype))
            assert whole is not None
            defs[n] = dataclasses.replace(d, expr=whole)
    return dataclasses.replace(program, defs=defs), [_renamed(c, called) for c in found]


def steps_of(program: Program) -> dict[str, int | None]:
    """Return the values that loops compute. For each: how many of its dims are steps, None for a
    nest of loops."""
    found: dict[str, int | None] = {}
    for c in cycles(program):
        is_nest = any(_outside(program, c).values()) if c.members else False
        found |= dict.fromkeys(c.members, None if is_nest else 1)
    return found


def _renamed(c: Cycle, called: Mapping[str, str]) -> Cycle:
    def put(y: Delay) -> Delay:
        source, init = called.get(y.source, y.source), called.get(y.init, y.init)
        return dataclasses.replace(y, source=source, init=init)

    members = {called.get(n, n) for n in c.members}
    return Cycle(members, [put(y) for y in c.delays], [(put(y), k) for y, k in c.inner])


def check(program: Program) -> None:
    """Raises NoNest unless all loops, and those within them, can be run."""
    for c in cycles(program):
        if c.members:
            at = _outside(program, c)
            inner = {y.name: y for y in c.delays if at[y.name]}
            defs = {n: d for n, d in program.defs.items() if n in c.members}
            if inner:
                check(dataclasses.replace(program, defs=defs, delays=inner))


def _in_front(items: tuple[_T, ...], k: int) -> tuple[_T, ...]:
    return (*items[k : k + 1], *items[:k], *items[k + 1 :])


def _in_steps(c: Cycle, at: Mapping[str, int]) -> Cycle:
    """Return the cycle with the delays of its own steps, and those within a step."""
    found = Cycle(c.members, [y for y in c.delays if not at[y.name]])
    for y in c.delays:
        if k := at[y.name]:
            shape = (*y.shape[:k], *y.shape[k + 1 :])
            one = dataclasses.replace(y, shape=shape)
            found.inner.append((one, None if y.init in at else k - 1))
    return found


def _outside(program: Program, c: Cycle) -> dict[str, int]:
    """Of each member and delay the dim that is a step of the loop outside; raises NoNest."""
    for y in c.delays:
        at = _along(program, c, y)
        if at is not None and len({z.reverse for z in c.delays if not at[z.name]}) == 1:
            return at
    places = ", ".join(sorted({str(y.loc) for y in c.delays}))
    raise NoNest(f"the loops at {places} read each other's values at other steps")


def _along(program: Program, c: Cycle, start: Delay) -> dict[str, int] | None:
    """Of each member and delay the dim along which `start` runs, None if there are others."""
    inside = {*c.members, *(y.name for y in c.delays)}
    at = {start.name: 0}
    reads = [(d, x) for n in c.members for d in [program.defs[n]] for x in ex.loads(d.expr)]
    reads = [(d, x) for d, x in reads if x.source in inside]
    count = 0
    while count < len(at):
        count = len(at)
        for one, other, shift in _shared(c, inside):
            if one in at and at[one] >= shift:
                at.setdefault(other, at[one] - shift)
            elif other in at:
                at.setdefault(one, at[other] + shift)
        for d, x in reads:
            if x.source in at:
                axis = the_axis(x.index[at[x.source]])
                if axis in d.axes:
                    at.setdefault(d.name, d.axes.index(axis))
            elif d.name in at:
                own = [k for k, i in enumerate(x.index) if the_axis(i) is d.axes[at[d.name]]]
                if own:
                    at.setdefault(x.source, own[0])
    return at if inside <= at.keys() and _is_whole(c, inside, at, reads) else None


def _shared(c: Cycle, inside: Collection[str]) -> Iterator[tuple[str, str, int]]:
    """Yield a delay, then values of the same dims, or those behind the first."""
    for y in c.delays:
        yield y.name, y.source, 0
        if y.init in inside:
            yield y.name, y.init, 1


def _is_whole(
    c: Cycle, inside: Collection[str], at: Mapping[str, int], reads: Iterable[tuple[Def, Load]]
) -> bool:
    """Return whether each step reads members at the same step only."""
    return all(at[one] - shift == at[other] for one, other, shift in _shared(c, inside)) and all(
        the_axis(x.index[at[x.source]]) is d.axes[at[d.name]] for d, x in reads
    )


def step_of(index: tuple[Index, ...], k: int, step: Index) -> tuple[Index, ...]:
    """Return an index with the step put in as its dim k."""
    return (*index[:k], step, *index[k:])
