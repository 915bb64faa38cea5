"""Function → text. `parser` reads it back to the same Function.

    def f(%x: Tensor, %n: int = 3) -> Tensor:
      %c: int = const {value=1}                                  # model.py:2
      %r: Tensor, %s: int = if(%n)                               # model.py:3
        block():
          yield(%x, %c)
        block():
          yield(%x, %n)
      return(%r)

Always holds: names in the text are unique in their function; unnamed values are numbered in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from lowtide.errors import Loc
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.literals import print_literal

_LOC_COLUMN = 64


def print_function(
    fn: Function,
    *,
    locs: bool = True,
    full_paths: bool = False,
    marks: Mapping[Op, str] | None = None,
) -> str:
    """The text of a function.

    `locs`: each op's place in the source; `full_paths`: with its directory, so that a saved
    program still points at the user's file; `marks`: words to put under an op.
    """
    return _Printer(locs, full_paths, marks or {}).function(fn)


def print_op(op: Op) -> str:
    """One op (and its blocks) as it looks on its own, for messages."""
    return "\n".join(_Printer(True, False, {}).op(op, 0))


class _Printer:
    def __init__(self, locs: bool, full_paths: bool, marks: Mapping[Op, str]) -> None:
        self.locs = locs
        self.full_paths = full_paths
        self.marks = marks
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.unnamed = 0

    def function(self, fn: Function) -> str:
        params: list[str] = []
        for value in fn.arguments:
            text = self.typed(value)
            if value.name in fn.defaults:
                text += f" = {print_literal(fn.defaults[value.name])}"
            params.append(text)
        for value, path in zip(fn.params[len(params) :], fn.captures, strict=True):
            params.append(f"{self.typed(value)} @ {print_literal(path)}")
        head = f"def {fn.name}({', '.join(params)}) -> {fn.result}:"
        lines = [self.with_loc(head, fn.loc), *self.ops(fn.block, 1)]
        return "\n".join(lines) + "\n"

    def ops(self, block: Block, depth: int) -> list[str]:
        return [line for op in block.ops for line in self.op(op, depth)]

    def op(self, op: Op, depth: int) -> list[str]:
        operands = f"({', '.join(self.name(v) for v in op.operands)})"
        if op.attrs and not op.operands:
            operands = ""
        results = self.typed_list(op.results)
        text = "  " * depth + (f"{results} = " if results else "") + f"{op.name}{operands}"
        if op.attrs:
            text += f" {{{', '.join(f'{k}={print_literal(v)}' for k, v in op.attrs.items())}}}"
        lines = [self.with_loc(text, op.loc)]
        if op in self.marks:
            indent = "  " * depth
            lines.append(f"{indent}{'^' * len(text.strip())} {self.marks[op]}")
        for block in op.blocks:
            lines.append("  " * (depth + 1) + f"block({self.typed_list(block.args)}):")
            lines.extend(self.ops(block, depth + 2))
        return lines

    def with_loc(self, text: str, loc: Loc) -> str:
        if not self.locs or not loc.line:
            return text
        file = loc.file if self.full_paths else os.path.basename(loc.file)
        return f"{text.ljust(_LOC_COLUMN)} # {file}:{loc.line}"

    def typed_list(self, values: Iterable[Value]) -> str:
        return ", ".join(self.typed(v) for v in values)

    def typed(self, value: Value) -> str:
        return f"{self.name(value)}: {value.type}"

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = self.fresh(value.name)
        return f"%{self.names[value]}"

    def fresh(self, hint: str) -> str:
        if not hint:
            self.unnamed += 1
            return str(self.unnamed - 1)
        hint = re.sub(r"[^\w.]", "_", hint)  # a submodule may be called "a-b"
        name, count = f"_{hint}" if hint.isdigit() else hint, 0
        hint = name  # digits alone are the names of unnamed values
        while name in self.taken:
            count += 1
            name = f"{hint}.{count}"
        self.taken.add(name)
        return name
