"""Text → groups and their kernels: the inverse of `printer`.

In: the text, which is data: nothing in it is evaluated or imported. Out: a `TileProgram`; raises
ParseError, which shows the line with a caret, and VerifyError for a kernel that reads what is not
there.

Invariant: `print_groups(parse_groups(text)) == text` for a printed text. Facts that the groups
determine (the outputs that a kernel stores, the ops that it computes) are not in its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Expr
from lowtide.texpr.index import Axis, Index
from lowtide.texpr.parser import Line, ProgramParser, Scope
from lowtide.texpr.printer import REDUCTIONS
from lowtide.tile.group import Fusion, Group
from lowtide.tile.ir import (
    Accumulate,
    Buffer,
    Combine,
    Fill,
    Kernel,
    Nest,
    Stage,
    Stmt,
    Store,
    Sweep,
    Tiled,
    Write,
)
from lowtide.tile.printer import TileProgram
from lowtide.tile.verify import verify

T = TypeVar("T")


def parse_groups(text: str, sizes: dict[str, Index] | None = None) -> TileProgram:
    """Return the groups and kernels that this text prints. `sizes`: symbols that exist already, by
    name; new ones are added."""
    return _Parser(text, {} if sizes is None else sizes).tile_program()


@dataclass(slots=True, kw_only=True)
class _Group:
    """A group while its lines are read; `name` is that of its kernel."""

    name: str
    is_librarys: bool
    axes: dict[str, Axis] = field(default_factory=dict[str, Axis])
    defs: dict[str, Def] = field(default_factory=dict[str, Def])
    epilogue: dict[str, Def] = field(default_factory=dict[str, Def])
    is_over: bool = False  # the epilogue has begun
    kernel: tuple[Line, list[Line]] | None = None


class _Parser(ProgramParser):
    def __init__(self, text: str, sizes: dict[str, Index]) -> None:
        super().__init__(text, sizes)
        self.words: dict[str, list[str]] = {"sizes": [], "numbers": [], "moving": []}
        self.updated: dict[str, str] = {}
        self.shapes: dict[str, tuple[Index, ...]] = {}
        self.groups: list[_Group] = []
        self.heads |= {
            "sizes": lambda line: self.words["sizes"].extend(line.names()),
            "numbers": lambda line: self.words["numbers"].extend(line.names()),
            "moving": lambda line: self.words["moving"].extend(line.names()),
            "updated": self.update, "group": self.group, "then": self.then, "result": self.result,
        }  # fmt: skip
        self.blocks["kernel"] = self.kernel

    def tile_program(self) -> TileProgram:
        normal = self.program()
        groups = [Group(g.defs, g.epilogue) for g in self.groups]
        requested = dict(normal.defs)
        for name, shape in self.shapes.items():
            axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(shape))
            requested[name] = replace(requested[name], axes=axes)
        fusion = Fusion(
            program=replace(normal, defs=requested), normal=normal, groups=groups,
            by_library={n for g in self.groups if g.is_librarys for n in g.defs},
        )  # fmt: skip
        kernels = [
            _KernelParser(self, read.axes, made, fusion).kernel(*read.kernel)
            for read, made in zip(self.groups, groups, strict=True)
            if read.kernel is not None
        ]
        if kernels and len(kernels) < len(groups):
            raise self.lines[-1].fail("a kernel for each group, or for none")
        words = self.words
        return TileProgram(
            fusion=fusion, sizes=words["sizes"], numbers=words["numbers"], updated=self.updated,
            moving=frozenset(words["moving"]), kernels=kernels,
        )  # fmt: skip

    # -- lines --

    def scope(self) -> Scope:
        """The definitions of a group have axes in common."""
        return Scope(self, self.groups[-1].axes if self.groups else {})

    def declare(self, line: Line, name: str, dtype: DType) -> None:
        """Several groups may compute one value, under one name."""
        if self.groups and name not in {**self.groups[-1].defs, **self.groups[-1].epilogue}:
            self.dtypes[name] = dtype
        else:
            super().declare(line, name, dtype)

    def definition(self, line: Line, parts: list[Line]) -> Def:
        if not self.groups:
            raise line.fail("`group k0` before the first definition")
        made = super().definition(line, parts)
        g = self.groups[-1]
        (g.epilogue if g.is_over else g.defs)[made.name] = made
        return made

    def group(self, line: Line) -> None:
        name = f"k{len(self.groups)}"
        line.need(name)
        self.groups.append(_Group(name=name, is_librarys=line.skip("by", "library")))

    def then(self, line: Line) -> None:
        self.current(line).is_over = True

    def kernel(self, line: Line, lines: list[Line]) -> None:
        self.current(line).kernel = line, lines

    def current(self, line: Line) -> _Group:
        """The group that is read; the line names it, too."""
        if not self.groups:
            raise line.fail("`group k0` before it")
        line.need(self.groups[-1].name)
        return self.groups[-1]

    def result(self, line: Line) -> None:
        name = line.name()
        if name not in self.made.defs:
            raise line.fail("a value that is defined above")
        line.need(":", "[")
        self.shapes[name] = self.indices(line, "]")

    def update(self, line: Line) -> None:
        name = line.name()
        line.need("by")
        self.updated[name] = line.name()


class _KernelParser:
    """Reads the indented lines of a kernel."""

    def __init__(
        self, parser: ProgramParser, axes: dict[str, Axis], group: Group, fusion: Fusion
    ) -> None:
        self.scope = Scope(parser, axes)
        self.scope.dtypes = dict(parser.dtypes)
        self.group = group
        self.fusion = fusion
        self.buffers: dict[str, Buffer] = {}
        self.values: dict[str, Buffer] = {}
        self.staged: dict[str, Expr] = {}  # what buffers hold, so far
        self.combines: list[Combine] = []

    def kernel(self, line: Line, lines: list[Line]) -> Kernel:
        """The kernel; `line` is read up to its name."""
        defs, stored = self.group.defs, self.fusion.stored
        line.need("grid", "(")
        grid = tuple(self.listed(line, ")", self.tiled))
        lanes = warps = stages = 0
        if line.skip("lanes"):
            lanes = self.count(line)
        else:
            line.need("warps")
            warps = self.count(line)
            line.need("stages")
            stages = self.count(line)
        checks_nan = line.skip("checks", "nan")
        line.end()
        prologue, epilogue, body = list[Stmt](), list[Stmt](), list[Stmt]()
        for first, inner in _blocks(lines):
            if first.skip("once", "per", "thread"):
                prologue += self.body(inner)
            elif first.skip("after", "all", "tiles"):
                epilogue += self.body(inner)
            elif first.skip("combine"):
                self.combine(first)
            elif (is_sum := first.skip("accumulator")) or first.skip("tile"):
                self.buffer(first, is_sum)
            else:
                body += self.stmt(first, inner)
        stores = [n for n in defs if n in stored]
        adds = {n: defs[n].adds_to for n in stores if defs[n].adds_to}
        made = Kernel(
            name=line.text.split()[1], grid=grid, buffers=[*self.buffers.values()],
            values=self.values, prologue=_nests(prologue), body=body, combines=self.combines,
            epilogue=_nests(epilogue), adds=adds, checks_nan=checks_nan, lanes=lanes,
            outputs=[n for n in (*stores, *self.group.epilogue) if n not in adds],
            warps=warps, stages=stages,
        )  # fmt: skip
        verify(made)
        return made

    # -- words --

    def count(self, line: Line) -> int:
        return int(line.take("number", "a number"))

    def listed(self, line: Line, close: str, read: Callable[[Line], T]) -> list[T]:
        """Parse items with commas between them, up to a bracket."""
        found: list[T] = []
        while not line.skip(close):
            found.append(read(line))
            if not line.skip(",") and line.peek()[1] != close:
                raise line.fail(f"`,` or `{close}`")
        return found

    def axis(self, line: Line) -> Axis:
        """`i`, or `i:N` where it stands for the first time."""
        name = line.peek()[1]
        if name not in self.scope.axes or line.text[line.position :].lstrip().startswith(
            f"{name}:"
        ):
            return self.scope.binder(line)
        line.advance()
        return self.scope.axes[name]

    def axes(self, line: Line) -> tuple[Axis, ...]:
        found = [self.axis(line)]
        while line.skip(","):
            found.append(self.axis(line))
        return tuple(found)

    def tiled(self, line: Line) -> Tiled:
        axis = self.axis(line)
        return Tiled(axis, self.count(line) if line.skip("by") else None)

    def known_buffer(self, line: Line) -> Buffer:
        name = line.peek()[1]
        if name not in self.buffers:
            raise line.fail("a buffer")
        line.advance()
        return self.buffers[name]

    # -- buffers --

    def buffer(self, line: Line, is_sum: bool) -> None:
        name = line.name()
        line.need("[")
        whole: set[Axis] = set()

        def axis(line: Line) -> Axis:
            found = self.axis(line)
            if line.skip("whole"):
                whole.add(found)
            return found

        axes = tuple(self.listed(line, "]", axis))
        line.need(":")
        b = Buffer(name=name, dtype=line.dtype(), axes=axes, whole=frozenset(whole))
        b.fn = line.name() if is_sum else ""
        b.last = self.axis(line) if line.skip("last") else None
        b.panel = self.count(line) if line.skip("panel") else 0
        b.per_thread = line.skip("per", "thread")
        b.twin = self.known_buffer(line) if line.skip("best") else None
        while line.skip("holds"):
            value = line.name()
            self.values[value] = b
            dtype = line.dtype() if line.skip(":") else b.dtype
            self.scope.dtypes.setdefault(value, dtype)
        line.end()
        self.buffers[name] = b

    def combine(self, line: Line) -> None:
        target = line.name()
        line.need("[")
        axes = tuple(self.listed(line, "]", self.axis))
        line.need("=")
        self.combines.append(Combine(buffer=self.known_buffer(line), target=target, axes=axes))
        line.need("over", "threads")
        line.end()

    # -- statements --

    def body(self, lines: list[Line]) -> list[Stmt]:
        return [s for line, inner in _blocks(lines) for s in self.stmt(line, inner)]

    def stmt(self, line: Line, inner: list[Line]) -> Iterator[Stmt]:
        if line.skip("for"):
            axis = self.axis(line)
            line.need("by")
            tile = self.count(line)
            line.end()
            yield Sweep(axis=axis, tile=tile, body=self.body(inner))
        elif line.skip("fill"):
            buffer = self.known_buffer(line)
            line.need("=")
            made = Fill(buffer=buffer, value=line.value())
            if line.skip("where"):
                made.empty = self.axes(line)
                line.need("is", "empty")
            line.end()
            yield made
        elif line.skip("nest"):
            yield self.nest(line, inner)
        else:
            raise line.fail("one of for, fill, nest")

    def nest(self, line: Line, inner: list[Line]) -> Nest:
        nest = Nest(axes=(), writes=[])
        line.need("(")
        loops = tuple(self.listed(line, ")", lambda line: self.loop(line, nest)))
        nest.axes = nest.order = loops
        if line.skip("in", "any", "order"):
            nest.order = ()
        elif line.skip("over"):
            found = [self.loop(line, nest)]
            while line.skip(","):
                found.append(self.loop(line, nest))
            nest.axes = tuple(found)
        if line.skip("transposed"):
            nest.transposed = self.axis(line)
        names = [self.known_buffer(line).name] if line.skip("reads") else []
        while names and line.skip(","):
            names.append(self.known_buffer(line).name)
        line.end()
        self.scope.parts = {f"%{name}": e for name, e in self.staged.items()}
        others: dict[Expr, Buffer] = {}
        for part in inner:
            if part.peek()[0] != "part":
                nest.writes.append(self.write(part))
            else:
                e = self.scope.part(part)
                if part.skip("in"):
                    others[e] = self.known_buffer(part)
            part.end()
        for name in names:
            if name not in self.staged:
                raise line.fail(f"a buffer that is written above, not {name}")
            nest.reads[self.staged[name]] = self.buffers[name]
        nest.reads |= others
        return nest

    def loop(self, line: Line, nest: Nest) -> Axis:
        a = self.axis(line)
        if line.skip("vector"):
            nest.vector, nest.vectors = a, int(line.name().removeprefix("x"))
        if line.skip("unrolled"):
            nest.full |= {a}
        if line.skip("unroll"):
            nest.unroll[a] = self.count(line)
        if line.skip("in", "parts"):
            nest.parts |= {a}
        if line.skip("in", "blocks", "of"):
            nest.blocks[a] = self.count(line)
        return a

    def write(self, line: Line) -> Write:
        name = line.name()
        if line.skip("["):
            index = self.scope.indices(line, "]")
            if line.skip("="):
                return Store(target=name, index=index, expr=self.scope.expr(line))
            line.need("+", "=")
            place = ex.load(name, index, self.scope.dtypes[name])
            return Store(target=name, index=index, expr=ex.add_at(place, self.scope.expr(line)))
        if name not in self.buffers:
            raise line.fail(f"a buffer or an element, not {name}")
        line.need("=")
        fn = line.peek()[1]
        if fn in REDUCTIONS and line.text[line.position :].lstrip().startswith(f"{fn}["):
            return self.accumulate(line, self.buffers[name])
        e = self.staged[name] = self.scope.parts[f"%{name}"] = self.scope.expr(line)
        return Stage(buffer=self.buffers[name], expr=e)

    def accumulate(self, line: Line, buffer: Buffer) -> Accumulate:
        fn = line.name()
        line.need("[")
        reduced = tuple(self.listed(line, "]", self.axis))
        line.need("(")
        e = self.scope.expr(line)
        line.need(")")
        first = None
        if line.skip("from", "its", "first"):
            first = self.axes(line)
        elif line.skip("at", "once"):
            first = ()
        return Accumulate(buffer=buffer, fn=fn, reduced=reduced, expr=e, first=first)


def _blocks(lines: list[Line]) -> Iterator[tuple[Line, list[Line]]]:
    """Each line of the least indentation, with those below it that are indented more."""
    waiting = list(lines)
    while waiting:
        first, inner = waiting.pop(0), list[Line]()
        while waiting and _indent(waiting[0]) > _indent(first):
            inner.append(waiting.pop(0))
        yield first, inner


def _indent(line: Line) -> int:
    return len(line.text) - len(line.text.lstrip())


def _nests(body: list[Stmt]) -> list[Nest]:
    return [s for s in body if isinstance(s, Nest)]
