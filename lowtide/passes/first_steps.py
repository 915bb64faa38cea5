"""Peels the first step of a loop where it takes another branch than all later steps.

In, out: a Function. Invariant: the same steps run in the same order.

    %h = loop(%n, %true, %none):            %h = if(%n > 0):
      block(%t, %h1):                         block():
        %first = py.is(%h1, %none)              %h2 = torch.matmul(%x[0], %w)
        %h3 = if(%first) … …           →        %h5 = loop(%n - 1, %true, %h2):
        yield(%true, %h3)                         block(%u, %h4):
                                                    …                    of %t = %u + 1
                                              block():
                                                yield(%none)

After that, a recurrence that makes its state in the first step is a loop like any other. These
conditions are decided for the first step and for all later ones:

    h is None                 h is None before the loop, and a tensor after each step
    t == 0, t > 0             t is the number of the step
    outs, len(outs) > 0       each step appends to the list outs
    total += y                total is a number before the loop, and a tensor after each step

A condition that is constant only from a later step on, such as `t >= 2`, has several steps peeled.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Function, Op, Value, clone, walk
from lowtide.ir.types import ListType
from lowtide.passes.constants import fold_constants
from lowtide.passes.evolution import evolution, number_of
from lowtide.passes.ir_queries import Makers, Users, constant, makers_of, users_of, with_inner
from lowtide.passes.run import only_with
from lowtide.passes.split_iterations import replace_loops, split_iterations

LONGEST: Final = 300  # ops of a body that is written twice at most
MOST_STEPS: Final = 3  # done before a loop

_READS: Final = ("py.len", "py.bool", "list.get", "torch.stack", "torch.cat", "list.slice")
_GROWS: Final = ("list.append", "list.extend", "list.insert")
COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "py.eq": operator.eq,
    "py.ne": operator.ne,
    "py.lt": operator.lt,
    "py.le": operator.le,
    "py.gt": operator.gt,
    "py.ge": operator.ge,
}
TURNED: Final = {"py.lt": "py.gt", "py.gt": "py.lt", "py.le": "py.ge", "py.ge": "py.le"}


@dataclass(frozen=True, slots=True)
class _Answer:
    """The value of a condition in the first step, and in all later steps; `later` is None if later
    steps differ among themselves."""

    first: bool
    later: bool | None

    def opposite(self) -> _Answer:
        """Return the answer for the negated condition."""
        return _Answer(not self.first, None if self.later is None else not self.later)


@dataclass(frozen=True, slots=True)
class _Counter:
    """An int that is `first` in the first step, and no less than `least` in all others."""

    first: int
    least: int


@only_with("loop")
def peel_first_steps(fn: Function) -> Function:
    """See the module's text."""
    result = clone(fn)
    for _ in range(MOST_STEPS):
        peeled = functools.partial(_peeled, makers_of(result), users_of(result))
        if not replace_loops(result.block, peeled):
            break
        result = fold_constants(
            result
        )  # peeling decides `i > 0` of `i > 0 and j > 0`; this leaves `j > 0`
    return result


def _peeled(makers: Makers, users: Users, op: Op, before: list[Op]) -> list[Op] | None:
    """Return the ops of the first step and the loop of the later steps; None if peeling decides no
    condition."""
    loop = _Loop(makers, users, op, before)
    answers = dict(loop.answers())
    if not answers and not loop.adds_to_number():
        return None
    first = {c: a.first for c, a in answers.items()}
    later = {c: a.later for c, a in answers.items() if a.later is not None}
    return split_iterations(op, first=first, each=[later])


class _Loop:
    """One loop, and the ops before it in its block."""

    def __init__(self, makers: Makers, users: Users, loop: Op, before: list[Op]) -> None:
        self.makers, self.users = makers, users
        self.loop = loop
        self.before = before
        (self.body,) = loop.blocks
        self.counted: dict[Value, bool] = {}

    def may_peel(self) -> bool:
        """Return whether the number of steps is known before the first, and the body is short."""
        trips = constant(self.loop.operands[0], self.makers)
        counts = not isinstance(trips, int) or trips < opdefs.MAX_TRIPS
        if not counts or constant(self.loop.operands[1], self.makers) is not True:
            return False
        return sum(1 for _ in walk(self.body)) <= LONGEST

    def adds_to_number(self) -> bool:
        """Return whether `total += y` changes a number in the first step, and a tensor in all
        others."""
        changed = {op.operands[0] for op in self.body.ops if op.name == "mutate"}
        inits, yielded = self.loop.operands[2:], self.body.terminator.operands[1:]
        return self.may_peel() and any(
            arg in changed and t.is_number(init.type) and after.type == t.TENSOR
            for arg, init, after in zip(self.body.args[1:], inits, yielded, strict=True)
        )

    def answers(self) -> Iterator[tuple[Value, _Answer]]:
        """Yield the conditions of branches that differ between the first step and the others."""
        if not self.may_peel():
            return
        for op in walk(self.body):
            if op.name == "if":
                found = self.answer(op.operands[0])
                if found is not None and found.first != found.later:
                    yield op.operands[0], found

    def answer(self, condition: Value) -> _Answer | None:
        maker = self.makers.get(condition)
        if maker is None:
            return None
        if maker.name == "py.not":
            inner = self.answer(maker.operands[0])
            return None if inner is None else inner.opposite()
        if maker.name in ("py.is", "py.is_not"):
            return self.is_none(maker)
        if maker.name == "py.bool":
            counter = self.counter(maker.operands[0])
            return None if counter is None else self.compared("py.ne", counter, 0)
        if maker.name not in COMPARED:
            return None
        name, (a, b) = maker.name, maker.operands
        if self.counter(a) is None:
            name, a, b = TURNED.get(name, name), b, a
        counter, limit = self.counter(a), number_of(b, self.makers)
        if counter is None or limit is None:
            return None
        return self.compared(name, counter, limit)

    def compared(self, name: str, counter: _Counter, limit: int) -> _Answer | None:
        """Return the answer of a comparison of the counter with a constant, such as `t > 0`.
        The answer's `later` is None if a few more steps have to be peeled before all agree."""
        test = COMPARED[name]
        if counter.least > limit:
            return _Answer(test(counter.first, limit), test(counter.least, limit))
        at_once = name in ("py.lt", "py.ge") and counter.least == limit
        if at_once:
            return _Answer(test(counter.first, limit), name == "py.ge")
        is_near = limit - counter.first < MOST_STEPS
        return _Answer(test(counter.first, limit), None) if is_near else None

    def is_none(self, maker: Op) -> _Answer | None:
        """Return the answer of `x is None` for a variable that is None before the loop and never
        after a step."""
        inputs = [v for v in maker.operands if v.type != t.NONE]
        if len(inputs) != 1 or inputs[0] not in self.body.args[1:]:
            return None
        place = self.body.args.index(inputs[0])
        if self.loop.operands[place + 1].type != t.NONE:
            return None
        if t.is_subtype(t.NONE, self.body.terminator.operands[place].type):
            return None
        return _Answer(maker.name == "py.is", maker.name != "py.is")

    # -- what grows --

    def counter(self, value: Value) -> _Counter | None:
        """Return the counter that a value is: the step plus a number, or the length of a list that
        grows."""
        found = evolution(value, self.body.args[0], self.makers)
        if found.ahead is None and (found.step or not self.is_length(found.base)):
            return None
        return _Counter(found.offset, found.offset + 1)

    def is_length(self, value: Value | None) -> bool:
        """Return whether the value is a list that grows, or its length."""
        maker = None if value is None else self.makers.get(value)
        if maker is not None and maker.name == "py.len":
            value = maker.operands[0]
            maker = self.makers.get(value)
        if value is None or maker is None or not isinstance(value.type, ListType):
            return False
        return self.grows(value, maker)

    def grows(self, xs: Value, maker: Op) -> bool:
        """Return whether the list is empty before the loop, longer after each step, and read before
        it grows."""
        if xs not in self.counted:
            self.counted[xs] = self._grows(xs, maker)
        return self.counted[xs]

    def _grows(self, xs: Value, maker: Op) -> bool:
        if maker.name != "list.make" or maker.operands or maker not in self.before:
            return False
        known = (*_READS, *_GROWS)
        if not all(u.name in known and u.operands[0] is xs for u in self.users[xs]):
            return False  # another list may hold it, and change it
        if any(xs in u.operands[1:] for u in self.users[xs]):
            return False
        begun = self.before[self.before.index(maker) :]
        if any(_touches(op, xs, _GROWS) for op in begun):
            return False
        has_grown = False
        for op in self.body.ops:
            if _touches(op, xs, ("py.len", "py.bool")) and has_grown:
                return False
            if _touches(op, xs, _GROWS):
                if op.name != "if" and op.name != "list.append":
                    return False
                if not has_grown and not _always_adds(op, xs):
                    return False
                if op.blocks and _touches(op, xs, ("py.len", "py.bool")):
                    return False
                has_grown = True
        return has_grown


def _touches(op: Op, xs: Value, names: tuple[str, ...]) -> bool:
    """Return whether the op, or an op in its blocks, is one of these names on the list."""
    return any(o.name in names and xs in o.operands for o in with_inner(op))


def _always_adds(op: Op, xs: Value) -> bool:
    """Return whether the op appends an item to the list on each of its paths."""
    if op.name == "list.append":
        return op.operands[0] is xs
    return op.name == "if" and all(any(_always_adds(o, xs) for o in b.ops) for b in op.blocks)
