"""`for` and `while`.

In: loop statements. Out: `loop` ops, whose carried values are the variables that the body assigns
and that were bound before; loops over tuples are unrolled.

    for i in range(n):         %acc.1: Tensor = loop(%n, %true, %acc)
        acc = acc + i            block(%i: int, %acc: Tensor):
                                   %acc.2: Tensor = torch.add(%acc, %i, %1)
                                   yield(%true, %acc.2)

Always holds: the types of carried values are the same before, in and after the loop; where the body
widens one (an int that becomes a tensor), the body is compiled again with the wider type.
`break` and `return` set flags (see `flow`), and the loop's condition is that none is set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lowtide.errors import CompileError
from lowtide.frontend.script.context import (
    BROKE,
    CONTINUED,
    RETURN_VALUE,
    RETURNED,
    Context,
    Step,
    statement,
)
from lowtide.frontend.script.flow import exit_flag, open_branch, run
from lowtide.frontend.script.iteration import Iteration, iterate, static_length
from lowtide.frontend.script.mutation import assigned_names
from lowtide.frontend.script.nodes import Poison
from lowtide.frontend.script.targets import assign
from lowtide.ir import types as t
from lowtide.ir.core import Block, Value
from lowtide.ir.opdefs import MAX_TRIPS
from lowtide.ir.types import Type

_WIDENINGS = 4


@statement(ast.For)
def compile_for(c: Context, node: ast.For, rest: Sequence[Step]) -> None:
    """`for target in iterable: body`."""
    _no_else(c, node)
    iteration = iterate(c, c.expr(node.iter), node.iter)

    def enter(i: Value) -> None:
        assign(c, node.target, iteration.element(i))

    with _loop_flags(c):
        if iteration.must_unroll:
            _unroll(c, node, iteration, enter)
            return
        body = _Body(c, node, [node.target, *node.body], enter, c.steps(node.body), None)
        try:
            body.loop(iteration.length)
        except _Unlike as error:
            if static_length(c, iteration) is None:
                raise error.error from None
            _unroll(c, node, iteration, enter)


@statement(ast.While)
def compile_while(c: Context, node: ast.While, rest: Sequence[Step]) -> None:
    """`while test: body`."""
    _no_else(c, node)
    with _loop_flags(c):
        body = _Body(c, node, node.body, None, c.steps(node.body), node.test)
        try:
            body.loop(c.const(MAX_TRIPS))
        except _Unlike as error:
            raise error.error from None


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
    """A loop around compiled code rather than statements; `names`: where variables are assigned."""

    def step(_: Sequence[Step]) -> bool:
        return False

    with _loop_flags(c):
        try:
            _Body(c, node, names, body, [step], None).loop(iteration.length)
        except _Unlike as error:
            raise error.error from None


class _loop_flags:
    """Gives a loop its own `break` and `continue` flags."""

    def __init__(self, c: Context) -> None:
        self.c = c

    def __enter__(self) -> None:
        vars = self.c.frame.vars
        self.outer = {flag: vars.get(flag) for flag in (BROKE, CONTINUED)}
        vars[BROKE] = vars[CONTINUED] = self.c.const(False)

    def __exit__(self, *_: object) -> None:
        for flag, value in self.outer.items():
            self.c.frame.vars.pop(flag, None)
            if value is not None:
                self.c.frame.vars[flag] = value


def _no_else(c: Context, node: ast.For | ast.While) -> None:
    if node.orelse:
        raise c.error(
            node.orelse[0], "a loop's `else` is not compiled", "a flag that the loop sets"
        )


def _unroll(
    c: Context, node: ast.For, iteration: Iteration, enter: Callable[[Value], None]
) -> None:
    count = static_length(c, iteration) or 0

    def iteration_step(k: int) -> Step:
        def compile_iteration(_: Sequence[Step]) -> bool:
            c.frame.vars[CONTINUED] = c.const(False)
            enter(c.const(k))
            run(c, c.steps(node.body))
            c.frame.vars[CONTINUED] = c.const(False)
            return False

        return compile_iteration

    run(c, [iteration_step(k) for k in range(count)])


class _Unlike(Exception):
    """A carried variable changes to a type that does not go with the one before."""

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
    test: ast.expr | None

    def loop(self, trips: Value) -> None:
        c = self.c
        begin = self._first_test()
        if c.builder.constant(begin) is False:
            return
        names = self._carried()
        before = [self._variable(n) for n in names]
        types = [v.type for v in before]
        for _ in range(_WIDENINGS):
            trial = self._compile(names, types)
            joined = [
                self._join(n, a, v) for n, a, v in zip(names, types, trial.values, strict=True)
            ]
            if joined == types:
                self._close(names, before, types, trial, trips, begin)
                return
            types = joined
        raise self.c.error(self.node, "the types of the loop's variables do not settle")

    def _first_test(self) -> Value:
        if self.test is None:
            return self.c.const(True)
        return self.c.truth(self.c.value(self.test))

    def _carried(self) -> list[str]:
        assigned = assigned_names(self.assigning)
        if any(isinstance(n, ast.Return) for a in self.assigning for n in ast.walk(a)):
            self.c.frame.vars.setdefault(RETURN_VALUE, self.c.builder.undef())
            assigned |= {RETURNED, RETURN_VALUE}
        return [n for n, v in self.c.frame.vars.items() if n in assigned and isinstance(v, Value)]

    def _variable(self, name: str) -> Value:
        value = self.c.frame.vars[name]
        assert isinstance(value, Value)
        return value

    def _compile(self, names: Sequence[str], types: Sequence[Type]) -> _Trial:
        c = self.c
        index = Value("", t.INT)
        hints = ["" if n.startswith("$") else n for n in names]
        args = [Value(h, type_) for h, type_ in zip(hints, types, strict=True)]
        for name, arg in zip(names, args, strict=True):
            if self._variable(name) in c.shared_lists:
                c.shared_lists.add(arg)
        condition = [index]

        def compile_body() -> None:
            c.frame.vars.update(zip(names, args, strict=True))
            for flag in (BROKE, CONTINUED, RETURNED):  # else the loop would have ended
                c.frame.vars[flag] = c.const(False)
            if self.enter is not None:
                self.enter(index)
            run(c, self.steps)
            c.frame.vars[CONTINUED] = c.const(False)
            condition[0] = self._next_test()

        branch = open_branch(c, compile_body)
        branch.block.args = [index, *args]
        values: list[Value] = []
        for name, arg in zip(names, args, strict=True):
            value = branch.vars.get(name)
            if not isinstance(value, Value):
                why = value.why if isinstance(value, Poison) else f"{name!r} is not a value"
                raise _Unlike(c.error(self.node, why))
            values.append(value)
            if value in c.shared_lists:
                c.shared_lists.add(arg)
        return _Trial(branch.block, condition[0], values)

    def _next_test(self) -> Value:
        c = self.c
        left = exit_flag(c)
        if left is True:
            return c.const(False)
        if left is False:
            return c.const(True) if self.test is None else c.truth(c.value(self.test))
        if self.test is None:
            return c.py(self.node, "py.not", left)
        values: list[Value] = []
        blocks: list[Block] = []
        for side in (None, self.test):
            with c.builder.inside(Block()) as block:
                values.append(c.const(False) if side is None else c.truth(c.value(side)))
                c.builder.emit("yield", [values[-1]])
                blocks.append(block)
        return c.builder.emit("if", [left], [t.BOOL], blocks=blocks).result

    def _join(self, name: str, before: Type, after: Value) -> Type:
        joined = t.join(before, after.type)
        if joined is not None:
            return joined
        if name == RETURN_VALUE:
            problem = f"one `return` gives {before}, another {after.type}"
        else:
            problem = f"{name!r} is {before} before the loop and {after.type} after an iteration"
        raise _Unlike(self.c.error(self.node, problem, "one type for it, before and in the loop"))

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
        with c.builder.inside(trial.block):
            c.builder.emit("yield", [trial.condition, *trial.values])
        op = c.builder.emit("loop", [trips, begin, *before], types, blocks=[trial.block])
        for name, arg, result in zip(names, trial.block.args[1:], op.results, strict=True):
            result.name = arg.name
            if arg in c.shared_lists:
                c.shared_lists.add(result)
            c.frame.vars[name] = result
        self._poison_locals(names)

    def _poison_locals(self, carried: Sequence[str]) -> None:
        """What the body assigns for the first time may not exist after the loop."""
        loc = self.c.frame.source.loc(self.node)
        for name in assigned_names(self.assigning) - set(carried):
            if name not in self.c.frame.vars and not name.startswith("$"):
                self.c.frame.vars[name] = Poison(
                    f"{name!r} is assigned only in the loop, which may run zero times",
                    f"a value for {name!r} before the loop",
                    loc,
                )
