"""Prints the first line of a loop as a user would write it.

In:  a `loop` op. Out: a `Head`: the line, and the ops of the body that it computes.

    %n: int = py.len(%xs)
    loop(%n, %true):
      block(%i: int):                        →    for x in xs:
        %x: int = list.get(%xs, %i)

A test that is computed before the loop and again at the end of each step becomes
`while test`; steps of an iterator of Python's become `for x in xs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lowtide.codegen.host.expressions import GIVES_BOOL, NUMBERS, Expressions, Pending, bare
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, walk
from lowtide.ir.python_text import INFIX, PREFIX

_NOTHING: Final = ("const", "undef")
_TESTS: Final = {*GIVES_BOOL, *INFIX, *PREFIX, "py.len", "list.get", "if"}


@dataclass(slots=True, kw_only=True)
class Head:
    """A loop's first line. `done`: ops of the body that it computes. `is_tested`: whether it also
    tests if there is one more step; then `left` is true where the body leaves the loop before.
    `same`: a value of the body that equals the carried value of its variable."""

    text: str
    done: list[Op] = field(default_factory=list[Op])
    is_tested: bool = False
    left: Value | None = None
    same: Value | None = None


@dataclass(slots=True, kw_only=True)
class Counter:
    """A carried value `arg` that no op reads, and the value `same` of the body that equals it.
    `done`: the ops that compute `same` from the number of the step."""

    arg: Value
    same: Value
    done: list[Op]


class LoopHeads(Expressions):
    """See the module's text."""

    def head(self, op: Op) -> Head:
        """Return the loop's first line, and what of the body this line already computes."""
        trips, (block,) = op.operands[0], op.blocks
        if found := self.over_iterator(op) or self.while_(op):
            return found
        index = block.args[0]
        is_used = self.uses.count[index] > 0
        known = self.constants.get(trips)
        if isinstance(known, int) and known >= opdefs.MAX_TRIPS and not is_used:
            return Head(text="while True:")
        last = self.pending[-1] if self.pending else None
        done: list[Op] = []
        if last is not None and last.value is trips:
            if last.op.name == "py.len" and (found := self.items(op, last, index, done)):
                return Head(text=found, done=done)
            if last.op.name == "py.range_len" and (found := self.steps(last, index, block, done)):
                return Head(text=found, done=done)
            self.pending.pop()
            text = last.text
        else:
            (text,) = self.take([trips])
        name = self.name_of(index) if is_used else "_"
        return Head(text=f"for {name} in range({bare(text)}):", done=done)

    def over_iterator(self, op: Op) -> Head | None:
        """Return `for x in xs`, if the loop draws from Python's iterator over `xs`."""
        begin = self.uses.maker.get(op.operands[1])
        if begin not in self.in_heads:
            return None
        drawn = begin.operands[0]
        (text,) = self.take([drawn])
        (block,) = op.blocks
        item = _first(block)
        index = block.args[0]
        name = self.name_of(item.result)
        if self.uses.count[index] == 1:  # by the test for one more element
            head = f"for {name} in {bare(text)}:"
        else:
            head = f"for {self.name_of(index)}, {name} in enumerate({bare(text)}):"
        left, test, done = self.ending(block)
        goes_on = self.uses.maker[test]
        done += [item, goes_on, self.uses.maker[goes_on.operands[1]]]
        return Head(text=head, done=done, is_tested=True, left=left)

    def iterator(self, op: Op) -> None:
        """Make `iter.of(xs)` a part of a loop's head, if that loop is its only reader."""
        begin = self.uses.first_user.get(op.result)
        loop = self.uses.first_user.get(begin.result) if begin and begin.results else None
        if begin is None or loop is None or not self.is_drawn_by(op, begin, loop):
            self.expression(op)
            return
        (text,) = self.take(op.operands)
        self.in_heads.add(begin)
        reads = self.reads([text])
        self.pending.append(Pending(value=op.result, op=op, text=text, reads=reads))

    def is_drawn_by(self, op: Op, begin: Op, loop: Op) -> bool:
        """Return whether an iterator is drawn from by a loop's head alone, and starts there."""
        places = self.uses.block_of
        if loop.name != "loop" or loop.operands[1] is not begin.result:
            return False
        if not places[op] is places[begin] is places[loop] or self.uses.count[op.result] != 3:
            return False
        (block,) = loop.blocks
        _, test, _ = self.ending(block)
        goes_on, item = self.uses.maker.get(test), _first(block)
        if (
            goes_on is None
            or goes_on.name != "iter.goes_on"
            or goes_on.operands[0] is not op.result
        ):
            return False
        following = self.uses.maker.get(goes_on.operands[1])
        if following is None or following.name != "py.add":
            return False
        at, one = following.operands
        counts = at is block.args[0] and self.known(one) == 1 and item.name == "iter.item"
        once = all(self.uses.count[x] == 1 for x in (begin.result, test, following.result))
        between = self.between(op, loop)
        return (
            counts
            and once
            and item.operands == [op.result]
            and self.ends_with_test(block, [goes_on, following])
            and all(x is begin or x.name in _NOTHING for x in between)
        )

    def between(self, first: Op, last: Op) -> Sequence[Op]:
        """Return the ops between two ops of one block."""
        place = self.uses.block_of[first]
        ops = place.ops if isinstance(place, Block) else self.ops
        return ops[ops.index(first) + 1 : ops.index(last)]

    def known(self, value: Value) -> object:
        """Return a constant, before its op is printed, too; None for other values."""
        maker = self.uses.maker.get(value)
        if maker is not None and maker.name == "const":
            return maker.attrs["value"]
        return self.constants.get(value)

    def ending(self, block: Block) -> tuple[Value | None, Value, list[Op]]:
        """Return the parts of a step's end: the value that is true where the step left the loop,
        the test for one more step, and the ops that compute only these."""
        test = block.terminator.operands[0]
        left: Value | None = None
        found: list[Op] = []
        maker = self.uses.maker.get(test)
        is_alone = maker is not None and len(maker.results) == 1
        if maker is not None and maker.name == "if" and is_alone and self.uses.count[test] == 1:
            yes, no = maker.blocks
            (at_yes,), (at_no,) = yes.terminator.operands, no.terminator.operands
            if self.known(at_yes) is False and all(x.name in _NOTHING for x in yes.ops[:-1]):
                left, test = maker.operands[0], at_no
                found = [maker]
        return left, test, found

    def ends_with_test(self, block: Block, ops: Sequence[Op]) -> bool:
        """Return whether the block ends with these ops, the test for one more step."""
        _, _, done = self.ending(block)
        home = done[0].blocks[1].ops[:-1] if done else block.ops[:-1]
        tail: list[Op] = []
        for op in reversed(home):
            if op not in ops and op.name not in _NOTHING:
                break
            tail.append(op)
        is_whole = not done or (len(tail) == len(home) and block.ops[-2] is done[0])
        return is_whole and all(op in tail for op in ops)

    def while_(self, op: Op) -> Head | None:
        """Return `while test`, if the test before the loop is that at the end of its step."""
        begin, inits, (block,) = op.operands[1], op.operands[2:], op.blocks
        index, *args = block.args
        last = self.pending[-1] if self.pending else None
        trips = self.known(op.operands[0])
        if not isinstance(trips, int) or trips < opdefs.MAX_TRIPS:
            return None
        if last is None or last.value is not begin:
            return None
        left, test, done = self.ending(block)
        values = block.terminator.operands[1:]
        carried = {(i, v): self.names[a] for a, i, v in zip(args, inits, values, strict=True)}
        within: list[Op] = []
        text = self.same_test(begin, test, carried, within)
        if not text or not within or not self.ends_with_test(block, within):
            return None
        same: Value | None = None
        if self.uses.count[index]:
            counter = self.counter(index, block, inits)
            if counter is None:
                return None
            self.called(counter.same, self.names[counter.arg])
            done += counter.done
            same = counter.same
        self.pending.pop()
        self.uses.forget(within, block)
        done += within
        if last.op.name == "py.bool" and text.startswith("bool("):
            text = text[len("bool") :]
        return Head(text=f"while {bare(text)}:", done=done, is_tested=True, left=left, same=same)

    def same_test(
        self, begin: Value, end: Value, carried: Mapping[tuple[Value, Value], str], found: list[Op]
    ) -> str:
        """Return the text of a test that begins a step, "" if `begin`, from before the loop, and
        `end`, from the end of a step, differ. `carried`: by initial and next value, the
        variable. `found` gets the ops of `end`."""
        for (init, value), name in carried.items():
            if value is end and self.is_same(init, begin):
                return name
        if self.is_same(begin, end):
            if (known := self.known(begin)) is not None:
                self.constants.setdefault(begin, known)
            return self.text_of(begin)
        first, last = self.uses.maker.get(begin), self.uses.maker.get(end)
        if first is None or last is None or first.name != last.name or first.attrs != last.attrs:
            return ""
        if first.name not in _TESTS or len(first.results) != 1:
            return ""
        for each in (begin, end):
            if self.uses.count[each] != 1 or each in self.uses.negated:
                return ""
        pairs = zip(first.operands, last.operands, strict=True)
        texts = [self.same_test(a, b, carried, found) for a, b in pairs]
        found.append(last)
        if not all(texts):
            return ""
        if last.name != "if":
            return self.spelled(first, texts)
        for a, b in zip(first.blocks, last.blocks, strict=True):
            inner: list[Op] = []
            ends = a.terminator.operands[0], b.terminator.operands[0]
            texts.append(self.same_test(*ends, carried, inner))
            if any(x not in inner and x.name not in _NOTHING for x in b.ops[:-1]):
                return ""
        return self.choice(last, *texts) if all(texts) else ""

    def choice(self, op: Op, condition: str, yes: str, no: str) -> str:
        if self.is_bool(op.operands[0]) and no == "False":
            return f"({condition} and {yes})"
        if self.is_bool(op.operands[0]) and yes == "True":
            return f"({condition} or {no})"
        return f"({yes} if {condition} else {no})"

    def counter(self, index: Value, block: Block, inits: Sequence[Value]) -> Counter | None:
        """Return the carried value that counts the steps, if the index is read only to compute
        it."""
        rows = zip(block.args[1:], inits, block.terminator.operands[1:], strict=True)
        for arg, init, value in rows:
            maker = self.uses.maker.get(value)
            if maker is None or maker.name not in ("py.add", "py.sub") or self.uses.count[arg]:
                continue
            at, by = maker.operands
            step = self.known(by)
            if type(step) is not int or init.type != t.INT or self.uses.home.get(at) is not block:
                continue
            step = step if maker.name == "py.add" else -step
            done = self.counted(at, index, init, step)
            if done is not None:
                return Counter(arg=arg, same=at, done=done)
        return None

    def counted(self, value: Value, index: Value, init: Value, step: int) -> list[Op] | None:
        """Return the ops that compute `init + index * step`, if this is that value."""
        start, done = self.known(init), list[Op]()
        is_zero = type(start) is int and start == 0
        maker = self.uses.maker.get(value)
        if maker is not None and maker.name == "py.add":
            starts = [k for k in (0, 1) if self.is_same(maker.operands[k], init)]
            if not starts:
                return None
            done.append(maker)
            value, is_zero = maker.operands[1 - starts[0]], True
            if value is not index and self.uses.count[value] != 1:
                return None
            maker = self.uses.maker.get(value)
        if maker is not None and maker.name == "py.mul" and index in maker.operands:
            (factor,) = (v for v in maker.operands if v is not index)
            done.append(maker)
            value, step = index, 1 if self.known(factor) == step else 0
        is_read_once = self.uses.count[index] == 1 or not done
        return done if value is index and is_zero and step == 1 and is_read_once else None

    def is_same(self, a: Value, b: Value) -> bool:
        """Return whether two values are one, or equal constants."""
        known, other = self.known(a), self.known(b)
        is_equal = known is not None and type(known) is type(other) and repr(known) == repr(other)
        return a is b or is_equal

    def items(self, op: Op, length: Pending, index: Value, done: list[Op]) -> str:
        """Return `for x in xs`, if the body begins with `xs[i]` and nothing mutates the list."""
        (block,) = op.blocks
        first, xs = next(x for x in block.ops if x.name != "const"), length.op.operands[0]
        if first.name != "list.get" or first.operands != [xs, index]:
            return ""
        if xs.type != t.STR and not all(self.cannot_alias(x, xs, op) for x in walk(block)):
            return ""
        self.pending.pop()
        done.append(first)
        item = self.name_of(first.result)
        if self.uses.count[index] == 1:
            return f"for {item} in {length.operands[0]}:"
        return f"for {self.name_of(index)}, {item} in enumerate({length.operands[0]}):"

    def cannot_alias(self, op: Op, xs: Value, loop: Op) -> bool:
        """Return whether an op in the loop mutates no list, or one that cannot alias `xs`: its
        elements have another type, or it was made just before the loop or in it."""
        if not opdefs.writes(op.name) or not op.name.startswith("list."):
            return True
        to = op.operands[0]
        if isinstance(to.type, t.ListType) and isinstance(xs.type, t.ListType):
            kinds = {*t.types_in(to.type), *t.types_in(xs.type)}
            if to.type != xs.type and kinds <= {to.type, xs.type, *NUMBERS}:
                return True
        maker = self.uses.maker.get(to)
        if maker is None or maker.name != "list.make":
            return False
        inner = list(walk(loop.blocks[0]))
        if maker in inner:
            return True
        is_same_block = self.uses.block_of[maker] is self.uses.block_of[loop]
        return is_same_block and self.uses.first_user[to] in inner

    def steps(self, steps: Pending, index: Value, block: Block, done: list[Op]) -> str:
        """Return `for i in range(start, stop, step)`, if the body begins with `i * step +
        start`."""
        start, _, step = steps.op.operands
        at = index
        ops = [op for op in block.ops if op.name != "const"]
        for name, by, neutral in (("py.mul", step, 1), ("py.add", start, 0)):
            known = self.constants.get(by)
            if known == neutral and type(known) is int:
                continue
            op = ops[len(done)]
            is_by = op.operands[1:] == [by] or self._is_constant(op.operands[-1], known)
            if op.name != name or op.operands[0] is not at or not is_by or self.uses.count[at] != 1:
                done.clear()
                return ""
            at = op.result
            done.append(op)
        self.pending.pop()
        name = self.name_of(at) if self.uses.count[at] else "_"
        texts = steps.operands
        if self.constants.get(step) == 1:
            texts = texts[1:2] if self.constants.get(start) == 0 else texts[:2]
        return f"for {name} in range({', '.join(map(bare, texts))}):"

    def _is_constant(self, value: Value, known: object) -> bool:
        found = self.constants.get(value)
        return type(found) is int and type(known) is int and found == known


def _first(block: Block) -> Op:
    return next(op for op in block.ops if op.name not in _NOTHING)
