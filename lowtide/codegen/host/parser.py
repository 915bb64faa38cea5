"""Parses the text of a HostProgram: the inverse of `printer`.

In:  a text, by `print_host` or by a person. Out: a HostProgram, verified. Raises ParseError, which
     shows the line with a caret.

    take t2: f32[s0] output    # - model.py:3    →    Take(name="t2", …, loc=model.py:3)

Source locations come back with file and line only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from lowtide.codegen.host.program import (
    Dense,
    Fill,
    Free,
    HostProgram,
    Launch,
    Loop,
    Offset,
    Over,
    Own,
    Place,
    Row,
    Size,
    Statement,
    Take,
    Tensor,
    View,
    Work,
)
from lowtide.codegen.host.verify import verify_host
from lowtide.errors import Loc
from lowtide.texpr.index import Index
from lowtide.texpr.parser import IndexReader, Line
from lowtide.tile.matmul import Matmul, Matrix

T = TypeVar("T")
KINDS: Final = ("output", "temporary")


def parse_host(text: str) -> HostProgram:
    """Return the program that this text prints. Raises ParseError, and VerifyError if the program
    breaks a rule."""
    lines = [Line(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
    program = _Parser(lines).program()
    verify_host(program)
    return program


class _Parser:
    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.position = 0
        self.read = IndexReader({})

    def program(self) -> HostProgram:
        sizes = self._names("sizes")
        numbers = self._names("numbers")
        inputs: dict[str, Tensor] = {}
        while (line := self._next("input")) is not None:
            name, inputs[name] = self._typed(line)
            line.end()
        body: list[Statement] = []
        while self.lines[self.position].peek()[1] != "result":
            body.append(self._statement())
            if self.position == len(self.lines):
                raise self.lines[-1].fail("a last line `result …`")
        line = self.lines[self.position]
        line.advance()
        results = tuple(line.names()) if line.peek()[1] else ()
        line.end()
        return HostProgram(
            sizes=sizes, numbers=numbers, inputs=inputs, body=tuple(body), results=results
        )

    def _next(self, word: str) -> Line | None:
        """Read the next line if it begins with this word; None otherwise."""
        line = self.lines[self.position]
        if not line.skip(word):
            return None
        self.position += 1
        return line

    def _names(self, word: str) -> tuple[str, ...]:
        line = self._next(word)
        return () if line is None else tuple(line.names())

    def _statement(self) -> Statement:
        line = self.lines[self.position]
        self.position += 1
        word = line.peek()[1]
        if word not in _STATEMENTS:
            raise line.fail(f"one of {', '.join(_STATEMENTS)}")
        line.advance()
        made = _STATEMENTS[word](self, line)
        line.end()
        return made

    # -- statements, read after their first word --

    def size(self, line: Line) -> Size:
        name = line.name()
        line.need("=")
        return Size(name=name, index=self.read.index(line))

    def take(self, line: Line) -> Take:
        name, tensor = self._typed(line)
        return Take(name=name, tensor=tensor, kind=self._kind(line), loc=_loc(line))

    def over(self, line: Line) -> Over:
        name, tensor = self._typed(line)
        kind = self._kind(line)
        line.need("=")
        return Over(name=name, tensor=tensor, kind=kind, of=line.name(), loc=_loc(line))

    def work(self, line: Line) -> Work:
        name = line.name()
        line.need("=")
        found = [self.read.index(line)]
        while line.skip(","):
            found.append(self.read.index(line))
        return Work(name=name, thread_bytes=tuple(found))

    def fill(self, line: Line) -> Fill:
        name = line.name()
        line.need("=")
        value = line.literal()
        if not isinstance(value, int | float):
            raise line.fail("a number before this")
        return Fill(name=name, value=value)

    def dense(self, line: Line) -> Dense:
        name = line.name()
        line.need("=")
        return Dense(name=name, of=line.name())

    def view(self, line: Line) -> View:
        name, tensor = self._typed(line)
        line.need("=")
        of = line.name()
        line.need("[")
        index = self.read.index(line)
        line.need("]")
        return View(name=name, tensor=tensor, of=of, index=index, loc=_loc(line))

    def own(self, line: Line) -> Own:
        name, tensor = self._typed(line)
        return Own(name=name, tensor=tensor, kind=self._kind(line), loc=_loc(line))

    def launch(self, line: Line) -> Launch:
        kernel = line.name()
        tensors = self._listed(line, self._place)
        sizes = self._listed(line, Line.name) if line.skip("sizes") else ()
        numbers = self._listed(line, Line.name) if line.skip("numbers") else ()
        work = line.name() if line.skip("work") else ""
        instead = self.matmul(line) if line.skip("instead", "matmul") else None
        return Launch(
            kernel=kernel, tensors=tensors, sizes=sizes, numbers=numbers, work=work, instead=instead
        )

    def loop(self, line: Line) -> Loop:
        step = line.name()
        line.need("from")
        begin = self.read.index(line)
        line.need("by")
        by = int(line.take("number", "a number"))
        line.need(",")
        trips = self.read.index(line)
        line.need("times")
        reverse = line.skip(",", "reverse")
        until = self._place(line) if line.skip(",", "until") else ""
        ran = line.name() if line.skip(",", "ran") else ""
        line.need(":")
        body: list[Launch | Loop] = []
        while self.position < len(self.lines) and _is_within(self.lines[self.position], line):
            inner = self.lines[self.position]
            made = self._statement()
            if not isinstance(made, Launch | Loop):
                raise inner.fail("`launch` or `loop` in the body of a loop")
            body.append(made)
        return Loop(
            step=step, begin=begin, by=by, trips=trips, body=tuple(body), reverse=reverse,
            until=until, ran=ran,
        )  # fmt: skip

    def free(self, line: Line) -> Free:
        return Free(names=tuple(line.names()))

    # -- parts of lines --

    def _typed(self, line: Line) -> tuple[str, Tensor]:
        name = line.name()
        line.need(":")
        dtype = line.dtype()
        line.need("[")
        return name, Tensor(dtype=dtype, shape=self._indices(line, "]"))

    def _indices(self, line: Line, close: str) -> tuple[Index, ...]:
        found: list[Index] = []
        while not line.skip(close):
            if found:
                line.need(",")
            found.append(self.read.index(line))
        return tuple(found)

    def _kind(self, line: Line) -> str:
        word = line.name()
        if word not in KINDS:
            raise line.fail(f"a kind before this: {', '.join(KINDS)}")
        return word

    def _listed(self, line: Line, one: Callable[[Line], T]) -> tuple[T, ...]:
        line.need("(")
        found: list[T] = []
        while not line.skip(")"):
            if found:
                line.need(",")
            found.append(one(line))
        return tuple(found)

    def _place(self, line: Line) -> Place:
        place: Place = line.name()
        while line.skip("["):
            if line.skip("bytes"):
                place = Offset(of=place, nbytes=self.read.index(line))
            else:
                place = self._row(line, place)
            line.need("]")
        return place

    def _row(self, line: Line, of: Place) -> Row:
        step, shift = line.name(), 0
        for sign, factor in (("+", 1), ("-", -1)):
            if line.skip(sign):
                shift = factor * int(line.take("number", "a number"))
        line.need(",", "rows")
        rows = self.read.index(line)
        line.need(",", "bytes")
        row_bytes = self.read.index(line)
        first = self._place(line) if line.skip(",", "first") else None
        return Row(of=of, step=step, shift=shift, rows=rows, row_bytes=row_bytes, first=first)

    def matmul(self, line: Line) -> Matmul:
        line.need("(")
        parts: list[Matrix] = []
        for _ in range(3):
            parts.append(self._matrix(line))
            line.need(",")
        bias = self._matrix(line) if line.skip("bias") else None
        if bias is not None:
            line.need(",")
        line.need("points")
        points = self.read.index(line)
        line.need(")")
        left, right, result = parts
        return Matmul(left=left, right=right, result=result, points=points, bias=bias)

    def _matrix(self, line: Line) -> Matrix:
        source = line.name()
        line.need("[", "(")
        sizes = self._indices(line, ")")
        line.need(",", "(")
        strides = self._indices(line, ")")
        line.need(",")
        offset = self.read.index(line)
        line.need("]")
        return Matrix(source=source, sizes=sizes, strides=strides, offset=offset)


_STATEMENTS: Final[dict[str, Callable[[Any, Line], Statement]]] = {
    word: getattr(_Parser, word)
    for word in ("size", "take", "over", "work", "fill", "dense", "view", "own", "launch", "matmul",
                 "loop", "free")
}  # fmt: skip


def _loc(line: Line) -> Loc:
    return line.end()[1]


def _is_within(line: Line, head: Line) -> bool:
    """Return whether a line is indented further than another."""
    return _indent(line) > _indent(head)


def _indent(line: Line) -> int:
    return len(line.text) - len(line.text.lstrip())
