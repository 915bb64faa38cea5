"""Recurrences: a value that an iteration takes from the one before it becomes a `Delay`.

In: the closed definitions of a loop's body, and a tensor that each iteration reads as the previous
one left it. Out: a `Delay`, and the value after the last iteration. `texpr/partition` finds what
depends on it; all else is computed for all iterations at once, as in any lifted loop.

    for t in range(n):                         delay h'[t, j] = h[t-1, j] from h0[j]
        h = torch.tanh(x[t] + h @ u)    ->     h[t, j] = tanh(x[t, j] + sum[k](h'[t, k] * u[k, j]))
    return h                                   result: h[n - 1, j]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lowtide.errors import Loc
from lowtide.specialise.lifting.closing import Body
from lowtide.specialise.lifting.match import Carried, NotLifted
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Val
from lowtide.texpr.expr import Def, Delay, Expr, Program, Select
from lowtide.texpr.index import Index, as_index


def needs(program: Program, values: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return, for each stand-in, those that its next value needs. `values`: the name of the next
    value."""
    found = {n: ex.needed(program, [v]) for n, v in values.items()}
    return {n: frozenset(values.keys() & made) for n, made in found.items()}


def first_cycle(
    failed: Carried, needs: Mapping[str, frozenset[str]], delayed: Collection[str]
) -> set[str]:
    """Return stand-ins that need each other, or one that needs none.

    Of the other stand-ins, they need only `delayed` ones. The set is the first on which one of
    `failed` depends.
    """
    for name in sorted(failed.names):
        below = _all(name, needs, delayed)
        if failed.are_read and name in needs and name not in delayed:
            below.add(name)
        for one in sorted(below):
            needed = _all(one, needs, delayed)
            cycle = {n for n in needed if one in _all(n, needs, delayed)}
            if needed <= cycle:
                return cycle or {one}
    return set()


def _all(name: str, needs: Mapping[str, frozenset[str]], delayed: Collection[str]) -> set[str]:
    found: set[str] = set()
    todo = [name]
    while todo:
        for other in needs.get(todo.pop(), ()):
            if other not in found and other not in delayed:
                found.add(other)
                todo.append(other)
    return found


def carried(body: Body, name: Val, value: Val, start: Val, loc: Loc, why: str) -> Val:
    """Adds the delay that `name` is; gives the value after the last iteration."""
    b, axis = body.b, body.axis
    trips = axis.extent
    source = value.name
    own = b.program.defs.get(source)
    if own is None or source not in body.lifted or source not in body.own:
        shape = (trips, *value.shape)

        def copied(idx: tuple[Index, ...]) -> Expr:
            return at_indices(body.element(value, idx[1:], ""), {axis: idx[0]})

        source = b.tensor(shape, value.dtype, copied).name
        own = b.program.defs[source]
    if _keeps_parts(own, name.name, b.program.defs):
        raise NotLifted("iterations write parts of a tensor that others read")
    b.program.delays[name.name] = Delay(
        name=name.name,
        source=source,
        init=start.name,
        shape=tuple(as_index(s) for s in (trips, *name.shape)),
        dtype=name.dtype,
        loc=loc,
        why=why,
    )
    last = Val(source, (trips, *name.shape), name.dtype)
    return b.tensor(name.shape, name.dtype, lambda idx: b.load(last, (trips - 1, *idx)))


def _keeps_parts(d: Def, carry: str, defs: Mapping[str, Def]) -> bool:
    """Return whether some elements keep their old value, or what an earlier write of the same
    iteration left, depending on their place. The iterations are the first axis."""
    places = frozenset(d.axes[1:])
    for node in ex.walk(d.expr):
        if isinstance(node, Select) and not any(ex.loads(node.cond)):
            for choice in (node.yes, node.no):
                if not isinstance(choice, ex.Load):
                    continue
                earlier = defs.get(choice.source)
                if choice.source == carry and node.cond.free & places:
                    return True
                if earlier and _keeps_parts(earlier, carry, defs):
                    return True
    return False
