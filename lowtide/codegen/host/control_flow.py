"""Prints ops, loops and branches included, as the text of a Python function.

In:  ops, and those of their values that the function returns. Out: the function's text. A carried
     value of a loop or the result of a branch reuses the variable of the value that it replaces,
     unless the old value is still read after the new one is computed.

    %s.3: int = if(%c)                     if c:
      block(): yield(%s.4)          →          s = s >> 1
      block(): yield(%s.2)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from lowtide.codegen.host.expressions import CALLED_BACK, NAME, Expressions, bare
from lowtide.codegen.host.loop_heads import Head, LoopHeads
from lowtide.ir.core import Block, Op, Value, free_values


@dataclass(slots=True, kw_only=True)
class Arm:
    """A branch: its lines and the ops they come from; or `text`, if the branch is one
    expression."""

    lines: list[str] = field(default_factory=list[str])
    ops: list[Op] = field(default_factory=list[Op])
    text: str = ""


class Writer(LoopHeads):
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
            if op in self.in_heads:
                continue
            self.at = op
            _WRITERS.get(op.name, Expressions.expression)(self, op)

    def if_(self, op: Op) -> None:
        condition = self.condition(op.operands[0])
        self.flush()
        self.keep_variables(op)
        names = [self.name_of(result) for result in op.results]
        replaced = dict(self.replaced)
        self.replaced.update(self.shared.get(op, {}))
        arms = [self.arm(op, block, names) for block in op.blocks]
        self.replaced = replaced
        yes, no = arms
        if yes.text and no.text and names[0] not in (yes.text, no.text):
            self.define(op, self.choice(op, condition, yes.text, no.text))
            return
        for arm in arms:
            if arm.text and arm.text != names[0]:
                arm.lines.append("    " * (self.depth + 1) + f"{names[0]} = {bare(arm.text)}")
                arm.ops.append(op)
        start = len(self.lines)
        if yes.lines or not no.lines:
            self.line(f"if {bare(condition)}:")
            self.add_arm(yes)
        other = len(self.lines) if no.lines else None
        if no.lines:
            self.line("else:" if yes.lines else f"if not {condition}:")
            self.add_arm(no)
        self.latest_if = condition, start, other

    def keep_variables(self, op: Op) -> None:
        """Give a branch's result the variable of the value that one branch leaves as it is, if no
        later op reads that value."""
        place = self.uses.block_of[op]
        ops = place.ops if isinstance(place, Block) else self.ops
        later = ops[ops.index(op) + 1 :]
        taken = Counter(self.names.values())
        for k, result in enumerate(op.results):
            if result in self.names:
                continue
            for block in op.blocks:
                same = block.terminator.operands[k]
                name = self.names.get(same, "")
                is_here = same in self.uses.maker and self.uses.home[same] is place
                if not is_here or same in self.constants or same in self.results:
                    continue
                if taken[name] == 1 and same not in free_values(later):
                    taken[name] += 1
                    self.called(result, name)
                    self.shared.setdefault(op, {})[name] = same
                    break

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
        elif maker.name == "if":  # and the value that a branch leaves as it is
            place = maker.results.index(value)
            for arm in maker.blocks:
                same = arm.terminator.operands[place]
                later = block.ops[block.ops.index(maker) + 1 :]
                if self.uses.home.get(same) is block and same not in free_values(later):
                    self.takes(block, same, name)
                    if self.names.get(same) == name:
                        self.shared.setdefault(maker, {})[name] = same
                    break

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
        head = self.head(op)
        self.flush()
        self.assign([self.names[a] for a in args], inits)
        is_sure = head.is_tested or self.constants.get(going) is True
        if not is_sure:
            self.line(f"if {self.text_of(going)}:")
            self.depth += 1
        self.line(head.text)
        self.depth += 1
        before = len(self.lines)
        self.body(op, head)
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1 if is_sure else 2
        self.comprehend(block, head.text, before)

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

    def body(self, op: Op, head: Head) -> None:
        (block,), inits = op.blocks, op.operands[2:]
        args = block.args[1:]
        condition, *values = block.terminator.operands
        if head.is_tested:
            condition = head.left
        outer = dict(self.replaced)
        held = {} if head.same is None else {self.names[head.same]: head.same}
        for arg, value in zip(args, values, strict=True):
            name = self.names[arg]
            self.replaced[name] = held.get(name, arg)
            self.may_reuse(block, value, name)
        self.block_ops([op for op in block.ops[:-1] if op not in head.done])
        self.at = block.terminator
        names = [self.names[a] for a in args]
        last = self.pending[-1] if self.pending else None
        text = ""
        if last is not None and condition is not None and last.value is condition:
            self.flush(keep=1)
            assigned = [n for n, v in zip(names, values, strict=True) if self.names.get(v) != n]
            if last.reads.isdisjoint(assigned) and all(v in self.names for v in values):
                text = self.condition(condition)
        self.assign(names, values)
        if not text and condition is not None:
            known = self.constants.get(condition)
            text = "" if known is True else self.text_of(condition)
        if text and head.is_tested:
            text = f"(not {text})"
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
        indent = "    " * self.depth
        start = self.break_in_latest_if(test)
        if start is None:
            start = len(self.lines)
            self.line(f"if {bare(test)}:")
            self.line("break", self.depth + 1)
        self.latest_if = None
        before = self.lines[start - 1]
        if not before.startswith(f"{indent}{test} = "):
            return
        if test in flags:  # `if a == b: flag = True`
            self.lines[start - 1] = f"{indent}if {before[len(indent) + len(test) + 3 :]}:"
            self.lines[start] = f"{indent}    {test} = True"
        elif self.is_read_here_only(test):
            self.lines[start - 1 : start + 1] = [
                f"{indent}if {before[len(indent) + len(test) + 3 :]}:"
            ]
            del self.lines_of[start]

    def break_in_latest_if(self, test: str) -> int | None:
        """Let the branch that was printed last break, if it has this condition; return its line."""
        if self.latest_if is None or self.latest_if[0] != test or test not in self.variables:
            return None
        _, start, other = self.latest_if
        indent = "    " * self.depth
        lines = self.lines[start:]
        if lines[0][: len(indent) + 2] != f"{indent}if":
            return None
        if any(line.lstrip().startswith(f"{test} =") for line in lines):
            return None
        if other is None:
            self.line("break", self.depth + 1)
            return start
        if other == start:  # `if not test: …`
            self.lines[start] = f"{indent}if {test}:"
            self.lines.insert(start + 1, f"{indent}    break")
            self.lines_of.insert(start + 1, self.at)
            other += 1
        else:  # `else:`
            self.lines[other] = f"{indent}    break"
        self.lines[other + 1 :] = [line.removeprefix("    ") for line in self.lines[other + 1 :]]
        return start

    def is_read_here_only(self, name: str) -> bool:
        """Return whether one value has this variable, for a branch and the loop's condition."""
        (value, *others) = (v for v, found in self.names.items() if found == name)
        return not others and self.uses.count[value] == 2

    def ends_with(self, value: Value, op: Op) -> bool:
        """Return whether the variable is dead after the op and unread in it, so that the op's
        result may reuse it."""
        if value in self.constants or value not in self.uses.maker:
            return False
        block = self.uses.block_of[op]
        return self.uses.home[value] is block and self.uses.count[value] == 1


_WRITERS: Final[dict[str, Callable[[Writer, Op], None]]] = {
    "const": Writer.const,
    "undef": Writer.undef,
    "iter.of": Writer.iterator,
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
