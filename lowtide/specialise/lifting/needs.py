"""Masks values that a loop's body makes before an `if` and uses within it, for their gradients.

In: the definitions of a body. Out: the same values. A value that is read under a condition is read
from a copy, whose own loads read 0 where the condition does not hold.

    t1 = sqrt(x[L])                              t1  = sqrt(x[L]), if anything else reads it
    t2 = 1 / (t1 if L > 0 else 0)          ->    t1a = sqrt(x[L] if L > 0 else 0)
                                                 t2  = 1 / (t1a if L > 0 else 0)

Where the branch is not taken, the cotangent of t1 is 0, and 0 times an infinite derivative is NaN.
PyTorch, which does not run the branch, passes no gradient on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from lowtide.specialise import varying
from lowtide.specialise.lifting.match import NotLifted
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder
from lowtide.texpr.conditions import joined, parts_of
from lowtide.texpr.expr import Apply, Cast, Def, Expr, Load, Reduce, Select
from lowtide.texpr.index import Axis, as_index

MOST: Final = 400  # copies
SMOOTH: Final = frozenset({
    "add", "sub", "mul", "neg", "abs", "max", "min", "sum", "tanh", "sigmoid", "sin", "cos", "erf",
    "exp", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "any", "all",
})  # fmt: skip

Conditions = tuple[Expr, ...]


def read_where_needed(b: Builder, first_def: int, axis: Axis) -> None:
    """Rewrites the definitions from number `first_def` on; raises NotLifted."""
    defs = b.program.defs
    names = list(defs)[first_def:]
    copies = _Copies(b, frozenset(names), axis, frozenset(list(defs)[b.loops[0] : first_def]))
    found: list[Def] = []
    for name in names:
        d = defs[name]
        expr = copies.reading(d.expr, (), frozenset(d.axes))
        found += copies.made
        copies.made.clear()
        found.append(d if expr is d.expr else _with(d, name, expr))
    for name in names:
        del defs[name]
    defs.update((d.name, d) for d in found)


class _Copies:
    """The masked copies, by the original and its conditions; `made`: the latest."""

    def __init__(self, b: Builder, own: frozenset[str], axis: Axis, around: frozenset[str]) -> None:
        self.b = b
        self.own = own
        self.axis = axis
        self.around = around  # made in the bodies of loops around this one
        self.made: list[Def] = []
        self._names: dict[tuple[str, Conditions], str] = {}

    def reading(self, e: Expr, known: Conditions, bound: frozenset[Axis]) -> Expr:
        """Return the expression, which only has to be right where `known` holds. `bound`: axes that
        are no loop's."""
        return self._visit(e, known, bound, {})

    def _visit(
        self,
        e: Expr,
        known: Conditions,
        bound: frozenset[Axis],
        done: dict[tuple[Expr, Conditions], Expr],
    ) -> Expr:
        if (e, known) not in done:
            done[e, known] = self._rebuilt(e, known, bound, done)
        return done[e, known]

    def _rebuilt(
        self,
        e: Expr,
        known: Conditions,
        bound: frozenset[Axis],
        done: dict[tuple[Expr, Conditions], Expr],
    ) -> Expr:
        def visit(x: Expr, also: Conditions = ()) -> Expr:
            return self._visit(x, tuple(dict.fromkeys((*known, *also))), bound, done)

        match e:
            case Load() if known and e.source in self.own and e.dtype.is_float:
                return ex.load(self._copy(e.source, known), e.index, e.dtype)
            case Load() if e.source in self.around and e.dtype.is_float:
                if any(self.axis in c.free for c in known) and not self._is_smooth(e.source):
                    raise NotLifted("what is made before it may be needed in none of its steps")
                return e
            case Select() if not e.cond.free & bound:
                yes = visit(e.yes, tuple(parts_of(e.cond)))
                return ex.select(e.cond, yes, visit(e.no, (varying.negated(e.cond),)))
            case Select():
                return ex.select(e.cond, visit(e.yes), visit(e.no))
            case Apply():
                return ex.apply(e.fn, [visit(a) for a in e.args], e.dtype)
            case Cast():
                return ex.cast(visit(e.arg), e.dtype)
            case Reduce():
                body = self.reading(e.body, known, bound | {*e.axes})
                return ex.reduce(e.fn, e.axes, body, e.dtype)
            case _:
                return e

    def _copy(self, name: str, known: Conditions) -> str:
        """Of a value, for where these conditions hold."""
        found = self._names.get((name, known))
        if found is None:
            if len(self._names) == MOST:
                raise NotLifted("values are needed under too many conditions")
            found = self._names[name, known] = f"{name}n{len(self._names)}"
            d = self.b.program.defs[name]
            fresh = tuple(Axis(a.name, a.extent) for a in d.axes)
            moved = ex.Rewriter(atoms={a: as_index(f) for a, f in zip(d.axes, fresh, strict=True)})
            expr = self.reading(moved(d.expr), known, frozenset(fresh))
            mask = joined(known)
            assert mask is not None
            expr = ex.Rewriter(lambda node: self._masked(node, mask))(expr)
            self.made.append(Def(name=found, axes=fresh, expr=expr, loc=d.loc, op=d.op))
        return found

    def _is_smooth(self, name: str) -> bool:
        """Return whether the derivatives of a value are finite, down to values from before all
        loops."""
        d = self.b.program.defs[name]
        fns = {node.fn for node in ex.walk(d.expr) if isinstance(node, Apply | Reduce)}
        inner = {load.source for load in ex.loads(d.expr)} & self.around
        return fns <= SMOOTH and all(map(self._is_smooth, inner))

    def _masked(self, node: Expr, mask: Expr) -> Expr | None:
        """Return a load from before the body under the mask, else None. Copies are masked
        themselves."""
        if not isinstance(node, Load) or not node.dtype.is_float or node.source in self._copied():
            return None
        return ex.select(mask, node, ex.const(0, node.dtype))

    def _copied(self) -> Collection[str]:
        return self._names.values()


def _with(d: Def, name: str, expr: Expr) -> Def:
    return Def(name=name, axes=d.axes, expr=expr, loc=d.loc, op=d.op)
