"""The formula of a carried tensor after all iterations of a lifted loop.

In: `e`, the element at r after iteration L, as a formula of `carry[r]`, the element before it. Out:
the element at r after the loop, for three forms:

    overwritten       e(L)                                   ->  e(T - 1)
    one iteration     carry[r] unless r // 4 == L            ->  e(r // 4), of what was there
    accumulated       carry[r] + f(L)                        ->  before[r] + sum[L](f(L))

Any other form depends on the previous iteration, and raises `NotLifted`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch

from lowtide.ir import dtypes
from lowtide.specialise.lifting import invert
from lowtide.specialise.lifting.invert import Writer
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import COMBINE, at_indices, identity
from lowtide.texpr.build import Builder
from lowtide.texpr.conditions import decided, holds, joined, parts_of
from lowtide.texpr.expr import Apply, Const, Expr, Load, Reduce, Rewriter, Select
from lowtide.texpr.index import Atom, Axis, FloorDiv, Index, Mod, as_index, deep_atoms, the_axis
from lowtide.texpr.index_ranges import substitute

UNROLL_TRIPS = 32  # a loop of more steps is not written out, if it cannot be lifted
_REDUCING = ("sum", "prod", "max", "min")
_NARROW = (dtypes.f16, dtypes.bf16)


class NotLifted(Exception):
    """The loop stays a loop; the text says which dependence keeps it."""


class Carried(NotLifted):
    """These stand-ins, or those that they need, must be carried from step to step. `are_read`: an
    iteration reads the previous values of all of them."""

    def __init__(self, why: str, names: Collection[str], are_read: bool = False) -> None:
        super().__init__(why)
        self.names = frozenset(names)
        self.are_read = are_read


class Carry:
    """One carried tensor: its name in formulas, the element's index, and its value before the
    loop."""

    def __init__(
        self,
        b: Builder,
        name: str,
        r: tuple[Index, ...],
        before: Expr | None,
        axis: Axis,
        merged: Callable[[str, Expr], Expr],
    ) -> None:
        self.b = b
        self.name = name
        self.r = r
        self._before = before
        self.axis = axis
        self._merged = merged

    @property
    def before(self) -> Expr:
        """The element before the loop."""
        if self._before is None:
            raise NotLifted("it carries a value that is not a tensor before it")
        return self._before

    def result(self, e: Expr) -> Expr:
        """Return the element after the loop; raises NotLifted."""
        e = self._from_before(Rewriter(self._own_place)(assumed(e, {})))
        for load in ex.loads(e):
            if load.source == self.name and load.index != self.r:
                raise NotLifted("an iteration reads other elements of what the loop writes")
        if not self.has(e):
            return self.last(e)
        writers = self._writers(e)
        if writers is not None:
            return self._once(e, writers)
        if not any(self.axis in c.free for c in _conditions(e)) and self._overwrites(e):
            return self.started(self.last(e))
        for fn in _REDUCING:
            delta = self._delta(e, fn)
            if delta is not None:
                return self._accumulated(fn, delta)
        if not any(self.has(new) for new in self._written(e)):
            raise NotLifted("two iterations may write one element")
        raise NotLifted("each iteration needs what the one before it computed")

    def _own_place(self, node: Expr) -> Expr | None:
        """Return a load at its own place as a load at r. Along a dim of size 1, 0 is the only
        place."""
        if not isinstance(node, Load) or node.source != self.name or node.index == self.r:
            return None
        units: dict[Atom, Index] = {
            a: as_index(0) for i in self.r for a in i.atoms() if _is_unit(a)
        }
        here = all(
            substitute(i, units) is substitute(j, units)
            for i, j in zip(node.index, self.r, strict=True)
        )
        return ex.load(self.name, self.r, node.dtype) if here else None

    def _from_before(self, e: Expr) -> Expr:
        """Return the formula in which elements that no iteration writes are read from before the
        loop: `a[t - 1, s]` in a loop over s that fills row t."""
        if all(load.index == self.r for load in ex.loads(e) if load.source == self.name):
            return e
        other: dict[Axis, Index] = {self.axis: as_index(Axis(self.axis.name, self.axis.extent))}
        writes = [None if c is None else at_indices(c, other) for c in self._writes(e, [])]

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.source != self.name or node.index == self.r:
                return None
            at = {the_axis(i): j for i, j in zip(self.r, node.index, strict=True)}
            place = {a: j for a, j in at.items() if a is not None}
            unwritten = all(c is not None and holds(at_indices(c, place)) is False for c in writes)
            return at_indices(self.before, place) if unwritten else None

        return Rewriter(visit)(e)

    def _writes(self, e: Expr, conditions: list[Expr]) -> Iterator[Expr | None]:
        """Under which conditions, at least, the element changes; None for always."""
        if isinstance(e, Select) and not self.has(e.cond):
            yield from self._writes(e.yes, [*conditions, e.cond])
            yield from self._writes(e.no, conditions)
        elif not (isinstance(e, Load) and e.source == self.name and e.index == self.r):
            yield joined(conditions)

    def _written(self, e: Expr) -> Iterator[Expr]:
        """Yield the values that an iteration may write to the element."""
        if isinstance(e, Select) and not self.has(e.cond):
            yield from self._written(e.yes)
            yield from self._written(e.no)
        elif not (isinstance(e, Load) and e.source == self.name and e.index == self.r):
            yield e

    def has(self, e: Expr) -> bool:
        """Return whether the expression reads the carried value."""
        return any(load.source == self.name for load in ex.loads(e))

    def started(self, e: Expr) -> Expr:
        """Return the formula with loads of the value from before the loop."""
        return self._begun(e, self.before)

    def _begun(self, e: Expr, before: Expr) -> Expr:
        def visit(node: Expr) -> Expr | None:
            return before if isinstance(node, Load) and node.source == self.name else None

        return Rewriter(visit)(e)

    def last(self, e: Expr) -> Expr:
        """Return the formula of the last iteration."""
        return at_indices(e, {self.axis: self.axis.extent - 1})

    # -- each element by one iteration --

    def _writers(self, e: Expr, conditions: tuple[Expr, ...] = ()) -> list[Writer] | None:
        """Return the iterations by which the element changes, with their conditions; None if that
        is unknown."""
        if isinstance(e, Load) and e.source == self.name:
            return []
        if not isinstance(e, Select) or self.has(e.cond):
            return None
        inside = (*conditions, *parts_of(e.cond))
        yes, no = self._writers(e.yes, inside), self._writers(e.no, conditions)
        if yes is None and (found := invert.solve(e.cond, self.axis)) is not None:
            yes = [Writer(found, inside)]
        return None if yes is None or no is None else [*yes, *no]

    def _once(self, e: Expr, writers: list[Writer]) -> Expr:
        alike: dict[tuple[Index, Index, Index], list[Writer]] = {}
        for w in writers:
            s = w.solution
            alike.setdefault((s.target, s.step, s.width), []).append(w)
        in_turns = invert.are_apart([ws[0].solution for ws in alike.values()])
        if not in_turns and not (self._overwrites(e) and invert.never_meet(list(alike.values()))):
            raise NotLifted("iterations write parts that may overlap")
        found: Expr | None = None
        for ws in alike.values():
            written = e
            for w in ws:
                written = w.solution.put_in(self.b, written)
            before = self.before if found is None else found
            written = assumed(self._begun(written, self.before if in_turns else before), {})
            valid = ws[0].solution.valid(self.b)
            found = written if valid is None else self.b.select(valid, written, before)
        return self.before if found is None else found

    # -- accumulated --

    def _overwrites(self, e: Expr) -> bool:
        """Return whether the element stays as it was, or becomes a value that does not depend on
        it."""
        if isinstance(e, Select) and not self.has(e.cond):
            return self._overwrites(e.yes) and self._overwrites(e.no)
        return not self.has(e) or isinstance(e, Load)

    def _delta(self, e: Expr, fn: str) -> Expr | None:
        """f with e == combine(carry[r], f)."""
        if isinstance(e, Load):
            return ex.const(identity(fn, e.dtype), e.dtype) if e.source == self.name else None
        if isinstance(e, Select) and not self.has(e.cond):
            yes, no = self._delta(e.yes, fn), self._delta(e.no, fn)
            return None if yes is None or no is None else ex.select(e.cond, yes, no)
        if not isinstance(e, Apply) or len(e.args) != 2:
            return None
        left, right = e.args
        if fn == "sum" and e.fn == "sub" and not self.has(right):
            return self._joined(left, ex.apply("neg", (right,), e.dtype), fn)
        if e.fn != COMBINE[fn] or self.has(left) == self.has(right):
            return None
        return self._joined(left, right, fn) if self.has(left) else self._joined(right, left, fn)

    def _joined(self, inner: Expr, other: Expr, fn: str) -> Expr | None:
        if isinstance(inner, Load):
            return other if inner.source == self.name else None
        found = self._delta(inner, fn)
        return None if found is None else ex.apply(COMBINE[fn], (found, other), found.dtype)

    def _accumulated(self, fn: str, delta: Expr) -> Expr:
        if delta.dtype in _NARROW and fn in ("sum", "prod"):
            raise NotLifted(f"{delta.dtype} is rounded in each iteration")
        if delta.dtype.name in ("bool", "u8"):
            raise NotLifted(f"{delta.dtype} is accumulated")
        trips = self.axis.extent.const
        if fn in ("max", "min") and self.b.records and trips is not None and trips <= UNROLL_TRIPS:
            raise NotLifted("each iteration's maximum halves the gradient of a tie")
        fresh = Axis(self.axis.name, self.axis.extent)
        body = at_indices(delta, {self.axis: as_index(fresh)})
        total = ex.reduce(fn, (fresh,), self._merged(fn, body), delta.dtype)
        if isinstance(total.body, Reduce):
            inner = total.body
            total = ex.reduce(fn, (*total.axes, *inner.axes), inner.body, delta.dtype)
        return ex.apply(COMBINE[fn], (self.before, split(total)), delta.dtype)


def _is_unit(a: Atom) -> bool:
    return isinstance(a, Axis) and a.extent.const == 1


def split(node: Reduce) -> Reduce:
    """sum[k:9](x[i + k // 3, j + k % 3])  ->  sum[p:3, q:3](x[i + p, j + q])"""
    for a in node.axes:
        size = a.extent.const
        for den in sorted(_divisors_of(node.body, a)) if size is not None else ():
            if den <= 1 or size is None or size % den or size == den:
                continue
            outer = Axis(f"{a.name}o", as_index(size // den))
            inner = Axis(f"{a.name}i", as_index(den))
            body = at_indices(node.body, {a: as_index(outer) * den + as_index(inner)})
            rest = [x for x in node.axes if x is not a]
            return split(ex.reduce(node.fn, (*rest, outer, inner), body, node.dtype))
    return node


def _divisors_of(e: Expr, a: Axis) -> set[int]:
    """By which constants the axis is divided in indices."""
    found: set[int] = set()
    for node in ex.walk(e):
        for i in ex.indices(node):
            for atom in deep_atoms(i):
                if isinstance(atom, FloorDiv | Mod) and a in atom.num.atoms():
                    found.add(atom.den.const or 0)
    return found


def is_held(number: object, dtype: dtypes.DType) -> bool:
    """Return whether the initial value is exact in this dtype. Python computes with 16777217 in the
    first step, and float32 has 16777216."""
    if isinstance(number, Expr):
        return number.dtype is dtype
    if not isinstance(number, int | float) or number != number:
        return True
    try:
        return torch.tensor(number, dtype=dtype.torch, device="cpu").item() == number
    except (OverflowError, RuntimeError):
        return False


def _conditions(e: Expr) -> list[Expr]:
    if not isinstance(e, Select):
        return []
    return [e.cond, *_conditions(e.yes), *_conditions(e.no)]


def assumed(e: Expr, known: dict[Expr, bool]) -> Expr:
    """Choices whose condition is decided by a choice around them are made."""
    if isinstance(e, Const) or (not known and not isinstance(e, Select | Apply)):
        return e
    if isinstance(e, Select):
        cond = _decided(e.cond, known)
        if isinstance(cond, bool):
            return assumed(e.yes if cond else e.no, known)
        true = dict.fromkeys((cond, *parts_of(cond)), True)
        yes, no = assumed(e.yes, known | true), assumed(e.no, known | {cond: False})
        return yes if yes is no else ex.select(cond, yes, no)
    if isinstance(e, Apply):
        return ex.apply(e.fn, [assumed(a, known) for a in e.args], e.dtype)
    return e


def _decided(cond: Expr, known: dict[Expr, bool]) -> Expr | bool:
    if cond in known:
        return known[cond]
    left: list[Expr] = []
    for part in parts_of(cond):
        if isinstance(part, Const):
            holds: bool | None = bool(part.value)
        else:
            holds = known[part] if part in known else decided(part)
        if holds is False:
            return False
        if holds is None:
            left.append(part)
    if not left:
        return True
    total = left[0]
    for part in left[1:]:
        total = ex.apply("and", (total, part), total.dtype)
    return total
