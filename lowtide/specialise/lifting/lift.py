"""Lifts a loop with independent iterations: the loop becomes an axis.

In: a `loop` op, its trips, abstract carried values. Out: abstract results; raises `NotLifted`.

    out = torch.zeros(n, m)                 t1[i, j] = 0
    for i in range(n):
        out[i] += x[i] * 2            ->    t5[i, j] = t1[i, j] + x[i, j] * 2
        total = total + x[i].sum()          t6[]     = t2[] + sum[i](t4[i])
        rows.append(x[i].exp())             rows: the n rows of t7[i, j] = exp(x[i, j])

The body is specialised once, with a fresh axis L as its index and a stand-in for each tensor that
it writes. Its definitions then get L as their first dim (`closed`), and `match` turns each new
value of a stand-in into the value after the loop. The body is specialised anew while this finds
more: tensors that it writes, values that it assigns, the growth of an int.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lowtide.ir import dtypes
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.python_ops.numbers import UNBOUND
from lowtide.specialise import varying
from lowtide.specialise.abstract import Abs, Map, Origin, Seq, is_constant
from lowtide.specialise.activity import Full
from lowtide.specialise.lifting import branches, closing, ending, grown_lists, scan, tables
from lowtide.specialise.lifting.inplace import check_gradient, root_of
from lowtide.specialise.lifting.match import Carried, Carry, NotLifted, is_held
from lowtide.specialise.lifting.ragged import Steps
from lowtide.specialise.lifting.rows import Chunk, Growing, Item, Rows
from lowtide.texpr import expr as ex
from lowtide.texpr import nested_recurrences
from lowtide.texpr.build import Builder, NeedConst, ShapeError, Unsupported, Val, symbols
from lowtide.texpr.expr import Expr, Program
from lowtide.texpr.index import Axis, Index, as_index, deep_atoms
from lowtide.texpr.index_ranges import substitute

MAX_ATTEMPTS: Final = 8
_KEPT: Final = "kept"


@dataclass(frozen=True, slots=True)
class Grows:
    """An int that is `start + L * step` in iteration L."""

    step: Index


@dataclass(frozen=True, slots=True)
class StandIn:
    """A tensor that the body assigns: a name without a definition."""

    value: Val


class Unlike(NotLifted):
    """The first step changes the form of a carried value, such as its shape or dtype. `peel` may
    help."""


class Lift:
    """One attempt at one loop; `run` is the specialiser."""

    def __init__(
        self,
        run: Any,
        op: Op,
        steps: Steps,
        carried: Sequence[Abs],
        env: dict[Value, Abs],
        scans: bool,
    ) -> None:
        self.run = run
        self.b: Builder = run.b
        self.op = op
        self.carried = list(carried)
        self.is_outermost = run.loop is None
        self.env = env
        self.scans = scans
        self.steps = steps
        self.axis = Axis(f"i{op.loc.line}", steps.trips)
        self.done = as_index(self.axis) + steps.first  # so many steps, before an iteration
        self.plan: list[object] = [_KEPT] * len(carried)
        self.changed: dict[Abs, Val | Growing] = {}
        self.outer = branches.reachable([*env.values(), *carried])
        self.args: list[Abs] = []
        self.yields: list[Abs] = []
        self.ends: ending.Ending | None = None  # of a loop that may do fewer steps

    def results(self) -> list[Abs]:
        """Return the carried values after the loop; raises NotLifted, and what specialising
        raises."""
        mark, derived, known = self.run.mark(), len(self.run.derived), set(self.env)
        around, self.run.loop = self.run.loop, self.op
        self.b.loops.append(mark[0])
        try:
            for _ in range(MAX_ATTEMPTS):
                yields = self._trace_body()
                if self._learn(yields, mark[3]):
                    self.run.reset(mark)
                    continue
                self._check_numbers(derived, mark)
                results = self._finish(yields, mark)
                self.run.activity.differentiate_from(mark[0])
                for x, before in self._before(mark[3]).items():
                    check_gradient(self.run, before, x.value, mark[0])
                return results
            raise NotLifted("the types of what it carries do not settle")
        except (NotLifted, Unsupported, ShapeError, NeedConst) as why:
            try:  # no name for what is raised: a frame that holds its own exception is a cycle
                raise self._reason(why) from why
            finally:
                self.run.reset(mark)
                for name in list(self.run.derived)[derived:]:
                    del self.run.derived[name]
        finally:
            self.run.loop = around
            self.b.loops.pop()
            for v in [v for v in self.env if v not in known]:
                del self.env[v]

    def _reason(self, why: Exception) -> Exception:
        if isinstance(why, NeedConst):
            known = self.run.known_to_call(why.symbols)
            many = known & symbols(self.axis.extent) - self.run.divisors(why.symbols)
            if known and not many:
                return NeedConst(known)  # as for an op outside of any loop
            if known and why.slack is not None:
                self.run.ask(why.slack)  # splits the signature
            return NotLifted(
                f"its indices cannot be compared without knowing {self.run.size_names(why)}"
            )
        return why if isinstance(why, NotLifted | Full) else NotLifted(str(why))

    # -- tracing the body --

    def _trace_body(self) -> list[Abs]:
        for x, stand_in in self.changed.items():
            if isinstance(x.value, Growing):
                raise NotLifted("a list grows in two loops at once")
            self.run.change(x, stand_in)
        self.args = args = [
            self._argument(p, x) for p, x in zip(self.plan, self.carried, strict=True)
        ]
        (block,) = self.op.blocks
        number = Abs(self.done + self.steps.skipped)
        self.env.update(zip(block.args, (number, *args[: len(block.args) - 1]), strict=True))
        going, *yields = self._iterate(block)
        self.run.refresh(yields)
        if self.ends is not None:
            yields.append(self.ends.going(going))
        elif not is_constant(going) or not going.value:
            is_alone = self.scans and self.is_outermost and self.steps.count is None
            self.ends = ending.begun(self.b, is_alone, going)
        return yields

    def _iterate(self, block: Block) -> list[Abs]:
        """Return what the body yields; its arguments in steps that an iteration does not have."""
        count = self.steps.count
        if count is None:
            return self.run.inline(block, self.env)
        there = varying.within(self.done, count)
        return branches.chosen(
            self.run,
            self.run.loop,
            there,
            self.env,
            lambda: self.run.inline(block, self.env),
            lambda: [Abs(True), *self.args],
        )

    def _argument(self, plan: object, x: Abs) -> Abs:
        if isinstance(plan, Grows):
            start = x.value
            assert isinstance(start, int | Index)
            return Abs(as_index(start) + self.done * plan.step)
        if isinstance(plan, StandIn):
            found = Abs(plan.value)
            self.run.blocked.add(found)  # the tensor of before the loop, or of an iteration
            return found
        return x

    def _learn(self, yields: Sequence[Abs], since: int) -> bool:
        """Return whether the body must be traced a second time, with what this trace has shown."""
        if self.ends is not None and len(self.carried) == len(self.op.results):
            self.carried.append(Abs(True))
            self.plan.append(StandIn(self._named((), dtypes.boolean)))
            return True
        is_changed = False
        for x, _ in self.run.changes(since):
            if x in self.outer and x not in self.changed and x.base is None:
                self.changed[x] = self._stand_in_for(x, since)
                is_changed = True
        if is_changed:
            return True
        self.yields = list(yields)
        for k, y in enumerate(yields):
            plan = self._planned(self.plan[k], self.carried[k], y)
            is_changed = is_changed or plan is not self.plan[k]
            self.plan[k] = plan
        return is_changed

    def _stand_in_for(self, x: Abs, since: int) -> Val | Growing:
        first = self._before(since)[x]
        if isinstance(first, Val):
            return self._named(first.shape, first.dtype)
        if isinstance(first, Rows) or (isinstance(first, Seq) and first.kind is list):
            return Growing()
        raise NotLifted("it changes a value that is neither a tensor nor a list")

    def _named(self, shape: Sequence[Index | int], dtype: dtypes.DType) -> Val:
        self.check_sizes(shape)
        found = Val(self.b.axis(0).name.replace("i", "carry"), tuple(shape), dtype)
        self.run.activity.assume(found)
        return found

    def check_sizes(self, shape: Sequence[Index | int]) -> None:
        """Raise NotLifted unless a value that leaves an iteration has the same size in all of
        them."""
        if any(self.axis in deep_atoms(as_index(size)) for size in shape):
            raise NotLifted("sizes change from iteration to iteration")

    def _planned(self, plan: object, x: Abs, y: Abs) -> object:
        if y is x and plan == _KEPT:
            return plan
        if isinstance(y.value, Val):
            return self._assigned(plan, x, y, y.value)
        start, end = x.value, y.value
        if isinstance(start, int | Index) and isinstance(end, int | Index):
            if isinstance(start, bool) or isinstance(end, bool):
                raise NotLifted("a bool is carried that changes")
            first = plan.step * self.done if isinstance(plan, Grows) else as_index(0)
            step = as_index(end) - as_index(start) - first
            if self.axis not in deep_atoms(step):
                return plan if isinstance(plan, Grows) and plan.step is step else Grows(step)
            later = as_index(end)  # it is not read, but assigned from the loop's index
            step = substitute(later, {self.axis: as_index(self.axis) + 1}) - later
            if self.axis not in deep_atoms(step) and later is start + (self.done + 1) * step:
                return Grows(step)
            raise NotLifted("an int is carried that does not grow evenly")
        if plan == _KEPT and is_constant(x) and is_constant(y) and start is end:
            return plan
        if start is None or start is UNBOUND:
            raise Unlike("a variable is carried that the first step assigns")
        raise NotLifted("a value is carried that is not a tensor")

    def _assigned(self, plan: object, x: Abs, y: Abs, value: Val) -> object:
        if not any(y is c for c in self.carried):  # of which more may be found out yet
            self._check_named(y)
        before = plan.value if isinstance(plan, StandIn) else x.value
        if isinstance(before, Val):
            same = before.dtype is value.dtype and before.ndim == value.ndim
            if same and all(map(self.b.equal, before.shape, value.shape)):
                named = isinstance(plan, StandIn)
                return plan if named else StandIn(self._named(value.shape, value.dtype))
            if isinstance(x.value, Val):
                raise Unlike("a carried tensor changes its shape or dtype")
        if not is_held(x.value, value.dtype):
            raise Unlike(f"it carries a number that {value.dtype} does not hold")
        if plan == _KEPT or isinstance(plan, StandIn):
            return StandIn(self._named(value.shape, value.dtype))
        raise NotLifted("a number is carried that becomes a tensor")

    def _check_named(self, y: Abs) -> None:
        """Raise NotLifted if a carried value shares memory that may be written."""
        root = root_of(y)
        if y in self.outer or (root is not y and root in self.args):
            raise NotLifted("it carries a view, or a tensor from before it")
        item = self.run.items.get(y)
        names = () if item is None else item.aliases
        if names is None or not set(names) <= set(self.args) or root in self.changed:
            raise NotLifted("it carries a view, or an item of a list")

    def _check_start(self, x: Abs, y: Abs) -> None:
        """Raise NotLifted if a carried value that begins as x, and is y after a step, may change
        under another name of x."""
        seen = set[Abs]()
        while y in self.args and y not in seen:  # it hands on what it was given, `a, b = b, a`
            seen.add(y)
            y = self.yields[self.args.index(y)]
        if y in self.outer or y in seen:
            raise NotLifted("it carries a tensor from before it")
        if root_of(x) in self.changed:
            raise NotLifted("what it carries begins as a tensor that it changes in place")

    def is_known(self, root: Abs) -> bool:
        """Return whether the tensor is from before the loop, or an item of such a list."""
        return root in self.outer or root in self.run.items

    def _has_another_view(self, root: Abs, y: Abs) -> bool:
        """Return whether a second result of this iteration, or an added item, shares memory with
        `y`."""
        lists = [x.value for x in self.changed if isinstance(x.value, Growing)]
        added = [e for grown in lists for e in (*grown.elems, *grown.in_front) if root is not y]
        return any(x is not y and root_of(x) is root for x in (*self.yields, *added))

    def _check_numbers(self, derived: int, mark: Sequence[int]) -> None:
        """Check that neither a number of the host nor a condition on sizes depends on the axis.
        Raises NotLifted."""
        fresh = list(self.run.derived.values())[derived:]
        if any(x.origin is not None and _knows(x, self.axis) for x in fresh):
            raise NotLifted("Python computes a number from the loop's index")
        for a, c, _ in self.b.program.equalities[mark[2] :]:
            if self.axis in deep_atoms(a) or self.axis in deep_atoms(c):
                raise NotLifted("sizes change from iteration to iteration")

    # -- what the loop leaves --

    def _finish(self, yields: Sequence[Abs], mark: Sequence[int]) -> list[Abs]:
        """Tried with more and more tensors carried from step to step, until the rest is lifted."""
        for plan, x, y in zip(self.plan, self.carried, yields, strict=True):
            if isinstance(plan, StandIn):
                self._check_start(x, y)
        if self.ends is not None:
            if self.changed or any(isinstance(p, Grows) for p in self.plan):
                raise NotLifted(ending.LEFT)
            rows = zip(self.plan, self.args, yields, strict=True)
            self.ends.hold([(x, y) for p, x, y in rows if isinstance(p, StandIn)])
        values = self._values(yields)
        needs = scan.needs(self.b.program, {n: v.name for n, v in values.items()})
        program = self.b.program
        defs, checks, delays = dict(program.defs), list(program.checks), dict(program.delays)
        delayed = dict.fromkeys(values if self.ends else (), ending.WHY)  # and why
        first = ""  # what keeps it from being lifted whole
        while True:
            try:
                return self._finished(yields, mark, delayed)
            except NotLifted as why:
                first = first or str(why)
                more = set[str]()
                if isinstance(why, Carried) and self.scans:
                    more = scan.first_cycle(why, needs, delayed)
                if not more:
                    raise NotLifted(first) from why
                delayed |= dict.fromkeys(more, str(why))
            program.defs.clear()
            program.defs.update(defs)
            program.checks[:] = checks
            program.delays.clear()
            program.delays.update(delays)

    def _values(self, yields: Sequence[Abs]) -> dict[str, Val]:
        """Return, for each stand-in's name, the value at the end of an iteration."""
        found = {
            p.value.name: self._left(p.value, y.value)
            for p, y in zip(self.plan, yields, strict=True)
            if isinstance(p, StandIn) and isinstance(y.value, Val)
        }
        for x, stand_in in self.changed.items():
            if isinstance(stand_in, Val):
                assert isinstance(x.value, Val)
                found[stand_in.name] = x.value
        return found

    def _left(self, stand_in: Val, value: Val) -> Val:
        """Return the value at the end of an iteration, whether it runs or has ended early."""
        return value if self.ends is None else self.ends.held.get(stand_in.name, value)

    def _stand_ins(self) -> list[Val]:
        carried = [p.value for p in self.plan if isinstance(p, StandIn)]
        return [*carried, *(x for x in self.changed.values() if isinstance(x, Val))]

    def _finished(
        self, yields: Sequence[Abs], mark: Sequence[int], delayed: Mapping[str, str]
    ) -> list[Abs]:
        self.b.loc, self.b.op = self.op.loc, "loop"
        names = [n for n in self._values(yields) if n not in delayed]
        inner = [n for n in list(self.b.program.delays)[mark[4] :] if n not in delayed]
        shapes = {v.name: tuple(map(as_index, v.shape)) for v in self._stand_ins()}
        body = closing.closed(self.b, self.axis, mark[0], mark[1], names, delayed, inner, shapes)
        before = self._before(mark[3])
        results: list[Abs] = []
        after_y: dict[Abs, Abs] = {}  # a tensor that two variables name stays one
        for plan, x, y in zip(self.plan, self.carried, yields, strict=True):
            if isinstance(plan, StandIn):
                assert isinstance(y.value, Val)
                start = before.get(x, x.value)
                left = self._left(plan.value, y.value)
                made = Abs(self._after(body, plan.value, left, start, delayed))
                results.append(after_y.setdefault(y, made))
                self._note_view(y, results[-1])
                self._note_choice(x, y, results[-1])
            elif isinstance(plan, Grows):
                start = x.value
                assert isinstance(start, int | Index)
                end = as_index(start) + self.axis.extent * plan.step
                results.append(Abs(end if end.const is None else end.const))
            else:
                results.append(x)
        after: list[tuple[Abs, object]] = []
        for x, stand_in in self.changed.items():
            if isinstance(stand_in, Growing):
                assert isinstance(x.value, Growing)
                aliases = grown_lists.aliases(self, x.value, yields, after_y)
                after.append((x, grown_lists.filled(self, body, x.value, before[x], aliases)))
            else:
                assert isinstance(x.value, Val)
                after.append((x, self._after(body, stand_in, x.value, before[x], delayed)))
        # a view of what has changed is made again when it is next looked at
        kept = [x.value for x in results if x not in self.changed and x.base is None]
        stand_ins = set(self._values(yields))
        self._drop_unused(mark[0], [*kept, *(value for _, value in after)], stand_ins)
        if self.ends is not None:
            self.ends.tie(self._values(yields), body.own & body.lifted)
        if inner and delayed:
            _check_nest(self.b.program)
        for x, value in after:
            self.run.change(x, value)
        return results[: len(self.op.results)]

    def _drop_unused(self, since: int, results: Sequence[object], stand_ins: set[str]) -> None:
        """Without the definitions that no result needs; none that does reads a stand-in."""
        program = self.b.program
        names = [x.name for value in results for x in _tensors_of(value)]
        needed = ex.needed(program, [*names, *program.checks])
        for name in list(program.defs)[since:]:
            if name not in needed:
                del program.defs[name]
        if needed & (stand_ins - program.delays.keys()):
            raise NotLifted("an iteration reads all of what the iterations before it wrote")

    def _before(self, since: int) -> dict[Abs, object]:
        found: dict[Abs, object] = {}
        for x, value in self.run.changes(since):
            found.setdefault(x, value)
        return found

    def _after(
        self, body: closing.Body, name: Val, value: Val, start: object, delayed: Mapping[str, str]
    ) -> Val:
        if name.name in delayed:
            first, why = self._start(start, name), delayed[name.name]
            what = (body, name, value, first, self.op.loc, why)
            return tables.carried(*what) or scan.carried(*what)
        try:
            return self._lifted(body, name, value, start)
        except NotLifted as why:
            raise Carried(str(why), {name.name}) from why

    def _start(self, start: object, name: Val) -> Val:
        """Return the value that the first iteration gets."""
        if isinstance(start, Val) and start.dtype is name.dtype:
            return start

        def element(idx: tuple[Index, ...]) -> Expr:
            found = self._first(start, name, idx)
            if found is None:
                raise NotLifted("it carries a value that is not a tensor before it")
            return found

        return self.b.tensor(name.shape, name.dtype, element)

    def _lifted(self, body: closing.Body, name: Val, value: Val, start: object) -> Val:
        if value.name == name.name:
            if isinstance(start, Val):
                return start
            raise NotLifted("a number is carried that becomes a tensor")

        def element(r: tuple[Index, ...]) -> Expr:
            e = body.element(value, r, name.name)
            before = self._first(start, name, r)
            carry = Carry(self.b, name.name, r, before, self.axis, body.merged)
            if before is None and carry.has(e):
                raise NotLifted("it carries a value that is not a tensor before it")
            found = carry.result(e)
            body.check(found)
            return found

        try:
            return self.b.tensor(name.shape, name.dtype, element)
        except NotLifted as why:
            d = self.b.program.defs.get(value.name)
            if d is None or not d.op or "(" in str(why):
                raise
            raise NotLifted(f"{why} ({d.op} at {d.loc})") from why

    def _first(self, start: object, name: Val, r: tuple[Index, ...]) -> Expr | None:
        if isinstance(start, Val):
            return self.b.load(start, r)
        if isinstance(start, Expr):
            return self.b.cast(start, name.dtype)
        if isinstance(start, bool | int | float) and (
            name.dtype.is_float or not isinstance(start, float)
        ):
            return self.b.const(start, name.dtype)
        return None

    def _note_view(self, y: Abs, result: Abs) -> None:
        """Note a result that is a view of a tensor from before the loop, or shares memory with
        another one. It must not leave the region, and neither tensor is changed later."""
        root = root_of(y)
        if (root is not y and self.is_known(root)) or self._has_another_view(root, y):
            self.run.items[result] = Item(self.op, None)
            self.run.blocked.update((result, root))

    def _note_choice(self, x: Abs, y: Abs, result: Abs) -> None:
        """Note a result that is another name of its initial value, if no iteration may have changed
        that. Neither is changed later."""
        if y not in self.run.chosen:
            return
        if not isinstance(x.value, Val):
            raise NotLifted("a number is carried that becomes a tensor in some iterations")
        others = self.run.items[x].aliases if x in self.run.items else ()
        if x.origin is not None or x.base is not None or others is None:
            raise NotLifted(
                "it carries a tensor from before it that some iterations leave as it is"
            )
        self.run.chosen.add(result)
        self.run.blocked.update((result, x))
        self.run.items[result] = Item(self.op, (x, *others), is_choice=True)


def _check_nest(program: Program) -> None:
    """Raises NotLifted where no loop can be the one outside."""
    try:
        nested_recurrences.check(program)
    except nested_recurrences.NoNest as why:
        raise NotLifted(str(why)) from why


def _tensors_of(value: object) -> list[Val]:
    if isinstance(value, Rows):
        return [x.whole for x in value.pieces if isinstance(x, Chunk)]
    return [value] if isinstance(value, Val) else []


def _knows(x: Abs, axis: Axis) -> bool:
    if isinstance(x.value, Index) and axis in deep_atoms(x.value):
        return True
    if isinstance(x.value, Expr) and axis in x.value.free:
        return True
    if isinstance(x.value, Seq | Map) and any(_knows(e, axis) for e in x.value.elems):
        return True
    return isinstance(x.origin, Origin) and any(_knows(o, axis) for o in x.origin.operands)
