"""Prints branches and loops as C.

In: an `if` or a `loop`, the values before it (see `values`). Out: statements; the results.

    y = a if c else b        int64_t z_r7 = 0; …  if (b_3) { z_r7 = …; memcpy(p_9, …); } else { … }
    while moved: …           for (int64_t z_r4 = 0; 1 && b_5; z_r4++) { … }

What arms or steps give has variables or memory of its own, into which each copies its value. A dim
that differs between arms or steps is a variable, too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from lowtide.c_library import tensor_ops
from lowtide.c_library.regions import Surroundings, nbytes
from lowtide.c_library.values import (
    MISSING,
    Again,
    Frame,
    Maybe,
    Real,
    Refused,
    Rows,
    Tensor,
    Truth,
    c_int,
    c_real,
    c_truth,
    is_bool,
    is_float,
    is_int,
    tensors_in,
)
from lowtide.errors import Loc
from lowtide.execute.block_plan import BlockPlan
from lowtide.ir.core import Block, Op, Value
from lowtide.ir.opdefs import MAX_TRIPS
from lowtide.texpr.build import lone_size
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import nonnegative

Env = dict[Value, object]


class _Broken:
    def __repr__(self) -> str:
        return "an op that was refused"


BROKEN: Final = _Broken()  # the result of an op that was refused


class Ended(Exception):
    """The block raises."""


class Flow(ABC):
    """See the module's text. `lines`: the statements."""

    def __init__(self, frame: Frame, around: Surroundings) -> None:
        self.frame = frame
        self.around = around
        self.numbers = around.numbers
        self.returns = around.returns
        self.lines: list[str] = around.numbers.lines
        self.arms: list[Sequence[Index]] = []  # facts of the arms that are joined
        self.trips: list[Index | None] = []  # of the loops and branches around, at most
        self.rows: list[Rows] = []
        self.likes: dict[tuple[Op, int], object] = {}  # what steps assign that nobody had before

    @abstractmethod
    def raises(self, loc: Loc, text: str) -> str:
        """Return the statement that ends the call with a message."""

    @abstractmethod
    def block(self, plan: BlockPlan, env: Env) -> list[object]:
        """Print a block; return what it yields. Raises Ended."""

    def copied(self, x: Tensor, shape: Sequence[Index] | None = None) -> Tensor:
        """Return a copy, in memory for a tensor of `shape`."""
        made = self.memory(x, tuple(shape or x.shape))
        self.frame.touch(x)
        self.lines.append(f"memcpy({made.at}, {x.at}, {c_int(nbytes(x))});")
        return made

    def memory(self, like: Tensor, shape: tuple[Index, ...]) -> Tensor:
        """Return a tensor of a new temporary."""
        made = tensor_ops.memory(self.frame, like.dtype, shape)
        self.lines.append(tensor_ops.declared(made))
        return made

    def inner(self, plan: BlockPlan, block: Block, env: Env) -> tuple[BlockPlan, Env]:
        """Return the plan of a nested block, and the values that it reads."""
        inner = plan.inner(block)
        inner.is_repeated = False  # ints that change are C variables, no constants
        return inner, {v: env[v] for v in inner.live_at[0] if v in env}

    def if_(self, plan: BlockPlan, op: Op, env: Env) -> list[object]:
        condition = env[op.operands[0]]
        if isinstance(condition, bool):
            return self.block(*self.inner(plan, op.blocks[0 if condition else 1], env))
        as_bools = _only_tested(plan.block, op)

        def arm(block: Block) -> Callable[[], list[object]]:
            def run() -> list[object]:
                found = self.block(*self.inner(plan, block, env))
                return [
                    self.numbers.op("py.bool", [self.numbers.item(x)])
                    if k in as_bools and isinstance(x, Tensor) else x
                    for k, x in enumerate(found)
                ]  # fmt: skip

            return run

        yes, no = op.blocks
        return self.branches([(c_truth(condition), arm(yes)), ("", arm(no))], "")

    def branches(
        self,
        arms: Sequence[tuple[str, Callable[[], list[object]]]],
        otherwise: str,
        facts: Sequence[Sequence[Index]] = (),
    ) -> list[object]:
        """Print arms of which one runs, and return what they have in common: their results. An arm
        without a condition comes last; `otherwise`: what is done if no condition holds. `facts`:
        for each arm, indices that are >= 0 there."""
        start = self.frame.tick
        printed: list[tuple[str, list[str], list[object] | None]] = []
        outer = self.lines
        for condition, run in arms:
            self.into([])
            self.frame.tick += 1
            self.trips.append(as_index(1))
            before = len(self.frame.facts)
            self.frame.facts += facts[len(printed)] if facts else ()
            try:
                values: list[object] | None = run()
            except Ended:
                values = None
            finally:
                self.trips.pop()
                del self.frame.facts[before:]
                inner = self.lines
                self.into(outer)
            printed.append((condition, inner, values))
        live = [values for _, _, values in printed if values is not None]
        known = [facts[k] if facts else () for k, row in enumerate(printed) if row[2] is not None]
        found: list[object] = []
        assigned: list[list[str]] = [[] for _ in live]
        if live:
            for column in zip(*live, strict=True):
                self.arms = known
                value, lines = self.joined(column, start)
                self.arms = []
                found.append(value)
                for k, line in enumerate(lines):
                    assigned[k] += line
        pending = iter(assigned)
        head = "if"
        for condition, inner, values in printed:
            inner += next(pending) if values is not None else []
            self.lines.append(f"{head} ({condition}) {{" if condition else "else {")
            self.lines += inner
            self.lines.append("}")
            head = "else if"
        if printed[-1][0]:
            self.lines.append(f"else {otherwise}")
        self.frame.tick += 1
        if not live:
            raise Ended
        return found

    def into(self, lines: list[str]) -> None:
        """Print into these lines from now on."""
        self.lines = self.numbers.lines = lines

    def joined(self, column: Sequence[object], start: int) -> tuple[object, list[list[str]]]:
        """Return a value that is one of these, declared before the arms, and what each arm does to
        give it. `start`: the tick before the arms."""
        none: list[list[str]] = [[] for _ in column]
        present = [x for x in column if x is not MISSING]
        if any(x is BROKEN for x in column):
            return BROKEN, none
        if not present:
            return MISSING, none
        first = present[0]
        if len(present) < len(column) or any(isinstance(x, Maybe) for x in column):
            return self.joined_maybe(column, start)
        if all(_is_same(x, first) for x in present):
            return first, none
        return self.combined(column, start)

    def combined(self, column: Sequence[object], start: int) -> tuple[object, list[list[str]]]:
        """Return a new variable or memory for one of these values; see `joined`."""
        none: list[list[str]] = [[] for _ in column]
        present = [x for x in column if x is not MISSING]
        first = present[0]
        if all(_length(x) == _length(first) for x in column) and isinstance(first, tuple):
            made: list[object] = []
            for inner in zip(*cast("Any", column), strict=True):
                value, lines = self.joined(inner, start)
                made.append(value)
                for k, line in enumerate(lines):
                    none[k] += line
            return tuple(made), none
        if all(map(is_bool, present)):
            return self.joined_number(column, "int", c_truth)
        if all(map(is_int, present)):
            return self.joined_number(column, "int64_t", c_int)
        if all(is_float(x) for x in present):
            return self.joined_number(column, "double", c_real)
        if all(isinstance(x, Tensor) for x in present):
            return self.joined_tensor(cast("Sequence[Tensor | object]", column), start)
        raise Refused("gives values of several types")

    def joined_maybe(self, column: Sequence[object], start: int) -> tuple[object, list[list[str]]]:
        """Return a variable that only some of the arms assign."""
        inner = [x.value if isinstance(x, Maybe) else x for x in column]
        name = self.frame.fresh("b_")
        self.lines.append(f"int {name} = 0; (void){name};")
        arms = self.arms
        self.arms = [f for f, x in zip(arms, inner, strict=False) if x is not MISSING]
        value, found = self.combined([x for x in inner if x is not MISSING], start)
        self.arms = arms
        rest = iter(found)
        lines = [[] if x is MISSING else next(rest) for x in inner]
        for k, x in enumerate(column):
            flag = x.flag if isinstance(x, Maybe) else str(int(x is not MISSING))
            lines[k].append(f"{name} = {flag};")
        return Maybe(value, name), lines

    def joined_number(
        self, column: Sequence[object], ctype: str, text: Callable[[object], str]
    ) -> tuple[object, list[list[str]]]:
        """Return a C variable, and assignments to it."""
        value, name = self.variable(column[0] if column[0] is not MISSING else column[1], column)
        self.lines.append(f"{ctype} {name} = 0; (void){name};")
        return value, [[] if x is MISSING else [f"{name} = {text(x)};"] for x in column]

    def variable(
        self, like: object, column: Sequence[object], *, is_size: bool = False
    ) -> tuple[object, str]:
        """Return a new C variable of the kind of `like`, one of these values; and its name.
        `is_size`: none of them is negative."""
        if is_bool(like):
            name = self.frame.fresh("b_")
            return Truth(name), name
        if is_float(like):
            name = self.frame.fresh("d_")
            return Real(name), name
        known = [as_index(cast("Index | int", x)) for x in column if is_int(x)]
        low = 0 if is_size or all(map(nonnegative, known)) else None
        bound = self.largest(known) if low == 0 and len(known) == len(column) else None
        is_small = all(map(self.frame.is_small, known))
        made = self.frame.variable(low, bound, is_small=is_small)
        return made, c_int(made)[1:-1]

    def largest(self, known: Sequence[Index]) -> Index | None:
        """Return an upper bound, in sizes of the call, of ints that the arms give; None if there is
        none."""
        bounds: list[Index] = []
        for k, n in enumerate(known):
            try:
                with self.in_arm(k):
                    bounds.append(self.frame.most(n))
            except Refused:
                return None
        found, *rest = bounds
        for n in rest:
            if nonnegative(n - found):
                found = n
            elif not nonnegative(found - n):
                found = found + n
        return found

    @contextmanager
    def in_arm(self, arm: int) -> Generator[None]:
        """Within it, the facts of one of the arms that are joined hold."""
        known = len(self.frame.facts)
        self.frame.facts += self.arms[arm] if self.arms else ()
        try:
            yield
        finally:
            del self.frame.facts[known:]

    def is_equal(self, a: Index, b: Index, arm: int) -> bool:
        """Return whether two sizes are certainly equal in this one of the arms that are joined."""
        with self.in_arm(arm):
            return a is b or (self.frame.is_sure(a - b) and self.frame.is_sure(b - a))

    def joined_tensor(
        self, column: Sequence[Tensor | object], start: int
    ) -> tuple[object, list[list[str]]]:
        """Return a temporary, and copies into it."""
        given = [x for x in column if isinstance(x, Tensor)]
        like = given[0]
        if any((x.dtype, len(x.shape)) != (like.dtype, len(like.shape)) for x in given):
            raise Refused("gives tensors of several types or numbers of dims")
        shape: list[Index] = []
        moved: list[list[str]] = [[] for _ in column]
        for sizes in zip(*(x.shape for x in given), strict=True):
            common = next(
                (c for c in dict.fromkeys(sizes)
                 if all(self.is_equal(c, n, k) for k, n in enumerate(sizes))), None,
            )  # fmt: skip
            if common is not None:
                shape.append(common)
                continue
            n, name = self.variable(sizes[0], sizes, is_size=True)
            self.lines.append(f"int64_t {name} = 0; (void){name};")
            shape.append(cast("Index", n))
            them = iter(sizes)
            for k, x in enumerate(column):
                if isinstance(x, Tensor):
                    moved[k].append(f"{name} = {c_int(next(them))};")
        made = self.memory(like, tuple(shape))
        assert made.piece is not None
        self.frame.pieces[made.piece].begin = start
        self.frame.touch(made, given)
        for k, x in enumerate(column):
            if isinstance(x, Tensor):
                moved[k].append(f"memcpy({made.at}, {x.at}, {c_int(nbytes(x))});")
        return made, moved

    # -- loops --

    def loop(self, plan: BlockPlan, op: Op, env: Env) -> list[object]:
        trips, going, *init = (env[v] for v in op.operands)
        if going is False or (type(trips) is int and trips <= 0):
            return init
        varying: set[tuple[int, int]] = set()
        while True:
            before = self.mark()
            outer = self.lines
            self.into([])
            try:
                found = self.looped(plan, op, env, (trips, going, init), varying)
            except Again:
                raise
            except Ended:
                self.into(outer)
                raise Refused("raises in each iteration") from None
            made = self.lines
            self.into(outer)
            if isinstance(found, set):
                varying |= found
                self.reset(before)
                continue
            self.lines += made
            return found

    def mark(self) -> tuple[Any, ...]:
        """Return what `reset` returns to."""
        frame = self.frame
        pieces = [(p.begin, p.end) for p in frame.pieces]
        rows = [(x, x.added, len(x.families)) for x in self.rows]
        return pieces, frame.tick, len(frame.messages), dict(frame.reasons), rows

    def reset(self, mark: tuple[Any, ...]) -> None:
        """Forget what has been printed since."""
        frame = self.frame
        pieces, frame.tick, messages, frame.reasons, rows = mark
        self.rows[:] = [x for x, _, _ in rows]
        for x, added, count in rows:
            x.added = added
            del x.families[count:]
        del frame.pieces[len(pieces) :], frame.messages[messages:]
        for p, (begin, end) in zip(frame.pieces, pieces, strict=True):
            p.begin, p.end = begin, end

    def looped(
        self,
        plan: BlockPlan,
        op: Op,
        env: Env,
        given: tuple[Any, Any, list[object]],
        varying: set[tuple[int, int]],
    ) -> list[object] | set[tuple[int, int]]:
        """Print a loop whose carried tensors have other sizes in these dims after each step; or
        return dims of which that turns out."""
        trips, going, init = given
        (block,) = op.blocks
        args = [
            self.unassigned(self.likes[op, k], k, varying)
            if x is MISSING and (op, k) in self.likes else self.carried(x, k, varying)
            for k, x in enumerate(init)
        ]  # fmt: skip
        self.frame.tick += 1
        begin = self.frame.tick
        self.frame.tick += 1
        index = self.frame.variable(0, self.last_of(trips), is_small=True)
        counter = c_int(index)[1:-1]
        goes = ""
        goes_on = block.terminator.operands[0]
        if going is not True or any(goes_on in inner.results for inner in block.ops):
            goes = self.frame.fresh("b_")
            self.lines.append(f"int {goes} = {c_truth(going)};")
        limit = f"{counter} < {c_int(trips)}" if trips != MAX_TRIPS else "1"
        test = f"{limit} && {goes}" if goes else limit
        self.lines.append(f"for (int64_t {counter} = 0; {test}; {counter}++) {{")
        self.lines.append(f"(void){counter};")
        inner, outer = self.inner(plan, block, env)
        outer.update(zip(block.args, [index, *args], strict=True))
        facts = len(self.frame.facts)
        last = self.last_of(trips)
        self.trips.append(None if last is None else last + 1)
        self.frame.facts.append(as_index(cast("Index | int", trips)) - 1)
        try:
            going_on, *yields = self.block(inner, outer)
        finally:
            del self.frame.facts[facts:]
            self.trips.pop()
        self.frame.tick += 1
        new = [k for k, (arg, x) in enumerate(zip(args, yields, strict=True))
               if arg is MISSING and x is not MISSING and x is not BROKEN]  # fmt: skip
        if new:
            self.likes.update(((op, k), yields[k]) for k in new)
            return set()
        found = {
            (k, d)
            for k, (arg, x) in enumerate(zip(args, yields, strict=True))
            for arg, x in [(_value(arg), _value(x))]
            if isinstance(arg, Tensor) and isinstance(x, Tensor) and len(arg.shape) == len(x.shape)
            for d, (a, b) in enumerate(zip(arg.shape, x.shape, strict=True))
            if a is not b and (k, d) not in varying
        }
        if found:
            same = [
                pair for k, d in found
                if init[k] is not MISSING and
                (pair := self.sizes_alike(cast("Tensor", _value(init[k])).shape[d],
                                          cast("Tensor", _value(yields[k])).shape[d]))
            ]  # fmt: skip
            if same:
                raise Again(same=same)
            return found
        self.assign(args, yields)
        if goes:
            self.lines.append(f"{goes} = {c_truth(going_on)};")
        self.lines.append("}")
        self.frame.touch(args)
        self.frame.repeated(begin)
        self.frame.tick += 1
        return args

    def sizes_alike(self, a: Index, b: Index) -> tuple[str, str] | None:
        """Return the names of two sizes of the call that are equal in the example."""
        x, y = lone_size(a), lone_size(b)
        sizes = self.around.sizes
        if x is None or y is None or not {x.name, y.name} <= sizes.keys():
            return None
        return (x.name, y.name) if sizes[x.name] == sizes[y.name] and x is not y else None

    def last_of(self, trips: object) -> Index | None:
        if trips == MAX_TRIPS:
            return None
        try:
            return self.frame.most(as_index(cast("Index | int", trips))) - 1
        except Refused:
            return None

    def carried(self, x: object, k: int, varying: set[tuple[int, int]]) -> object:
        """Return the variable or memory of a carried value, which begins as `x`."""
        if isinstance(x, Tensor):
            shape = list(x.shape)
            for d in range(len(shape)):
                if (k, d) in varying:
                    shape[d] = self.size_of(shape[d])
            return self.copied(x, shape)
        if is_int(x):
            made = self.frame.variable(None, None)
            self.lines.append(f"int64_t {c_int(made)[1:-1]} = {c_int(x)};")
            return made
        if is_float(x) or is_bool(x):
            value, name = self.variable(x, [x])
            ctype, text = ("int", c_truth(x)) if is_bool(x) else ("double", c_real(x))
            self.lines.append(f"{ctype} {name} = {text};")
            return value
        if isinstance(x, tuple):
            return tuple(self.carried(e, -1, varying) for e in cast("tuple[object, ...]", x))
        if isinstance(x, Maybe):
            flag = self.frame.fresh("b_")
            self.lines.append(f"int {flag} = {x.flag};")
            return Maybe(self.carried(x.value, k, varying), flag)
        return x

    def unassigned(self, like: object, k: int, varying: set[tuple[int, int]]) -> Maybe:
        """Return the variable or memory of what the steps of a loop assign."""
        if isinstance(like, Maybe):
            like = like.value
        flag = self.frame.fresh("b_")
        self.lines.append(f"int {flag} = 0; (void){flag};")
        if isinstance(like, Tensor):
            most = tuple(self.frame.most(n) for n in like.shape)
            whole = self.memory(like, most)
            varying |= {(k, d) for d, (a, b) in enumerate(zip(most, like.shape, strict=True))
                        if a is not b}  # fmt: skip
            shape = [self.size_of(n, zero=True) if (k, d) in varying else n
                     for d, n in enumerate(most)]  # fmt: skip
            return Maybe(replace(whole, shape=tuple(shape)), flag)
        if not (is_int(like) or is_float(like) or is_bool(like)):
            raise Refused("carries what is neither a tensor nor a number")
        zero = False if is_bool(like) else 0 if is_int(like) else 0.0
        return Maybe(self.carried(zero, k, varying), flag)

    def size_of(self, n: Index, *, zero: bool = False) -> Index:
        """Return a variable for a size of at most n, which begins as n or 0."""
        made = self.frame.variable(0, self.frame.most(n))
        self.lines.append(f"int64_t {c_int(made)[1:-1]} = {0 if zero else c_int(n)};")
        return made

    def assign(self, args: Sequence[object], yields: Sequence[object]) -> None:
        """Print the assignment of what a step yields to the carried variables, all at once."""
        now: list[str] = []
        later: list[str] = []
        memory = {x.at for x in tensors_in(tuple(args))}
        for arg, x in zip(args, yields, strict=True):
            self.assigned(arg, x, memory, now, later)
        if now or later:
            self.lines += ["{", *now, *later, "}"]

    def assigned(
        self, arg: object, x: object, memory: set[str], now: list[str], later: list[str]
    ) -> None:
        if x is BROKEN or _is_same(arg, x):
            return
        if isinstance(arg, Maybe):
            value, flag = (x.value, x.flag) if isinstance(x, Maybe) else (x, "1")
            self.assigned(arg.value, value, memory, now, later)
            if flag != arg.flag:
                later.append(f"{arg.flag} = {flag};")
            return
        if isinstance(arg, Tensor) and isinstance(x, Tensor):
            if (arg.dtype, len(arg.shape)) != (x.dtype, len(x.shape)):
                raise Refused("carries tensors of several types or numbers of dims")
            assert arg.piece is not None
            available = self.frame.pieces[arg.piece].nbytes[0]
            if not nonnegative(available - self.frame.most(nbytes(x))):
                raise Refused("carries a tensor that grows; preallocate it, and write into it")
            source = x
            if x.at in memory:  # another carried one: its old value
                outer, self.lines = self.lines, now
                source = self.copied(x)
                self.lines = outer
            self.frame.touch(source, arg)
            later.append(f"memcpy({arg.at}, {source.at}, {c_int(nbytes(x))});")
            for a, b in zip(arg.shape, x.shape, strict=True):
                if a is not b:
                    name = self.frame.fresh("y_")
                    now.append(f"const int64_t {name} = {c_int(b)};")
                    later.append(f"{c_int(a)[1:-1]} = {name};")
            return
        if _length(arg) is not None and _length(arg) == _length(x):
            for a, b in zip(cast("Any", arg), cast("Any", x), strict=True):
                self.assigned(a, b, memory, now, later)
            return
        for is_kind, ctype, text in (
            (is_bool, "int", c_truth), (is_int, "int64_t", c_int), (is_float, "double", c_real),
        ):  # fmt: skip
            if is_kind(arg) and is_kind(x):
                name = self.frame.fresh("y_")
                now.append(f"const {ctype} {name} = {text(x)};")
                later.append(f"{text(arg).strip('()')} = {name};")
                return
        raise Refused("carries values of several types")


def _value(x: object) -> object:
    return x.value if isinstance(x, Maybe) else x


def _length(x: object) -> int | None:
    return len(cast("tuple[object, ...]", x)) if isinstance(x, tuple) else None


def _is_same(a: object, b: object) -> bool:
    if a is b:
        return True
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.at == b.at
    if isinstance(a, Index) or isinstance(b, Index):
        return isinstance(a, Index) and a == b
    return type(a) is type(b) and not isinstance(a, list) and a == b


def _only_tested(block: Block, op: Op) -> set[int]:
    """Return which results of an `if`, bools or tensors, are only turned into bools."""
    found: set[int] = set()
    for k, result in enumerate(op.results):
        users = [o for o in block.ops if result in o.operands]
        if users and all(o.name in ("py.bool", "py.not") for o in users):
            found.add(k)
    return found
