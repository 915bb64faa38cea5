"""Function → Python-like source, for people: what `c.code` shows.

In: a Function. Out: text with Python's control flow, constants in place, and torch ops by name.

    %1: int = const {value=1}
    %y: Tensor = torch.add(%x, %n, %1)      →      y = torch.add(x, n, 1)
    return(%y)                                     return y

Invariant: every op that does something has its line. The text is for reading; only printed IR
reads back to the same program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.literals import print_literal
from lowtide.ir.opdefs import MAX_TRIPS, Indexing


def python_text(fn: Function) -> str:
    """Return the function as Python-like source."""
    return _Writer().function(fn)


INFIX = {
    "py.add": "+",
    "py.sub": "-",
    "py.mul": "*",
    "py.truediv": "/",
    "py.floordiv": "//",
    "py.mod": "%",
    "py.pow": "**",
    "py.lt": "<",
    "py.le": "<=",
    "py.gt": ">",
    "py.ge": ">=",
    "py.eq": "==",
    "py.ne": "!=",
    "py.and": "&",
    "py.or": "|",
    "py.xor": "^",
    "py.lshift": "<<",
    "py.rshift": ">>",
    "py.is": "is",
    "py.is_not": "is not",
}
PREFIX = {"py.neg": "-", "py.pos": "+", "py.not": "not ", "py.invert": "~"}
FORMS = {
    "list.get": "{0}[{1}]",
    "list.slice": "{0}[{1}:{2}:{3}]",
    "list.set": "{0}[{1}] = {2}",
    "list.set_slice": "{0}[{1}:{2}:{3}] = {4}",
    "list.delete": "del {0}[{1}]",
    "list.of": "list({0})",
    "list.sorted": "sorted({0})",
    "dict.item": "{0}[{1}]",
    "dict.set": "{0}[{1}] = {2}",
    "dict.delete": "del {0}[{1}]",
    "py.bound": "{0}",
    "py.member_of": "{0}",
    "py.contains": "{1} in {0}",
    "py.device_type": "{0}.type",
    "py.device_index": "{0}.index",
    "cast": "{0}",
}


class _Writer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.inline: dict[Value, str] = {}
        self.taken: set[str] = set()

    def function(self, fn: Function) -> str:
        params: list[str] = []
        for p in fn.params:
            default = f" = {print_literal(fn.defaults[p.name])}" if p.name in fn.defaults else ""
            params.append(f"{self.name(p)}: {p.type}{default}")
        lines = [f"def {fn.name}({', '.join(params)}) -> {fn.result}:"]
        self.block(fn.block, 1, lines)
        return "\n".join(lines) + "\n"

    def block(self, block: Block, depth: int, lines: list[str]) -> None:
        for op in block.ops:
            self.op(op, depth, lines)

    def op(self, op: Op, depth: int, lines: list[str]) -> None:
        indent = "    " * depth
        if op.name in ("const", "undef"):
            self.inline[op.result] = print_literal(op.attrs.get("value"))
        elif op.name == "if":
            self.if_(op, depth, lines)
        elif op.name == "loop":
            self.loop(op, depth, lines)
        elif op.name == "return":
            lines.append(f"{indent}return {self.use(op.operands[0])}")
        elif op.name != "yield":
            targets = ", ".join(self.name(r) for r in op.results)
            lines.append(indent + (f"{targets} = " if targets else "") + self.expression(op))

    def if_(self, op: Op, depth: int, lines: list[str]) -> None:
        indent = "    " * depth
        lines.append(f"{indent}if {self.use(op.operands[0])}:")
        for k, block in enumerate(op.blocks):
            before = len(lines)
            if k == 1:
                lines.append(f"{indent}else:")
            self.block(block, depth + 1, lines)
            self.assign(op.results, block.terminator.operands, depth + 1, lines)
            if len(lines) == before + k:
                lines[before:] = [] if k == 1 else [f"{indent}    pass"]

    def loop(self, op: Op, depth: int, lines: list[str]) -> None:
        indent = "    " * depth
        (block,) = op.blocks
        trips, going, *carried = op.operands
        for arg, result in zip(block.args[1:], op.results, strict=True):
            self.names[result] = self.name(arg)
        self.assign(block.args[1:], carried, depth, lines)
        condition, *values = block.terminator.operands
        is_while = self.use(trips) == str(MAX_TRIPS)
        head = "while True" if is_while else f"for {self.name(block.args[0])} in range"
        lines.append(f"{indent}{head}:" if is_while else f"{indent}{head}({self.use(trips)}):")
        if self.use(going) != "True":
            lines.append(f"{indent}    # runs only if {self.use(going)}")
        before = len(lines)
        self.block(block, depth + 1, lines)
        self.assign(block.args[1:], values, depth + 1, lines)
        test = self.use(condition)
        if test != "True":
            lines.append(f"{indent}    if not {test}: break")
        if len(lines) == before:
            lines.append(f"{indent}    pass")

    def assign(
        self, targets: Sequence[Value], values: Sequence[Value], depth: int, lines: list[str]
    ) -> None:
        pairs = [(self.name(a), self.use(b)) for a, b in zip(targets, values, strict=True)]
        moved = [(a, b) for a, b in pairs if a != b]
        if moved:
            left, right = ", ".join(a for a, _ in moved), ", ".join(b for _, b in moved)
            lines.append(f"{'    ' * depth}{left} = {right}")

    def expression(self, op: Op) -> str:
        args = [self.use(v) for v in op.operands]
        if op.name in INFIX:
            return f"{args[0]} {INFIX[op.name]} {args[1]}"
        if op.name in PREFIX:
            return f"{PREFIX[op.name]}{args[0]}"
        if op.name in FORMS:
            return FORMS[op.name].format(*args)
        match op.name:
            case "tuple.make":
                return f"({args[0]},)" if len(args) == 1 else f"({', '.join(args)})"
            case "tuple.get":
                return f"{args[0]}[{op.attrs['index']}]"
            case "list.make":
                return f"[{', '.join(args)}]"
            case "unpack" | "use":
                return args[0]
            case "torch.invert":
                return f"~{args[0]}"
            case "torch.getitem":
                return f"{args[0]}[{self.index(op, args[1:])}]"
            case "call_torch" | "mutate":
                return self.call(op, args)
            case "raise":
                return f"raise {op.attrs['exception']}({', '.join(args)})"
            case "assert":
                return f"assert {', '.join(args)}"
            case "py.getattr":
                return f"{args[0]}.{op.attrs['name']}"
            case "py.format":
                return f"{op.attrs['template']!r}.format({', '.join(args)})"
            case _:
                return f"{op.name.removeprefix('py.')}({', '.join(args)})"

    def index(self, op: Op, args: list[str]) -> str:
        items: list[str] = []
        rest = list(args)
        for word in cast("tuple[str, ...]", op.attrs["spec"]):
            count = Indexing.ARITY[word]
            mine, rest = rest[:count], rest[count:]
            items.append(_item(word, mine))
        return ", ".join(items)

    def call(self, op: Op, args: list[str]) -> str:
        target = str(op.attrs["target"])
        if "spec" in op.attrs:
            return f"setitem({args[0]}, [{self.index(op, args[1:-1])}], {args[-1]})"
        kwnames = cast("tuple[str, ...]", op.attrs["kwnames"])
        split = len(args) - len(kwnames)
        named = [f"{k}={v}" for k, v in zip(kwnames, args[split:], strict=True)]
        return f"{target}({', '.join([*args[:split], *named])})"

    def use(self, value: Value) -> str:
        return self.inline.get(value) or self.name(value)

    def name(self, value: Value) -> str:
        if value not in self.names:
            hint = re.sub(r"\W", "_", value.name) or "_"
            name, count = hint if hint != "_" else "_0", 0
            while name in self.taken:
                count += 1
                name = f"_{count}" if hint == "_" else f"{hint}_{count}"
            self.taken.add(name)
            self.names[value] = name
        return self.names[value]


def _item(word: str, args: list[str]) -> str:
    match word:
        case "slice":
            start, stop, step = ("" if a == "None" else a for a in args)
            return f"{start}:{stop}" + (f":{step}" if step else "")
        case "none":
            return "None"
        case "ellipsis":
            return "..."
        case _:
            return args[0]
