"""Control flow: statement lists with early exits, branches, and the merge of their variables.

In: compiling steps, one per statement. Out: `if` ops, the variables after them. `return`, `break`
and `continue` only set hidden variables (flags); what follows a statement that may have set one is
compiled into the branch in which it did not:

    if c:                  %r: Tensor = if(%c)
        return a             block():
    b = f(x)                   yield(%a)
    return b                 block():
                               %b = …
                               yield(%b)

Invariant: a flag that is known while building is a constant; otherwise the statements after it are
in an `if` on it. A variable that only one branch assigns may be unbound afterwards; its use then
raises Python's own error. `raise` is not an exit in this sense: after it, the other branch's
variables hold. The flags are those of TorchScript's exit transforms.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from lowtide.frontend.script.context import (
    BROKE,
    CHOSEN,
    CONTINUED,
    FLAGS,
    RAISED,
    RETURNED,
    Context,
    Step,
)
from lowtide.frontend.script.dict_views import shown
from lowtide.frontend.script.nodes import Chosen, Node, Poison, is_choosable, is_data
from lowtide.ir import types as t
from lowtide.ir.builder import UNKNOWN
from lowtide.ir.core import Block, Value
from lowtide.ir.literals import same_literal
from lowtide.ir.types import OptionalType, Type

Vars = dict[str, "Node | Poison"]


@dataclass(slots=True)
class Branch:
    """One side of an `if` whose block is still open: more can be compiled into it."""

    block: Block
    vars: Vars


def run(c: Context, steps: Sequence[Step]) -> None:
    """Compile steps in order, each only where no earlier step has exited."""
    for k, step in enumerate(steps):
        left = exit_flag(c)
        if left is True:
            return  # dead code
        if isinstance(left, Value):
            skip_if(c, left, steps[k:])
            return
        if step(steps[k + 1 :]):
            return


def exit_flag(c: Context) -> bool | Value:
    """Return whether control has exited, if known; else the bool value that tells."""
    flags = [c.frame.vars[f] for f in FLAGS if f in c.frame.vars]
    unknown: Value | None = None
    for flag in flags:
        assert isinstance(flag, Value)
        known = c.builder.constant(flag)
        if known is True:
            return True
        if known is UNKNOWN:
            either = flag if unknown is None else c.builder.py("py.or", unknown, flag)
            assert either is not None
            unknown = either
    return False if unknown is None else unknown


def skip_if(c: Context, left: Value, steps: Sequence[Step]) -> None:
    """Compile steps into the branch where control has not exited."""
    node = c.frame.source.node
    gone_by_return = not any(_may_be_set(c, f) for f in (BROKE, CONTINUED))

    def stay_away() -> None:
        if gone_by_return:
            c.frame.vars[RETURNED] = c.const(True)

    gone = open_branch(c, stay_away)

    def go_on() -> None:
        for flag in FLAGS:
            if flag in c.frame.vars:
                c.frame.vars[flag] = c.const(False)
        run(c, steps)

    here = open_branch(c, go_on)
    merge(c, left, gone, here, node, RETURNED if gone_by_return else BROKE)


def _may_be_set(c: Context, flag: str) -> bool:
    value = c.frame.vars.get(flag)
    return isinstance(value, Value) and c.builder.constant(value) is not False


def open_branch(c: Context, compile_body: Callable[[], None]) -> Branch:
    """Compile into a new block with a copy of the variables."""
    branch = Branch(Block(), dict(c.frame.vars))
    extend_branch(c, branch, compile_body)
    return branch


def extend_branch(c: Context, branch: Branch, compile_body: Callable[[], None]) -> None:
    """Compile more into an open branch."""
    outer, c.frame.vars = c.frame.vars, branch.vars
    with c.builder.inside(branch.block):
        compile_body()
    branch.vars, c.frame.vars = c.frame.vars, outer


def branch_on(
    c: Context,
    node: ast.AST,
    condition: Value,
    then: Callable[[], None],
    otherwise: Callable[[], None],
    rest: Sequence[Step] = (),
) -> bool:
    """Compile an `if` statement; return True if `rest` was compiled into the one branch that does
    not exit."""
    known = c.builder.constant(condition)
    if known is not UNKNOWN:
        (then if known else otherwise)()
        return False
    first, second = open_branch(c, then), open_branch(c, otherwise)
    exits = exit_flag_of(c, first), exit_flag_of(c, second)
    moved = False
    if rest and RAISED not in exits:
        if exits[0] in _JUMPS and exits[1] == "":
            extend_branch(c, second, lambda: run(c, rest))
            moved = True
        elif exits[1] in _JUMPS and exits[0] == "":
            extend_branch(c, first, lambda: run(c, rest))
            moved = True
    merge(c, condition, first, second, node)
    return moved


def some(c: Context, node: ast.AST, value: Value, problem: str) -> Value:
    """Return the value without its Optional. None raises TypeError, as in Python."""
    if not isinstance(value.type, OptionalType):
        return value

    def fail() -> None:
        c.builder.emit("raise", [c.const(problem)], exception="TypeError")

    branch_on(c, node, c.py(node, "py.is", value, c.const(None)), fail, lambda: None)
    return c.builder.emit("cast", [value], [value.type.elem]).result


_JUMPS = (RETURNED, BROKE, CONTINUED)
_SAME = ("cast", "py.bound", "py.member_of")  # ops that give what they are given, or raise
_MAYBE = "maybe"


def exit_flag_of(c: Context, branch: Branch) -> str:
    """Return the flag that is set at the end of a branch; "" if none is; "maybe" if that is
    unknown."""
    found = ""
    for flag in FLAGS:
        value = branch.vars.get(flag)
        known = c.builder.constant(value) if isinstance(value, Value) else False
        if known is True:
            return flag
        if known is UNKNOWN:
            found = _MAYBE
    return found


def merge(
    c: Context,
    condition: Value,
    then: Branch,
    otherwise: Branch,
    node: ast.AST,
    then_left: str = "",
) -> None:
    """Close both branches with an `if` op; the frame's variables become its results."""
    left = then_left or exit_flag_of(c, then), exit_flag_of(c, otherwise)
    meeting = _Meeting(c, condition, then, otherwise, left, node)
    names = {**then.vars, **otherwise.vars}
    if RAISED in left and left[0] != left[1]:
        names.pop(RAISED, None)
        c.frame.vars[RAISED] = c.const(False)
    merged: dict[str, Node | Poison] = {}
    results: list[tuple[str, Type]] = []
    for name in names:
        found = meeting.variable(name)
        if isinstance(found, tuple):
            results.append((name, found[2]))
            then_value, else_value, _ = found
            meeting.yields(then_value, else_value)
        elif found is not None:
            merged[name] = found
    op = c.builder.emit("if", [condition], [type_ for _, type_ in results], blocks=meeting.close())
    for (name, _), value, sides in zip(results, op.results, meeting.sides(), strict=True):
        value.name = "" if name.startswith("$") else name
        if any(side in c.maybe_unbound for side in sides):
            c.maybe_unbound.add(value)
        merged[name] = value
    if RAISED in c.frame.vars and RAISED not in merged:
        merged[RAISED] = c.frame.vars[RAISED]
    if RAISED in left and left[0] != left[1]:
        _keep_narrow(c, merged, (otherwise if left[0] == RAISED else then).vars)
    c.frame.vars = merged


def _keep_narrow(
    c: Context, merged: dict[str, Node | Poison], survivor: Mapping[str, Node | Poison]
) -> None:
    """Keep the narrowed types of the only branch that does not exit."""
    for name, before in merged.items():
        after = survivor.get(name)
        if isinstance(before, Value) and isinstance(after, Value) and after.type != before.type:
            known = c.builder.emit("cast", [before], [after.type]).result
            known.name = before.name
            merged[name] = known


class _Meeting:
    """Two branches about to be closed: the merge of each variable."""

    def __init__(
        self,
        c: Context,
        condition: Value,
        then: Branch,
        otherwise: Branch,
        left: tuple[str, str],
        node: ast.AST,
    ) -> None:
        self.c = c
        self.condition = condition
        self.branches = then, otherwise
        self.left = left
        self.node = node
        self.yielded: tuple[list[Value], list[Value]] = ([], [])

    def variable(self, name: str) -> Node | Poison | tuple[Value, Value, Type] | None:
        """Return the variable after the `if`: unchanged, poisoned, or yielded by both branches."""
        a, b = self.branches[0].vars.get(name), self.branches[1].vars.get(name)
        if a is b:
            return a
        others = self.narrowings(b)
        for value in self.narrowings(a):
            if value in others:
                return value
        if RAISED in self.left and self.left[0] != self.left[1]:
            a, b = (None, b) if self.left[0] == RAISED else (a, None)
        if not name.startswith("$"):  # what a branch that returned leaves is never looked at
            a = None if self.left[0] == RETURNED and b is not None else a
            b = None if self.left[1] == RETURNED and a is not None else b
        a, b = self.as_values(a, b)
        a_gone, b_gone = self.is_gone(0, name), self.is_gone(1, name)
        if isinstance(a, Value) and isinstance(b, Value):
            return self.both(name, a, b)
        if isinstance(a, Value) and b_gone:
            return self.of_one_side(a, 1) or (a, self.undef(1, a.type), a.type)
        if isinstance(b, Value) and a_gone:
            return self.of_one_side(b, 0) or (self.undef(0, b.type), b, b.type)
        if a_gone and b is not None and not isinstance(b, Value):
            return b
        if b_gone and a is not None and not isinstance(a, Value):
            return a
        return self.one_sided(name, a, b)

    def of_one_side(self, value: Value, other: int) -> Value | None:
        """Return a constant, if the other side has raised."""
        known = self.c.builder.constant(value)
        if self.left[other] != RAISED or known is UNKNOWN:
            return None
        return self.c.builder.const(known)

    def as_values(
        self, *sides: Node | Poison | None
    ) -> tuple[Node | Poison | None, Node | Poison | None]:
        """Return slices, ranges and dtype limits as Python objects, if the other branch has another
        value."""
        if None in sides or not any(map(is_data, sides)):
            return sides[0], sides[1]
        found = list(sides)
        for k, side in enumerate(sides):
            if is_data(side):
                with self.c.builder.inside(self.branches[k].block):
                    found[k] = self.c.as_value(cast("Node", side), self.node)
        return found[0], found[1]

    def is_gone(self, side: int, name: str) -> bool:
        return self.left[side] not in ("", _MAYBE) or name.startswith("$")

    def both(self, name: str, a: Value, b: Value) -> Node | Poison | tuple[Value, Value, Type]:
        builder = self.c.builder
        known = builder.constant(a), builder.constant(b)
        if UNKNOWN not in known and same_literal(*known) and a.type == b.type:
            return builder.const(known[0])
        with builder.inside(self.branches[0].block):
            a = shown(self.c, a)
        with builder.inside(self.branches[1].block):
            b = shown(self.c, b)
        return a, b, t.join(a.type, b.type)

    def narrowings(self, value: Node | Poison | None) -> list[Value]:
        """Return the value, and the narrowed values that stand for it."""
        found: list[Value] = []
        while isinstance(value, Value):
            found.append(value)
            maker = self.c.builder.makers.get(value)
            value = maker.operands[0] if maker is not None and maker.name in _SAME else None
        return found

    def one_sided(
        self, name: str, a: Node | Poison | None, b: Node | Poison | None
    ) -> Chosen | Poison | tuple[Value, Value, Type]:
        for side in (a, b):
            if isinstance(side, Poison):
                return side
        if isinstance(a, Value) and b is None:
            return a, self.unbound(1, a.type), a.type
        if isinstance(b, Value) and a is None:
            return self.unbound(0, b.type), b, b.type
        if is_choosable(a) and is_choosable(b):
            return Chosen(self.condition, (cast("Node", a), cast("Node", b)))
        if a is None or b is None:
            return self.poison(
                f"{name!r} is assigned in only one branch of the `if`",
                f"a value for {name!r} before the `if`, or in both branches",
            )
        return self.poison(f"{name!r} differs between the branches", "two names")

    def unbound(self, side: int, type_: Type) -> Value:
        value = self.undef(side, type_)
        self.c.maybe_unbound.add(value)
        return value

    def poison(self, why: str, remedy: str) -> Poison:
        return Poison(why, remedy, self.c.frame.source.loc(self.node))

    def undef(self, side: int, type_: Type) -> Value:
        with self.c.builder.inside(self.branches[side].block):
            return self.c.builder.undef(type_)

    def yields(self, a: Value, b: Value) -> None:
        self.yielded[0].append(a)
        self.yielded[1].append(b)

    def sides(self) -> list[tuple[Value, Value]]:
        return list(zip(*self.yielded, strict=True))

    def close(self) -> list[Block]:
        for branch, values in zip(self.branches, self.yielded, strict=True):
            with self.c.builder.inside(branch.block):
                self.c.builder.emit("yield", values)
        return [branch.block for branch in self.branches]


def choose(
    c: Context,
    node: ast.AST,
    condition: Value,
    then: Callable[[], Value],
    otherwise: Callable[[], Value],
) -> Value:
    """Compile a conditional expression: only the branch that is taken is computed. Variables
    assigned by `:=` are merged as after any `if`."""
    known = c.builder.constant(condition)
    if known is not UNKNOWN:
        return then() if known else otherwise()

    def choosing(side: Callable[[], Value]) -> Callable[[], None]:
        def compile_side() -> None:
            c.frame.vars[CHOSEN] = side()

        return compile_side

    first, second = open_branch(c, choosing(then)), open_branch(c, choosing(otherwise))
    merge(c, condition, first, second, node)
    chosen = c.frame.vars.pop(CHOSEN)
    assert isinstance(chosen, Value)
    return chosen


def run_inside(
    c: Context,
    op_name: str,
    operands: Sequence[Value],
    args: Sequence[Value],
    compile_body: Callable[[], None],
    compile_end: Callable[[], Block] | None = None,
) -> None:
    """Add an op with one block that always runs, so that its assignments last. `compile_end`:
    compiles a second block after the first."""
    outer = dict(c.frame.vars)
    branch = open_branch(c, compile_body)
    branch.block.args = list(args)
    changed = {
        n: v for n, v in branch.vars.items() if isinstance(v, Value) and outer.get(n) is not v
    }
    with c.builder.inside(branch.block):
        c.builder.emit("yield", list(changed.values()))
    types = [v.type for v in changed.values()]
    ends = [] if compile_end is None else [compile_end()]
    op = c.builder.emit(op_name, operands, types, blocks=[branch.block, *ends])
    c.frame.vars = dict(branch.vars)
    for (name, inner), result in zip(changed.items(), op.results, strict=True):
        result.name = inner.name
        known = c.builder.constant(inner)
        c.frame.vars[name] = result if known is UNKNOWN else c.builder.const(known)
        if inner in c.maybe_unbound:
            c.maybe_unbound.add(result)
