"""A Function as Python-like source, for `c.code`: to be read, not run.

def f(x: Tensor, n: int) -> Tensor:
    y = torch.sum(x, 0, False, None)
    if n > 3:
        z = torch.mul(y, n)
    else:
        z = y
    return z
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.literals import print_literal
from lowtide.ir.opdefs import MAX_TRIPS

_BINARY: Final = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "is": "is", "is_not": "is not",
}  # fmt: skip
_UNARY: Final = {"neg": "-", "pos": "+", "invert": "~", "not": "not "}


def python_text(function: Function) -> str:
    """The source of the whole function."""
    writer = _Writer()
    params = ", ".join(
        f"{writer.name(p)}: {p.type}"
        + (f" = {function.defaults[p.name]!r}" if p.name in function.defaults else "")
        for p in function.params
    )
    writer.block(function.block, 1)
    return "\n".join([f"def {function.name}({params}) -> {function.result}:", *writer.lines])


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._used: set[str] = set()

    def name(self, value: Value) -> str:
        """The variable of a value; a constant's own text."""
        found = self._names.get(value)
        if found is None:
            stem = value.name if value.name.isidentifier() else f"v{len(self._used)}"
            found, k = stem, 1
            while found in self._used:
                k += 1
                found = f"{stem}_{k}"
            self._used.add(found)
            self._names[value] = found
        return found

    def names(self, values: Sequence[Value]) -> str:
        return ", ".join(map(self.name, values))

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def block(self, block: Block, depth: int, results: Sequence[Value] = ()) -> None:
        """The statements of a block; what it yields goes to `results`."""
        for op in block.ops[:-1]:
            self.op(op, depth)
        end = block.terminator
        if end.name == "return":
            self.line(depth, f"return {self.names(end.operands)}")
            return
        self.assign(depth, results, end.operands[len(end.operands) - len(results) :])
        if not block.ops[:-1] and not results:
            self.line(depth, "pass")

    def assign(self, depth: int, targets: Sequence[Value], values: Sequence[Value]) -> None:
        if targets:
            self.line(depth, f"{self.names(targets)} = {self.names(values)}")

    def op(self, op: Op, depth: int) -> None:
        if op.name == "const":
            self._names[op.result] = print_literal(op.attrs["value"])
        elif op.name == "undef":
            self._names[op.result] = "None"
        elif op.name == "if":
            self.line(depth, f"if {self.name(op.operands[0])}:")
            self.block(op.blocks[0], depth + 1, op.results)
            self.line(depth, "else:")
            self.block(op.blocks[1], depth + 1, op.results)
        elif op.name == "loop":
            self.loop(op, depth)
        elif op.name == "mutate" and op.attrs.get("spec") is not None:
            x, *items, value = map(self.name, op.operands)
            self._names[op.result] = x
            self.line(depth, f"{self.subscript(op, x, items)} = {value}")
        else:
            text = self.expression(op)
            target = f"{self.names(op.results)} = " if op.results else ""
            self.line(depth, target + text)

    def loop(self, op: Op, depth: int) -> None:
        trips, going, *carried = op.operands
        (block,) = op.blocks
        i, *args = block.args
        for result, arg in zip(op.results, args, strict=True):
            self._names[result] = self.name(arg)
        self.assign(depth, args, carried)
        count, test = self.name(trips), self.name(going)
        if count == str(MAX_TRIPS):
            again = block.terminator.operands[0]
            self.line(depth, f"{self.name(again)} = {test}")
            self.line(depth, f"while {self.name(again)}:")
        else:
            self.line(depth, f"for {self.name(i)} in range({count}):")
        self.block(block, depth + 1, args)
        if count != str(MAX_TRIPS) and self.name(block.terminator.operands[0]) != "True":
            self.line(depth + 1, f"if not {self.name(block.terminator.operands[0])}: break")

    def expression(self, op: Op) -> str:
        """The right-hand side of one op."""
        args = [self.name(v) for v in op.operands]
        family, _, name = op.name.partition(".")
        if family == "py" and name in _BINARY and len(args) == 2:
            return f"{args[0]} {_BINARY[name]} {args[1]}"
        if family == "py" and name in _UNARY:
            return f"{_UNARY[name]}{args[0]}"
        match op.name:
            case "tuple.make":
                return f"({', '.join(args)}{',' if len(args) == 1 else ''})"
            case "list.make":
                return f"[{', '.join(args)}]"
            case "tuple.get":
                return f"{args[0]}[{op.attrs['index']}]"
            case "list.get":
                return f"{args[0]}[{args[1]}]"
            case "unpack" | "cast":
                return args[0]
            case "torch.getitem":
                return self.subscript(op, args[0], args[1:])
            case "call_torch" | "mutate":
                words = cast("tuple[str, ...]", op.attrs.get("kwnames", ()))
                split = len(args) - len(words)
                pairs = zip(words, args[split:], strict=True)
                named = [f"{word}={arg}" for word, arg in pairs]
                return f"{op.attrs['target']}({', '.join([*args[:split], *named])})"
            case _:
                extra = [f"{k}={print_literal(v)}" for k, v in op.attrs.items()]
                shown = op.name.removeprefix("py.")
                return f"{shown}({', '.join([*args, *extra])})"

    def subscript(self, op: Op, base: str, items: Sequence[str]) -> str:
        words = {"none": "None", "ellipsis": "..."}
        rest = list(items)
        parts: list[str] = []
        for word in cast("tuple[str, ...]", op.attrs["spec"]):
            if word == "slice":
                start, stop, step = ("" if r == "None" else r for r in rest[:3])
                parts.append(f"{start}:{stop}" + (f":{step}" if step else ""))
                rest = rest[3:]
            else:
                parts.append(words[word] if word in words else rest.pop(0))
        return f"{base}[{', '.join(parts)}]"
