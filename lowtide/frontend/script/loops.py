"""`for` and `while`.

In: loop statements. Out: `loop` ops, whose carried values are the variables that the body assigns
and that were bound before; loops over tuples are unrolled.

    for i in range(n):         %acc.1: Tensor = loop(%n, %true, %acc)
        acc = acc + i            block(%i: int, %acc: Tensor):
                                   %acc.2: Tensor = torch.add(%acc, %i, %1)
                                   yield(%true, %acc.2)

Invariant: the types of carried values are the same before, in and after the loop. If the body
widens one (an int that becomes a tensor), or changes a list that was taken as constant, it is
compiled again. If the body needs the number of the step (`getattr(self, f"conv{i}")`), a loop of
few steps is unrolled, too. `break` and `return` set flags (see `flow`), and the loop's condition is
that none is set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lowtide.errors import CompileError
from lowtide.frontend.script.attempts import attempt
from lowtide.frontend.script.context import (
    BROKE,
    CONTINUED,
    RETURN_VALUE,
    RETURNED,
    Context,
    NotKnown,
    Step,
    statement,
)
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.displays import run_over
from lowtide.frontend.script.flow import branch_on, choose, exit_flag, open_branch, run
from lowtide.frontend.script.iteration import Iteration, Reading, if_there, iterate, static_length
from lowtide.frontend.script.mutation import (
    after,
    changed_names,
    is_read_first,
    named_inside,
    stored_names,
)
from lowtide.frontend.script.nodes import Poison, read_once
from lowtide.frontend.script.operators import truth
from lowtide.frontend.script.targets import assign
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.builder import Mark
from lowtide.ir.core import Block, Value
from lowtide.ir.opdefs import MAX_TRIPS
from lowtide.ir.types import Type

_WIDENINGS = 8


@statement(ast.For)
def compile_for(c: Context, node: ast.For, rest: Sequence[Step]) -> bool:
    """`for target in iterable: body`."""
    reading = Reading.OBJECTS_AND_UNKNOWN if _may_leave(c, node) else Reading.OBJECTS
    iteration = iterate(c, run_over(c, node.iter), node.iter, reading)

    def enter(i: Value) -> None:
        assign(c, node.target, iteration.element(i))

    with _loop_flags(c) as flags:
        if iteration.must_unroll:
            _unroll(c, node, iteration, enter)
        else:
            body = _Body(
                c,
                node,
                [node.target, *node.body],
                enter,
                c.steps(node.body),
                keeps_break=bool(node.orelse) or iteration.finish is not None,
                iteration=iteration,
            )
            refused = _refused(c, body, iteration)
            if refused is not None and static_length(c, iteration) is None:
                raise refused from None
            if refused is not None:
                _unroll(c, node, iteration, enter)
        _finish(c, node, iteration)
    return _or_else(c, node, flags.broke, rest)


def _may_leave(c: Context, node: ast.For) -> bool:
    """Return whether a loop may end before its last element, or may change a list that was there
    before: then a value of unknown type is read by Python's iterator."""
    for part in (p for s in node.body for p in ast.walk(s)):
        match part:
            case ast.Break() | ast.Return() | ast.Raise():
                return True
            case ast.Call(ast.Attribute(base, name)) if opdefs.writes(f"list.{name}"):
                pass
            case ast.Subscript(base, _, ast.Store() | ast.Del()) | ast.AugAssign(base):
                pass
            case _:
                continue
        if not isinstance(base, ast.Name):
            return True
        found = c.frame.vars.get(base.id)
        if isinstance(found, Value) and t.is_dynamic(found.type):
            return True
    return False


def _refused(c: Context, body: _Body, iteration: Iteration) -> CompileError | None:
    """Compile a loop; return why it must be unrolled, if so."""
    try:
        found = attempt(c, lambda: body.loop(iteration.length))
    except _Unlike as error:
        return error.error
    if isinstance(found, CompileError) and not isinstance(found, NotKnown):
        raise found
    return found


def _finish(c: Context, node: ast.AST, iteration: Iteration) -> None:
    """Compile the code after the last element, if the loop got there."""
    left = exit_flag(c) if iteration.finish is not None else True
    if iteration.finish is None or left is True:
        return
    condition = c.const(False) if left is False else left
    branch_on(c, node, condition, lambda: None, iteration.finish)


@statement(ast.While)
def compile_while(c: Context, node: ast.While, rest: Sequence[Step]) -> bool:
    """`while test: body`."""
    with _loop_flags(c) as flags:
        body = _Body(
            c,
            node,
            [node.test, *node.body],
            None,
            c.steps(node.body),
            test=node.test,
            keeps_break=bool(node.orelse),
        )
        try:
            body.loop(c.const(MAX_TRIPS))
        except _Unlike as error:
            raise error.error from None
    return _or_else(c, node, flags.broke, rest)


def _or_else(
    c: Context, node: ast.For | ast.While, broke: Value | None, rest: Sequence[Step]
) -> bool:
    """Compile a loop's `else`, which runs if no `break` did. Its own `break` and `continue` belong
    to the enclosing loop, whose flags are restored."""
    if not node.orelse:
        return False
    assert broke is not None
    return branch_on(c, node, broke, lambda: None, lambda: run(c, c.steps(node.orelse)), rest)


@statement(ast.Break)
def compile_break(c: Context, node: ast.Break, rest: Sequence[Step]) -> None:
    """`break`."""
    c.frame.vars[BROKE] = c.const(True)


@statement(ast.Continue)
def compile_continue(c: Context, node: ast.Continue, rest: Sequence[Step]) -> None:
    """`continue`."""
    c.frame.vars[CONTINUED] = c.const(True)


def loop_over(
    c: Context,
    node: ast.AST,
    names: Sequence[ast.AST],
    iteration: Iteration,
    body: Callable[[Value], None],
) -> None:
    """Compile a loop around a compiling function. `names`: variables that it assigns."""

    def step(_: Sequence[Step]) -> bool:
        return False

    if iteration.must_unroll:
        for k in range(static_length(c, iteration) or 0):
            index = c.const(k)
            if_there(c, node, iteration, index, lambda i=index: body(i))
        if iteration.finish is not None:
            iteration.finish()
        return
    with _loop_flags(c):
        try:
            _Body(c, node, names, body, [step], iteration=iteration).loop(iteration.length)
        except _Unlike as error:
            raise error.error from None
    if iteration.finish is not None:
        iteration.finish()


class _loop_flags:
    """A context in which a loop has its own `break` and `continue` flags. `broke`: the value of the
    first at its end."""

    def __init__(self, c: Context) -> None:
        self.c = c
        self.broke: Value | None = None

    def __enter__(self) -> _loop_flags:
        vars = self.c.frame.vars
        self.outer = {flag: vars.get(flag) for flag in (BROKE, CONTINUED)}
        vars[BROKE] = vars[CONTINUED] = self.c.const(False)
        return self

    def __exit__(self, *_: object) -> None:
        broke = self.c.frame.vars.get(BROKE)
        self.broke = broke if isinstance(broke, Value) else None
        for flag, value in self.outer.items():
            self.c.frame.vars.pop(flag, None)
            if value is not None:
                self.c.frame.vars[flag] = value


def _unroll(
    c: Context, node: ast.For, iteration: Iteration, enter: Callable[[Value], None]
) -> None:
    count = static_length(c, iteration) or 0

    def iteration_step(k: int) -> Step:
        def compile_iteration(_: Sequence[Step]) -> bool:
            c.frame.vars[CONTINUED] = c.const(False)
            if_there(c, node, iteration, index, compile_body)
            c.frame.vars[CONTINUED] = c.const(False)
            return False

        index = c.const(k)

        def compile_body() -> None:
            enter(index)
            run(c, c.steps(node.body))

        return compile_iteration

    run(c, [iteration_step(k) for k in range(count)])


class _Unlike(Exception):
    """A carried variable changes to a type that cannot be joined with the one before."""

    def __init__(self, error: CompileError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _Trial:
    block: Block
    condition: Value
    values: list[Value]


@dataclass(slots=True)
class _Body:
    """One loop about to be compiled, perhaps several times until its types are settled."""

    c: Context
    node: ast.AST
    assigning: Sequence[ast.AST]
    enter: Callable[[Value], None] | None
    steps: Sequence[Step]
    test: ast.expr | None = None
    keeps_break: bool = False
    iteration: Iteration | None = None
    source_changes: bool = False  # the list that is run over is changed by the body
    late: dict[str, Value] = field(default_factory=dict[str, Value])  # not bound before the loop
    unbound: set[str] = field(default_factory=set[str])  # perhaps, where an iteration begins

    def loop(self, trips: Value) -> None:
        c = self.c
        had_asks, begin = self._asks, self._first_test()
        if c.builder.constant(begin) is False:
            return
        names = self._carried()
        before = [self._variable(n) for n in names]
        c.builder.hold(before)
        types = [v.type for v in before]
        self.unbound = {n for n, v in zip(names, before, strict=True) if v in c.maybe_unbound}
        start = c.builder.mark()
        for _ in range(_WIDENINGS):
            mark = c.builder.mark(start)
            known = self.source_changes, len(self.unbound)
            trial = self._compile(names, types)
            rows = zip(types, before, trial.values, strict=True)  # which the body may have widened
            joined = [t.join_all((a, v.type, w.type)) for a, v, w in rows]
            c.builder.hold(trial.values)  # by what is written to in the next iteration
            self._look_at_source(mark)
            self.unbound |= {
                n for n, v in zip(names, trial.values, strict=True) if v in c.maybe_unbound
            }
            settled = (self.source_changes, len(self.unbound)) == known
            settled = settled and not c.builder.has_changed(mark)
            if joined == types and settled:
                begin = self._first_test() if self._asks and not had_asks else begin
                self._close(names, before, types, trial, trips, begin)
                return
            types = joined
        raise self.c.error(
            self.node, "the types of the loop's variables do not settle", "one type each"
        )

    def _first_test(self) -> Value:
        if self.test is None:
            return self._still_within(None) or self.c.const(True)
        return truth(self.c, self.test, self.c.value(self.test))

    @property
    def _asks(self) -> bool:
        """Return whether each step asks if there is an element."""
        iteration = self.iteration
        if iteration is None or iteration.within is None:
            return False
        return self.source_changes or iteration.is_drawn

    def _still_within(self, index: Value | None) -> Value | None:
        """For an iterator, or a list or dict that the body changes: compile the test whether an
        element is left."""
        c, iteration = self.c, self.iteration
        if iteration is None or iteration.within is None or not self._asks:
            return None
        following = c.const(0) if index is None else c.py(self.node, "py.add", index, c.const(1))
        return iteration.within(following)

    def _look_at_source(self, mark: Mark) -> None:
        sources = self.iteration.sources if self.iteration is not None else ()
        if any(self.c.builder.was_written(source, mark) for source in sources):
            self.source_changes = True

    def _carried(self) -> list[str]:
        c = self.c
        stored = stored_names(self.assigning)
        changed = changed_names(self.assigning)
        if any(isinstance(n, ast.Return) for a in self.assigning for n in ast.walk(a)):
            c.frame.vars.setdefault(RETURN_VALUE, c.builder.undef())
            stored |= {RETURNED, RETURN_VALUE}
        if self.keeps_break:
            stored.add(BROKE)
        names = [
            n
            for n, v in c.frame.vars.items()
            if isinstance(v, Value) and (n in stored or (n in changed and _may_be_rebound(v)))
        ]
        bound = {n for n, v in c.frame.vars.items() if not isinstance(v, Poison)}
        for name in sorted(stored - bound):
            if not name.startswith("$") and self._is_wanted_later(name):
                self.late[name] = c.builder.undef()
                c.maybe_unbound.add(self.late[name])
                names.append(name)
        return names

    def _is_wanted_later(self, name: str) -> bool:
        """Return whether a variable that only the body assigns is read after the loop."""
        if not isinstance(self.node, ast.For | ast.While):
            return name in named_inside(self.node)
        return is_read_first(name, after(self.node, self.c.frame.source.node))

    def _variable(self, name: str) -> Value:
        value = self.late.get(name) or self.c.frame.vars[name]
        assert isinstance(value, Value)
        return shown(self.c, value)

    def _compile(self, names: Sequence[str], types: Sequence[Type]) -> _Trial:
        c = self.c
        index = Value("", t.INT)
        hints = ["" if n.startswith("$") else n for n in names]
        args = [Value(h, type_) for h, type_ in zip(hints, types, strict=True)]
        c.builder.born([index, *args])
        c.maybe_unbound.update(a for n, a in zip(names, args, strict=True) if n in self.unbound)
        condition = [index]

        def compile_body() -> None:
            c.frame.vars.update(zip(names, args, strict=True))
            c.frame.vars.update(self._read_before())
            for flag in (BROKE, CONTINUED, RETURNED):  # else the loop would have ended
                c.frame.vars[flag] = c.const(False)
            if self.enter is not None:
                self.enter(index)
            run(c, self.steps)
            c.frame.vars[CONTINUED] = c.const(False)
            condition[0] = self._next_test(index)

        with c.in_loop():
            branch = open_branch(c, compile_body)
        branch.block.args = [index, *args]
        values: list[Value] = []
        for name in names:
            value = branch.vars.get(name)
            if not isinstance(value, Value):
                why = value.why if isinstance(value, Poison) else f"{name!r} is not a value"
                raise _Unlike(c.error(self.node, why))
            with c.builder.inside(branch.block):
                values.append(shown(c, value))
        return _Trial(branch.block, condition[0], values)

    def _read_before(self) -> dict[str, Poison]:
        """Return iterators from before the loop that its first iteration may consume."""
        loc = self.c.frame.source.loc(self.node)
        rows = self.c.frame.vars.items()
        return {n: read_once(n, loc) for n, v in rows if self.c.is_iterator(v)}

    def _next_test(self, index: Value) -> Value:
        c = self.c
        left = exit_flag(c)
        if left is True:
            return c.const(False)
        if left is False:
            return self._continues(index)
        if self.test is None and not self._asks:
            return c.py(self.node, "py.not", left)
        return choose(c, self.node, left, lambda: c.const(False), lambda: self._continues(index))

    def _continues(self, index: Value) -> Value:
        if self.test is not None:
            return truth(self.c, self.test, self.c.value(self.test))
        return self._still_within(index) or self.c.const(True)

    def _close(
        self,
        names: Sequence[str],
        before: Sequence[Value],
        types: Sequence[Type],
        trial: _Trial,
        trips: Value,
        begin: Value,
    ) -> None:
        c = self.c
        if self._asks:  # each iteration reads its length
            trips = c.const(MAX_TRIPS)
        with c.builder.inside(trial.block):
            c.builder.emit("yield", [trial.condition, *trial.values])
        op = c.builder.emit("loop", [trips, begin, *before], types, blocks=[trial.block])
        for name, arg, result in zip(names, trial.block.args[1:], op.results, strict=True):
            result.name = arg.name
            if arg in c.maybe_unbound:
                c.maybe_unbound.add(result)
            c.frame.vars[name] = result
        self._poison_locals(names)

    def _poison_locals(self, carried: Sequence[str]) -> None:
        """Poison the variables that the body assigns first: they may not exist after the loop."""
        loc = self.c.frame.source.loc(self.node)
        for name in stored_names(self.assigning) - set(carried):
            if name not in self.c.frame.vars and not name.startswith("$"):
                self.c.frame.vars[name] = Poison(
                    f"{name!r} is assigned only in the loop, which may run zero times",
                    f"a value for {name!r} before the loop",
                    loc,
                )


def _may_be_rebound(value: Value) -> bool:
    """Return whether an in-place change of the variable rebinds it, as for tensors."""
    return t.is_tensor(value.type) or t.is_dynamic(value.type)
