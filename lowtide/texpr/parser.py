"""Text → Program: the inverse of `print_program`.

In: the text, which is data: nothing in it is evaluated or imported. Out: a Program; raises
ParseError, which shows the line with a caret.

Invariant: `print_program(parse_program(text)) == text` for a printed text. Axes, and sizes that
were not given, are new objects. Locations come back with file and line only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import torch

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType
from lowtide.ir.literals import parse_literal
from lowtide.ir.parser import ParseError
from lowtide.texpr import expr as ex
from lowtide.texpr.evaluate import FUNCTIONS
from lowtide.texpr.expr import Def, Delay, Expr, Input, Load, Program
from lowtide.texpr.index import Axis, Index, Size, as_index, gather
from lowtide.texpr.index_ranges import clamp, floordiv, mod
from lowtide.texpr.printer import REDUCTIONS, reduced, result_of

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.]))
    | (?P<name>[A-Za-z_][\w.]*)
    | (?P<part>%\w+)
    | (?P<mark>//|>=|[-+*%()\[\]:,=$])
    )""",
    re.VERBOSE | re.ASCII,
)
_LOC: Final = re.compile(r"\s*#\s(\S+)(?:\s(.*):(\d{1,9}))?\s*$")
_FLOATS: Final = ("inf", "nan")
_FLOAT: Final = re.compile(r"\d+[.e]")
_NUMBER: Final = re.compile(r"\.\d+$")  # of axes with one name


def parse_program(text: str, sizes: dict[str, Index] | None = None) -> Program:
    """Return the Program that this text prints; raises ParseError. `sizes`: symbols that exist
    already, by name; new ones are added."""
    return ProgramParser(text, {} if sizes is None else sizes).program()


class Line:
    """One line, and how far it is read."""

    def __init__(self, number: int, text: str) -> None:
        self.number = number
        self.text = text
        self.position = 0

    def fail(self, expected: str) -> ParseError:
        gap = len(self.text[self.position :]) - len(self.text[self.position :].lstrip())
        caret = " " * (self.position + gap) + "^"
        return ParseError(f"line {self.number}: expected {expected}\n    {self.text}\n    {caret}")

    def peek(self) -> tuple[str, str]:
        """Return the kind and the text of the next token; ("", "") at the end of the line."""
        found = _TOKEN.match(self.text, self.position)
        if found is None or not found.lastgroup:
            return "", ""
        return found.lastgroup, found[found.lastgroup]

    def take(self, kind: str, expected: str) -> str:
        got, word = self.peek()
        if got != kind:
            raise self.fail(expected)
        self.advance()
        return word

    def advance(self) -> None:
        found = _TOKEN.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def skip(self, *words: str) -> bool:
        """Read these words, if they come next. Return whether they do."""
        begin = self.position
        for word in words:
            if self.peek()[1] != word or self.peek()[0] == "string":
                self.position = begin
                return False
            self.advance()
        return True

    def need(self, *words: str) -> None:
        for word in words:
            if not self.skip(word):
                raise self.fail(f"`{word}`")

    def name(self) -> str:
        return self.take("name", "a name")

    def names(self) -> list[str]:
        found = [self.name()]
        while self.skip(","):
            found.append(self.name())
        return found

    def dtype(self) -> DType:
        name = self.peek()[1]
        if name not in dtypes.BY_NAME:
            raise self.fail(f"a dtype: {', '.join(dtypes.BY_NAME)}")
        self.advance()
        return dtypes.BY_NAME[name]

    def value(self) -> float | int | bool:
        """Parse a number or a bool, as Python writes it."""
        sign = -1 if self.skip("-") else 1
        word = self.peek()[1]
        if not (word.isdecimal() or word in (*_FLOATS, "True", "False") or _FLOAT.match(word)):
            raise self.fail("a number")
        self.advance()
        if word in ("True", "False"):
            return word == "True"
        return sign * int(word) if word.isdecimal() else sign * float(word)

    def literal(self) -> object:
        """Parse a constant: the rest of the line."""
        rest, self.position = self.text[self.position :].strip(), len(self.text)
        try:
            return parse_literal(rest)
        except ValueError as error:
            raise self.fail("a constant") from error

    def string(self) -> str:
        return str(parse_literal(self.take("string", "a string in quotes")))

    def end(self) -> tuple[str, Loc]:
        """Parse the op and the source line behind `#`, if there are any."""
        rest = self.text[self.position :]
        if not rest.strip():
            return "", UNKNOWN_LOC
        found = _LOC.match(rest)
        if found is None:
            raise self.fail("the end of the line")
        op = "" if found[1] == "-" else found[1]
        return op, Loc(found[2], int(found[3])) if found[3] else UNKNOWN_LOC

    def closes_before(self, mark: str) -> bool:
        """Return whether this mark, or a dtype and this mark, follows the bracket that opens
        here."""
        depth = 0
        for k in range(self.position, len(self.text)):
            depth += {"[": 1, "]": -1}.get(self.text[k], 0)
            if depth == 0 and self.text[k] == "]":
                return re.match(rf"(?::\w+)?\{mark}", self.text[k + 1 :]) is not None
        return False


class ProgramParser:
    """Reads lines. `heads`: what reads the rest of a line that begins with this word; `blocks`: the
    same, with the indented lines below."""

    def __init__(self, text: str, sizes: dict[str, Index]) -> None:
        raw = enumerate(text.splitlines(), start=1)
        self.lines = [Line(n, line.rstrip()) for n, line in raw if line.strip()]
        self.sizes = sizes
        self.dtypes: dict[str, DType] = {}
        self.made = Program()
        self.heads: dict[str, Callable[[Line], None]] = {
            "size": self.size, "input": self.input, "delay": self.delay, "equal": self.equal,
            "output": self.output, "check": self.check, "shared_sums": self.shared_sums,
        }  # fmt: skip
        self.blocks: dict[str, Callable[[Line, list[Line]], None]] = {}

    def program(self) -> Program:
        """Return the Program of all lines."""
        waiting = list(self.lines)
        while waiting:
            line = waiting.pop(0)
            parts: list[Line] = []
            while waiting and waiting[0].text.startswith(" "):
                parts.append(waiting.pop(0))
            word = line.peek()[1]
            is_head = line.text[len(word) :].startswith(" ")
            if word in self.blocks and is_head:
                line.advance()
                self.blocks[word](line, parts)
            elif word in self.heads and is_head:
                line.advance()
                self.heads[word](line)
                line.end()
                if parts:
                    raise parts[0].fail("a line that begins at the margin")
            else:
                self.definition(line, parts)
        return self.made

    def scope(self) -> Scope:
        """Return the scope of a definition: its axes by name."""
        return Scope(self, {})

    # -- lines --

    def size(self, line: Line) -> None:
        name, low = line.name(), None
        if line.skip(">="):
            sign = -1 if line.skip("-") else 1
            low = sign * int(line.take("number", "a number"))
        self.sizes.setdefault(name, as_index(Size(name, low)))

    def input(self, line: Line) -> None:
        name, dtype, shape = self.typed(line)
        line.need("strides", "(")
        strides = self.indices(line, ")")
        order = None
        if line.skip("order", "("):
            order = tuple(int(i.const or 0) for i in self.indices(line, ")"))
        self.made.inputs[name] = Input(
            name=name, dtype=dtype, shape=shape, strides=strides, order=order
        )

    def delay(self, line: Line) -> None:
        name, dtype, shape = self.typed(line)
        line.need("=")
        source = line.name()
        line.need("[")
        reverse = line.skip("+")
        if not reverse:
            line.need("-")
        line.need("1", "]", "from")
        init = line.name()
        ends = tuple(line.names()) if line.skip("ends") else ()
        why = line.string() if line.skip("why") else ""
        self.made.delays[name] = Delay(
            name=name, source=source, init=init, shape=shape, dtype=dtype, reverse=reverse,
            loc=line.end()[1], why=why, ends=ends,
        )  # fmt: skip
        line.position = len(line.text)

    def equal(self, line: Line) -> None:
        scope = self.scope()
        first = scope.index(line)
        line.need(",")
        second = scope.index(line)
        line.need(":")
        self.made.equalities.append((first, second, line.string()))

    def output(self, line: Line) -> None:
        self.made.outputs = self.values(line)

    def check(self, line: Line) -> None:
        self.made.checks = self.values(line)

    def shared_sums(self, line: Line) -> None:
        found: dict[str, DType] = {}
        while not found or line.skip(","):
            name = line.name()
            line.need(":")
            found[name] = line.dtype()
        self.made.shared_sums = found

    def values(self, line: Line) -> list[str]:
        found: list[str] = []
        while not found or line.skip(","):
            if line.peek()[1] not in self.dtypes:
                raise line.fail("a value that is defined above")
            found.append(line.name())
        return found

    def typed(self, line: Line) -> tuple[str, DType, tuple[Index, ...]]:
        name = line.name()
        line.need(":")
        dtype = line.dtype()
        line.need("[")
        self.declare(line, name, dtype)
        return name, dtype, self.indices(line, "]")

    def declare(self, line: Line, name: str, dtype: DType) -> None:
        if name in self.dtypes:
            raise line.fail(f"a new name, {name} is taken")
        self.dtypes[name] = dtype

    def indices(self, line: Line, close: str) -> tuple[Index, ...]:
        return Scope(self, {}).indices(line, close)

    def definition(self, line: Line, parts: list[Line]) -> Def:
        name = line.name()
        line.need("[")
        scope = self.scope()
        axes = scope.binders(line)
        line.need(":")
        dtype = line.dtype()
        line.need("=")
        for part in parts:
            scope.part(part)
            part.end()
        e = scope.expr(line)
        if line.skip("added", "to"):
            place = scope.expr(line)
            if not isinstance(place, Load):
                raise line.fail("an element, as in `out[i, j]`")
            e = ex.add_at(place, e)
        if e.dtype is not dtype:
            raise line.fail(f"an expression of {dtype}, not of {e.dtype}")
        op, loc = line.end()
        self.declare(line, name, dtype)
        made = self.made.defs[name] = Def(name=name, axes=axes, expr=e, loc=loc, op=op)
        return made


class IndexReader:
    """Reads indices over `axes` and sizes; sizes that are not known yet are added to `sizes`."""

    def __init__(self, sizes: dict[str, Index]) -> None:
        self.sizes = sizes
        self.axes: dict[str, Axis] = {}

    def data(self, line: Line) -> Index:
        """Parse the text of an index that is data. Raises, because such an index must be known
        here."""
        raise line.fail("an index that is known before the run")

    def indices(self, line: Line, close: str) -> tuple[Index, ...]:
        found: list[Index] = []
        while not line.skip(close):
            found.append(self.index(line))
            if not line.skip(",") and line.peek()[1] != close:
                raise line.fail(f"`,` or `{close}`")
        return tuple(found)

    def index(self, line: Line) -> Index:
        total = -self.product(line) if line.skip("-") else self.product(line)
        while True:
            if line.skip("+"):
                total = total + self.product(line)
            elif line.skip("-"):
                total = total - self.product(line)
            else:
                return total

    def product(self, line: Line) -> Index:
        total = self.factor(line)
        while True:
            if line.skip("*"):
                total = total * self.factor(line)
            elif line.skip("//"):
                total = floordiv(total, self.factor(line))
            elif line.skip("%"):
                total = mod(total, self.factor(line))
            else:
                return total

    def factor(self, line: Line) -> Index:
        kind, word = line.peek()
        if kind == "number" and word.isdecimal():
            line.advance()
            return as_index(int(word))
        if line.skip("("):
            inner = self.index(line)
            line.need(")")
            return inner
        if line.skip("["):
            data = self.data(line)
            line.need("]")
            return data
        if line.skip("clamp", "("):
            num = self.index(line)
            line.need(",")
            extent = self.index(line)
            line.need(")")
            return clamp(num, extent)
        if kind != "name":
            raise line.fail("an index")
        line.advance()
        if word in self.axes:
            return as_index(self.axes[word])
        return self.sizes.setdefault(word, as_index(Size(word)))


class Scope(IndexReader):
    """The axes and parts of one definition."""

    def __init__(self, parser: ProgramParser, axes: dict[str, Axis]) -> None:
        super().__init__(parser.sizes)
        self.dtypes = parser.dtypes
        self.axes = axes
        self.parts: dict[str, Expr] = {}

    def binders(self, line: Line) -> tuple[Axis, ...]:
        """Parse `i:N, j:4]`: axes of this definition, the same objects if they are known."""
        found: list[Axis] = []
        while not line.skip("]"):
            found.append(self.binder(line))
            if not line.skip(",") and line.peek()[1] != "]":
                raise line.fail("`,` or `]`")
        return tuple(found)

    def binder(self, line: Line) -> Axis:
        """Parse one axis, `i:N`."""
        name = line.name()
        line.need(":")
        extent = self.index(line)
        known = self.axes.setdefault(name, Axis(_NUMBER.sub("", name), extent))
        if known.extent is not extent:
            raise line.fail(f"another name: {name} has an extent of {known.extent}")
        return known

    def data(self, line: Line) -> Index:
        """See the base class."""
        return gather(self.expr(line))

    # -- expressions --

    def part(self, line: Line) -> Expr:
        """Parse `%1[k:3] = …`, a part of the expressions below."""
        key = line.take("part", "a part, `%1 = …`")
        if line.skip("["):
            self.binders(line)
        line.need("=")
        found = self.parts[key] = self.expr(line)
        return found

    def expr(self, line: Line) -> Expr:
        kind, word = line.peek()
        if kind == "number" or word == "-" or word in (*_FLOATS, "True", "False"):
            return self.number(line)
        if kind == "part":
            if word not in self.parts:
                raise line.fail(f"a part with a line of its own, not {word}")
            line.advance()
            return self.parts[word]
        if line.skip("$"):
            name = line.name()
            return ex.scalar(name, self.of(line, dtypes.f64))
        if kind != "name":
            raise line.fail("an expression")
        opens = line.text[line.position :].lstrip()[len(word) :][:1]
        if opens == "[":
            return self.bracketed(line, word)
        return self.called(line, word)

    def number(self, line: Line) -> Expr:
        value = line.value()
        usual = {bool: dtypes.boolean, float: dtypes.f32, int: dtypes.i64}
        return ex.const(value, self.of(line, usual[type(value)]))

    def of(self, line: Line, usual: DType) -> DType:
        return line.dtype() if line.skip(":") else usual

    def bracketed(self, line: Line, word: str) -> Expr:
        """Parse `x[i, j]` or `sum[j:4](…)`."""
        begin = line.position
        line.advance()
        gap = len(line.text[line.position :]) - len(line.text[line.position :].lstrip())
        line.position += gap
        if word in REDUCTIONS and line.closes_before("("):
            line.need("[")
            axes = self.binders(line)
            dtype = line.dtype() if line.skip(":") else None
            line.need("(")
            body = self.expr(line)
            line.need(")")
            return ex.reduce(word, axes, body, dtype or reduced(word, body))
        if word not in self.dtypes:
            line.position = begin
            raise line.fail(f"a value that is defined above, not {word}")
        line.need("[")
        at = self.indices(line, "]")
        return ex.load(word, at, self.of(line, self.dtypes[word]))

    def called(self, line: Line, word: str) -> Expr:
        """Parse `exp(…)`, `select(…)`, `f32(…)` or `at(i)`."""
        if word not in FUNCTIONS and word not in (*dtypes.BY_NAME, "at", "select"):
            raise line.fail(f"a function of elements, such as `exp`, not `{word}`")
        line.advance()
        dtype = line.dtype() if line.skip(":") else None
        line.need("(")
        if word == "at":
            index = self.index(line)
            line.need(")")
            return ex.at(index, self.of(line, dtypes.i64))
        args = [self.expr(line)]
        while line.skip(","):
            args.append(self.expr(line))
        line.need(")")
        if word in dtypes.BY_NAME and len(args) == 1:
            return ex.cast(args[0], dtypes.BY_NAME[word])
        if word == "select":
            if (
                len(args) != 3
                or args[0].dtype is not dtypes.boolean
                or args[1].dtype is not args[2].dtype
            ):
                raise line.fail("select(a bool, yes, no) of one dtype")
            return ex.select(args[0], args[1], args[2])
        if any(a.dtype is not args[0].dtype for a in args):
            kinds = ", ".join(str(a.dtype) for a in args)
            raise line.fail(f"operands of one dtype, not {kinds}")
        try:
            FUNCTIONS[word](*(torch.empty(0, dtype=torch.int64) for _ in args))
        except TypeError:
            raise line.fail(
                f"another number of operands: `{word}` does not take {len(args)}"
            ) from None
        return ex.apply(word, args, dtype or result_of(word, args))
