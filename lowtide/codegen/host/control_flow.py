"""Prints ops, loops and branches included, as the text of a Python function.

In:  ops, and those of their values that the function returns. Out: the function's text. A carried
     value of a loop or the result of a branch reuses the variable of the value that it replaces,
     unless the old value is still read after the new one is computed.

    %s.3: int = if(%c)                     if c:
      block(): yield(%s.4)          →          s = s >> 1
      block(): yield(%s.2)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from lowtide.codegen.host.expressions import CALLED_BACK, NAME, NUMBERS, Expressions, Pending, bare
from lowtide.ir import opdefs
from lowtide.ir import types as t
from lowtide.ir.core import Block, Op, Value, free_values, walk


@dataclass(slots=True, kw_only=True)
class Arm:
    """A branch: its lines and the ops they come from; or `text`, if the branch is one
    expression."""

    lines: list[str] = field(default_factory=list[str])
    ops: list[Op] = field(default_factory=list[Op])
    text: str = ""


class Writer(Expressions):
    """See the module's text."""

    def function(self, inputs: Sequence[Value]) -> str:
        """Return the function's text."""
        self.line(f"def {NAME}({', '.join(map(self.name_of, inputs))}):", depth=0)
        self.block_ops(self.ops)
        self.flush()
        results = "".join(f"{self.text_of(v)}, " for v in self.results)
        self.line(f"return ({results.rstrip() if len(self.results) == 1 else results})")
        return "\n".join(self.lines) + "\n"

    def block_ops(self, ops: Sequence[Op]) -> None:
        for op in ops:
            self.at = op
            _WRITERS.get(op.name, Expressions.expression)(self, op)

    def if_(self, op: Op) -> None:
        condition = self.condition(op.operands[0])
        self.flush()
        names = [self.name_of(result) for result in op.results]
        arms = [self.arm(op, block, names) for block in op.blocks]
        yes, no = arms
        if yes.text and no.text and names[0] not in (yes.text, no.text):
            self.define(op, self.choice(op, condition, yes.text, no.text))
            return
        for arm in arms:
            if arm.text and arm.text != names[0]:
                arm.lines.append("    " * (self.depth + 1) + f"{names[0]} = {bare(arm.text)}")
                arm.ops.append(op)
        if yes.lines or not no.lines:
            self.latest_if = condition, len(self.lines)
            self.line(f"if {bare(condition)}:")
            self.add_arm(yes)
        if no.lines:
            self.line("else:" if yes.lines else f"if not {condition}:")
            self.add_arm(no)
            self.latest_if = None

    def choice(self, op: Op, condition: str, yes: str, no: str) -> str:
        if self.is_bool(op.operands[0]) and no == "False":
            return f"({condition} and {yes})"
        if self.is_bool(op.operands[0]) and yes == "True":
            return f"({condition} or {no})"
        return f"({yes} if {condition} else {no})"

    def add_arm(self, arm: Arm) -> None:
        if not arm.lines:
            self.line("pass", self.depth + 1)
        self.lines += arm.lines
        self.lines_of += arm.ops

    def arm(self, op: Op, block: Block, names: Sequence[str]) -> Arm:
        """Return a branch: lines that end in assignments to the results, or one expression."""
        outer, outer_of, replaced = self.lines, self.lines_of, dict(self.replaced)
        found = Arm()
        self.lines, self.lines_of = found.lines, found.ops
        self.depth += 1
        for name, value in zip(names, block.terminator.operands, strict=True):
            self.may_reuse(block, value, name)
        self.block_ops(block.ops[:-1])
        self.at = block.terminator
        if len(names) == 1 and not self.lines:
            (text,) = self.take(block.terminator.operands)
            if self.lines or self.pending:
                self.flush()
                if text != names[0]:
                    self.line(f"{names[0]} = {bare(text)}")
            else:
                found.text = text
        else:
            self.assign(names, block.terminator.operands)
        self.depth -= 1
        self.lines, self.lines_of, self.replaced = outer, outer_of, replaced
        return found

    def condition(self, value: Value) -> str:
        """Return the text of a condition; `bool(x)` becomes `x`."""
        last = self.pending[-1] if self.pending else None
        if last is not None and last.value is value:
            self.pending.pop()
            self.at = last.op
            return last.operands[0] if last.op.name == "py.bool" else last.text
        return self.take([value])[0]

    def may_reuse(self, block: Block, value: Value, name: str) -> None:
        """Let a block's result use the variable of the value that it replaces, unless that value is
        still read after the result is computed."""
        if sum(v is value for v in block.terminator.operands) == 1:
            self.takes(block, value, name)

    def takes(self, block: Block, value: Value, name: str) -> None:
        maker = self.uses.maker.get(value)
        if value in self.names or maker is None or self.uses.home[value] is not block:
            return
        if maker.name in ("const", "undef"):
            return
        old = self.replaced.get(name)
        if old is not None:
            later = block.ops[block.ops.index(maker) + 1 :]
            if maker.name == "loop":
                if old in maker.operands[:2]:
                    return
                later = [*later, *maker.blocks[0].ops]
            if old in free_values(later):
                return
        self.called(value, name)
        if maker.name == "loop":  # its initial value, too
            init = maker.operands[2 + maker.results.index(value)]
            if self.ends_with(init, maker):
                self.takes(block, init, name)

    def assign(self, names: Sequence[str], values: Sequence[Value]) -> None:
        """Emit one simultaneous assignment of the values to the variables."""
        waiting = {id(p.value) for p in self.pending}
        pairs = [
            (name, v)
            for name, v in zip(names, values, strict=True)
            if id(v) in waiting or v in self.constants or self.name_of(v) != name
        ]
        if not pairs:
            self.flush()
            return
        texts = self.take([v for _, v in pairs])
        self.flush()
        found = [(name, text) for (name, _), text in zip(pairs, texts, strict=True)]
        found = [(name, text) for name, text in found if name != text]
        targets = {name for name, _ in found}
        if any(self.reads([text]) & (targets - {name}) for name, text in found):
            left, right = zip(*found, strict=True)
            self.line(f"{', '.join(left)} = {', '.join(right)}")
            return
        for name, text in found:
            self.line(f"{name} = {bare(text)}")

    def loop(self, op: Op) -> None:
        going, *inits = op.operands[1:]
        (block,) = op.blocks
        args = block.args[1:]
        for arg, result, init in zip(args, op.results, inits, strict=True):
            name = self.names.get(result)
            if name is None and self.ends_with(init, op):
                name = self.name_of(init)
            name = self.called(arg, name or self.fresh(arg.name))
            self.called(result, name)
        if self.pending and not self.pending[-1].reads.isdisjoint(self.names[a] for a in args):
            self.flush()  # before the carried variables are assigned
        head, done = self.head(op)
        self.flush()
        self.assign([self.names[a] for a in args], inits)
        is_sure = self.constants.get(going) is True
        if not is_sure:
            self.line(f"if {self.text_of(going)}:")
            self.depth += 1
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        self.body(op, done)
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1 if is_sure else 2
        self.comprehend(block, head, before)

    def comprehend(self, block: Block, head: str, start: int) -> None:
        """Write a loop that only appends to a new list as a list comprehension."""
        if len(self.lines) != start + 1 or start < 2 or len(block.ops) < 2:
            return
        last = block.ops[-2]
        if last.name != "list.append" or self.lines[start - 1].strip() != head:
            return
        name, indent = self.text_of(last.operands[0]), "    " * self.depth
        begin = f"{indent}    {name}.append("
        item = self.lines[start].removeprefix(begin)[:-1]
        is_one = self.lines[start].startswith(begin) and name not in self.reads([item, head])
        if is_one and self.lines[start - 2] == f"{indent}{name} = []":
            del self.lines[start - 2 :], self.lines_of[start - 2 :]
            self.at = last
            self.line(f"{name} = [{item} {head[:-1]}]")

    def body(self, op: Op, done: Collection[Op]) -> None:
        (block,), inits = op.blocks, op.operands[2:]
        args = block.args[1:]
        condition, *values = block.terminator.operands
        outer = dict(self.replaced)
        for arg, value in zip(args, values, strict=True):
            self.replaced[self.names[arg]] = arg
            self.may_reuse(block, value, self.names[arg])
        self.block_ops([op for op in block.ops[:-1] if op not in done])
        self.at = block.terminator
        names = [self.names[a] for a in args]
        last = self.pending[-1] if self.pending else None
        text = ""
        if last is not None and last.value is condition:
            self.flush(keep=1)
            assigned = [n for n, v in zip(names, values, strict=True) if self.names.get(v) != n]
            if last.reads.isdisjoint(assigned) and all(v in self.names for v in values):
                text = self.condition(condition)
        self.assign(names, values)
        if not text:
            known = self.constants.get(condition)
            text = "" if known is True else self.text_of(condition)
        if text:
            flags = {
                self.names[arg]
                for arg, init, value in zip(args, inits, values, strict=True)
                if self.constants.get(init) is False and self.is_bool(value)
            }
            self.break_unless(text, flags)
        self.replaced = outer

    def break_unless(self, text: str, flags: Collection[str]) -> None:
        """Emit a conditional `break`. `flags`: variables that are False after it."""
        test = text[len("(not ") : -1] if text.startswith("(not ") else f"not {text}"
        latest, self.latest_if = self.latest_if, None
        if latest is None or latest[0] != test or test not in self.variables:
            start = len(self.lines)
            self.line(f"if {bare(test)}:")
        else:
            start = latest[1]
            lines = self.lines[start:]
            if any(line.lstrip().startswith(f"{test} =") for line in lines):
                start = len(self.lines)
                self.line(f"if {bare(test)}:")
        self.line("break", self.depth + 1)
        indent = "    " * self.depth
        before = self.lines[start - 1]
        if test in flags and before.startswith(f"{indent}{test} = "):  # `if a == b: flag = True`
            self.lines[start - 1] = f"{indent}if {before[len(indent) + len(test) + 3 :]}:"
            self.lines[start] = f"{indent}    {test} = True"

    def ends_with(self, value: Value, op: Op) -> bool:
        """Return whether the variable is dead after the op and unread in it, so that the op's
        result may reuse it."""
        if value in self.constants or value not in self.uses.maker:
            return False
        block = self.uses.block_of[op]
        return self.uses.home[value] is block and self.uses.count[value] == 1

    def head(self, op: Op) -> tuple[str, list[Op]]:
        """Return the loop's first line, and the ops of the body that this line already computes."""
        trips, (block,) = op.operands[0], op.blocks
        index = block.args[0]
        is_used = self.uses.count[index] > 0
        known = self.constants.get(trips)
        if isinstance(known, int) and known >= opdefs.MAX_TRIPS and not is_used:
            return "while True:", []
        last = self.pending[-1] if self.pending else None
        done: list[Op] = []
        if last is not None and last.value is trips:
            if last.op.name == "py.len" and (found := self.items(op, last, index, done)):
                return found, done
            if last.op.name == "py.range_len" and (found := self.steps(last, index, block, done)):
                return found, done
            self.pending.pop()
            text = last.text
        else:
            (text,) = self.take([trips])
        return f"for {self.name_of(index) if is_used else '_'} in range({bare(text)}):", done

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
            if op.name != name or op.operands != [at, by] or self.uses.count[at] != 1:
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


_WRITERS: Final[dict[str, Callable[[Writer, Op], None]]] = {
    "const": Writer.const,
    "undef": Writer.undef,
    "cast": Writer.cast,
    "use": Writer.use,
    "unpack": Writer.unpack,
    "tuple.make": Writer.tuple_,
    "tuple.get": Writer.tuple_get,
    "list.make": Writer.list_,
    "dict.make": Writer.dict_,
    "set.make": Writer.set_,
    "py.format": Writer.format_,
    "if": Writer.if_,
    "loop": Writer.loop,
    **dict.fromkeys(CALLED_BACK, Writer.called_back),
}
