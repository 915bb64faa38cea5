"""Text → Function: the inverse of `print_function`.

In: the text, which is data: nothing in it is evaluated or imported. Out: a Function; raises
ParseError, which names the line.

Invariant: `parse_function(print_function(f)) == f`. Places come back with file and line only.
"""

from __future__ import annotations

import re

from lowtide.errors import UNKNOWN_LOC, Loc, LowtideError
from lowtide.ir.core import Block, Function, Op, Value
from lowtide.ir.literals import parse_attrs, parse_literal
from lowtide.ir.types import TypeReader

_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_PIECE = re.compile(rf"{_STRING}|.")
_LOC = re.compile(r"\s*# (.*):(\d{1,9})\s*$")
_VALUE = re.compile(r"%([\w.$]+)")
_OP = re.compile(r"([\w.$]+)(?:\(([^()]*)\)|(?=\s*\{))")
_ATTRS = re.compile(rf"\s*\{{((?:{_STRING}|[^'\"}}])*)\}}")
_HEAD = re.compile(r"def ([\w.$<>]+)\(")


class ParseError(LowtideError):
    """The text is not printed IR: the line with a caret, and what was expected there."""


def parse_function(text: str) -> Function:
    """Return the function that this text prints; raises ParseError."""
    return _Parser(text).function()


class _Line:
    """One line: indentation in steps of two blanks, the text, and where it came from."""

    def __init__(self, number: int, raw: str) -> None:
        self.number = number
        self.depth = (len(raw) - len(raw.lstrip())) // 2
        self.text = raw.strip()
        self.position = 0

    def fail(self, expected: str) -> ParseError:
        caret = " " * self.position + "^"
        return ParseError(f"line {self.number}: expected {expected}\n    {self.text}\n    {caret}")

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def need(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        found = self.match(pattern)
        if found is None:
            raise self.fail(expected)
        return found

    def skip(self, word: str) -> bool:
        return self.match(re.compile(r"\s*" + re.escape(word) + r"\s*")) is not None

    def loc(self) -> Loc:
        found = self.match(_LOC)
        if found is None and self.text[self.position :].strip():
            raise self.fail("the end of the line")
        return Loc(found[1], int(found[2])) if found else UNKNOWN_LOC


class _Parser:
    def __init__(self, text: str) -> None:
        raw = enumerate(text.splitlines(), start=1)
        self.lines = [_Line(n, line) for n, line in raw if line.strip()]
        self.next = 0
        self.values: dict[str, Value] = {}

    def function(self) -> Function:
        if not self.lines:
            raise ParseError("line 1: expected `def name(...) -> type:`")
        line = self.take()
        name = line.need(_HEAD, "`def name(...) -> type:`")[1]
        block = Block()
        defaults: dict[str, object] = {}
        captures: list[str] = []
        while not line.skip(")"):
            value = self.typed(line)
            block.args.append(value)
            if line.skip("="):
                defaults[value.name] = self.default(line)
            if line.skip("@"):
                captures.append(str(self.default(line)))
            elif captures:
                raise line.fail("`@ path`, as of the parameter before")
            line.skip(",")
        if not line.skip("->"):
            raise line.fail("`->`")
        result = self.type(line)
        if not line.skip(":"):
            raise line.fail("`:`")
        loc = line.loc()
        block.ops = self.ops(1)
        if self.next < len(self.lines):
            raise self.lines[self.next].fail("an op, indented as the ones before")
        return Function(name, block, result, defaults, loc, tuple(captures))

    def take(self) -> _Line:
        self.next += 1
        return self.lines[self.next - 1]

    def at(self, depth: int) -> bool:
        return self.next < len(self.lines) and self.lines[self.next].depth == depth

    def ops(self, depth: int) -> list[Op]:
        found: list[Op] = []
        while self.at(depth):
            found.append(self.op(depth))
        return found

    def op(self, depth: int) -> Op:
        line = self.take()
        results: list[tuple[str, Value]] = []
        while line.text.startswith("%", line.position):
            results.append(self.declared(line))
            line.skip(",")
        if results and not line.skip("="):
            raise line.fail("`=`")
        head = line.need(_OP, "`name(%operand, ...)`")
        operands = [
            self.use(line, word.strip()) for word in (head[2] or "").split(",") if word.strip()
        ]
        attrs = line.match(_ATTRS)
        op = Op(name=head[1], operands=operands, attrs=self.attrs(line, attrs), loc=line.loc())
        op.blocks = self.blocks(depth + 1)
        for name, value in results:
            self.define(line, name, value)
        op.results = [value for _, value in results]
        return op

    def blocks(self, depth: int) -> list[Block]:
        found: list[Block] = []
        while self.at(depth) and self.lines[self.next].text.startswith("block("):
            line = self.take()
            line.position = len("block(")
            block = Block()
            while not line.skip(")"):
                block.args.append(self.typed(line))
                line.skip(",")
            block.ops = self.ops(depth + 1)
            found.append(block)
        return found

    def typed(self, line: _Line) -> Value:
        name, value = self.declared(line)
        self.define(line, name, value)
        return value

    def declared(self, line: _Line) -> tuple[str, Value]:
        name = line.need(_VALUE, "`%name: type`")[1]
        if not line.skip(":"):
            raise line.fail("`%name: type`")
        return name, Value("" if name.isdigit() else name, self.type(line))

    def define(self, line: _Line, name: str, value: Value) -> None:
        if name in self.values:
            raise line.fail(f"a new name, %{name} is taken")
        self.values[name] = value

    def use(self, line: _Line, word: str) -> Value:
        found = _VALUE.fullmatch(word)
        if found is None or found[1] not in self.values:
            raise line.fail(f"a value made before, not {word}")
        return self.values[found[1]]

    def type(self, line: _Line):
        reader = TypeReader(line.text, line.position)
        try:
            found = reader.type()
        except ValueError as error:
            raise line.fail("a type") from error
        line.position = reader.position
        return found

    def default(self, line: _Line) -> object:
        """Reads up to a comma or parenthesis that is in no string and no parentheses."""
        begin, depth = line.position, 0
        while line.position < len(line.text):
            piece = line.need(_PIECE, "a constant")[0]
            if depth == 0 and piece in ",)":
                line.position -= 1
                break
            depth += {"(": 1, ")": -1}.get(piece, 0)
        return self.literal(line, line.text[begin : line.position])

    def literal(self, line: _Line, text: str) -> object:
        try:
            return parse_literal(text)
        except ValueError as error:
            raise line.fail("a constant") from error

    def attrs(self, line: _Line, found: re.Match[str] | None) -> dict[str, object]:
        try:
            return parse_attrs(found[1]) if found else {}
        except ValueError as error:
            raise line.fail("attributes: `name=constant`") from error
