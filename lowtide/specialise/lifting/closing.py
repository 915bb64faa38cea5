"""Closes the definitions of a loop's body over the loop's axis.

In: definitions in which the loop axis L stands free. Out: each with L as its first axis, and each
load of one of them with L as its first index.

    t4[]  = sum[j](x[L, j])                 t4[l] = sum[j](x[l, j])
    t5[j] = t4[] * x[L, j]            ->    t5[l, j] = t4[l] * x[l, j]
    check t6[]                              check t7[] = all[l](t6[l])

A recurrence inside the body has its steps as the first axis and L as the second: the recurrences of
all iterations become one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from lowtide.ir import dtypes
from lowtide.specialise.lifting import updates
from lowtide.specialise.lifting.match import Carried, NotLifted
from lowtide.specialise.lifting.needs import read_where_needed
from lowtide.specialise.lifting.squared import Squares
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Def, Expr, Load, Reduce, Rewriter
from lowtide.texpr.index import Axis, Index, as_index, deep_atoms

__all__ = ["Body", "at_indices", "closed"]


class Body:
    """Definitions of the body with L as a dim, and those `tainted` by what L - 1 left behind."""

    def __init__(
        self, b: Builder, axis: Axis, carries: Sequence[str], delayed: Collection[str]
    ) -> None:
        self.b = b
        self.axis = axis
        self.lifted: set[str] = set(delayed)
        self.own: set[str] = set()
        self.tainted: dict[str, Def | None] = dict.fromkeys(carries)
        self.in_steps: set[str] = set()  # of a loop inside: L is their second dim

    def element(self, value: Val, idx: Sequence[Index], carry: str) -> Expr:
        """Return an element in iteration L, with all definitions inlined that read `carry`."""
        e = self.put(ex.load(value.name, [as_index(i) for i in idx], value.dtype))
        try:
            return updates.expanded(self.b, e, carry) if carry else e
        except Unsupported as why:  # perhaps what it carries can be rows
            raise NotLifted(str(why)) from why

    def put(self, e: Expr) -> Expr:
        """Loads of lifted definitions with L as their first index."""

        def visit(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.source in self.lifted:
                at = int(node.source in self.in_steps)
                index = [*node.index[:at], as_index(self.axis), *node.index[at:]]
                return ex.load(node.source, index, node.dtype)
            return None

        return Rewriter(visit)(e)

    def check(self, e: Expr) -> None:
        """Raise NotLifted if an expression reads the previous iteration's values, or L."""
        for load in ex.loads(e):
            if load.source in self.tainted:
                d = self.tainted[load.source]
                where = f" ({d.op} at {d.loc})" if d is not None else ""
                raise NotLifted(f"each iteration needs what the one before it computed{where}")
        if self.axis in e.free:
            raise AssertionError("a loop axis is left over")

    def merged(self, fn: str, e: Expr) -> Expr:
        """Return one reduction instead of a reduction of a reduction in the body."""
        e = updates.inlined_views(self.b.program.defs, e, self.own)
        d = self.b.program.defs.get(e.source) if isinstance(e, Load) else None
        if d is None or d.name not in self.own or not isinstance(e, Load):
            return e
        if not isinstance(d.expr, Reduce) or d.expr.fn != fn:
            return e
        fresh = {a: as_index(Axis(a.name, a.extent)) for a in d.expr.axes}
        return at_indices(d.expr, {**dict(zip(d.axes, e.index, strict=True)), **fresh})


def closed(
    b: Builder,
    axis: Axis,
    first_def: int,
    first_check: int,
    carries: Sequence[str],
    delayed: Collection[str],
    inner: Collection[str],
    shapes: Mapping[str, Sequence[Index]],
) -> Body:
    """Give definitions since `first_def` that depend on the loop axis that axis as a dim. `delayed`
    carries have it already, as values of each iteration. `inner`: the delays of inner loops.
    `shapes`: of the carried values, in an iteration."""
    body = Body(b, axis, carries, delayed)
    defs = b.program.defs
    if b.records and b.branched:
        read_where_needed(b, first_def, axis)
    body.in_steps = _in_steps(b, list(defs)[first_def:], inner)
    body.lifted |= body.in_steps
    if any(axis in deep_atoms(n) for y in inner for n in b.program.delays[y].shape):
        raise NotLifted("sizes of what a loop inside it carries change from iteration to iteration")
    squares = Squares(b, axis, shapes)
    for name in list(defs)[first_def:]:
        d = squares.squared(defs[name])
        body.own.add(name)
        expr, axes = body.put(d.expr), d.axes
        if axis in expr.free or name in body.in_steps:
            fresh = Axis(axis.name, axis.extent)
            expr = at_indices(expr, {axis: as_index(fresh)})
            at = int(name in body.in_steps)
            axes = (*d.axes[:at], fresh, *d.axes[at:])
            body.lifted.add(name)
        defs[name] = Def(name=name, axes=axes, expr=expr, loc=d.loc, op=d.op)
    _taint(body, inner)
    for name in inner:
        _side_by_side(body, name)
    for k, name in enumerate(b.program.checks[first_check:], first_check):
        if name in body.tainted:
            why = "an index depends on the iteration before"
            raise Carried(why, roots(defs, defs[name].expr), are_read=True)
        if name in body.lifted:
            b.program.checks[k] = _all(b, axis, name).name
    return body


def roots(defs: Mapping[str, Def], e: Expr) -> frozenset[str]:
    """Return the stand-ins (names without a definition) that an expression reads."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = [load.source for load in ex.loads(e)]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in defs:
            todo += [load.source for load in ex.loads(defs[name].expr)]
        else:
            found.add(name)
    return frozenset(found)


def _in_steps(b: Builder, names: Sequence[str], inner: Collection[str]) -> set[str]:
    """Delays of loops inside, and the definitions that lie on a cycle through them."""
    defs, after = b.program.defs, set(inner)
    for name in names:
        if any(load.source in after for load in ex.loads(defs[name].expr)):
            after.add(name)
    sources = {b.program.delays[n].source for n in inner}
    before = set(sources)
    for name in reversed(names):
        if name in before:
            before.update(load.source for load in ex.loads(defs[name].expr))
    return (after & before) | set(inner) | sources.intersection(names)


def _taint(body: Body, inner: Collection[str]) -> None:
    """Marks what reads one that is marked; loops inside that begin with one, or make one, too."""
    program, tainted, count = body.b.program, body.tainted, -1
    own = [n for n in program.defs if n in body.own]
    while count < len(tainted):
        count = len(tainted)
        for name in own:
            d = program.defs[name]
            if name not in tainted and any(x.source in tainted for x in ex.loads(d.expr)):
                tainted[name] = d
        for name in inner:
            y = program.delays[name]
            for n in (y.source, y.init):
                if n in tainted:
                    tainted.setdefault(name, tainted[n])


def _side_by_side(body: Body, name: str) -> None:
    """Define a delay of an inner loop, for all iterations at once."""
    b, y = body.b, body.b.program.delays[name]
    trips = body.axis.extent
    if y.source not in body.in_steps:
        raise NotLifted("a loop inside it runs step by step")
    init = y.init
    if init not in body.lifted or init in body.in_steps:

        def first(idx: tuple[Index, ...]) -> Expr:
            begin = body.put(ex.load(y.init, idx[1:], y.dtype))
            return at_indices(begin, {body.axis: idx[0]})

        init = b.tensor((trips, *y.shape[1:]), y.dtype, first).name
    shape = (y.shape[0], trips, *y.shape[1:])
    b.program.delays[name] = dataclasses.replace(y, init=init, shape=shape)


def _all(b: Builder, axis: Axis, name: str) -> Val:
    def holds(idx: tuple[Index, ...]) -> Expr:
        return ex.load(name, idx, dtypes.boolean)

    return b.tensor((), dtypes.boolean, lambda _: b.reduce("all", [axis.extent], holds))
