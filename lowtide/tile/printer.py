"""Prints groups and their kernels as text, which `parser` reads back.

In: a TileProgram, or a Kernel. Out: text; without kernels if these are not planned yet.

    sizes N
    input x: f32[N, 8] strides (8, 1)
    group k0
    m[i:N]: f32 = max[j:8](exp(x[i, j]))
    kernel k0 grid (i:N by 64) lanes 8
      accumulator m[i]: f32 max last i holds m
      tile s1[i, j]: f32 last i
      nest (j, i vector x1)
        s1 = exp(x[i, j])
      nest (i vector x4, j) reads s1
        m = max[j](%s1) at once
      nest (i vector x1)
        m[i] = m[i]
    output m

`%s1` is the expression that the buffer s1 holds. If a nest reads another expression from s1, it has
a line for that: `%1 = exp(x[i, j]) in s1`. Axes of equal names are numbered: `i`, `i.1`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from lowtide.ir.dtypes import DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import AddAt, Expr, Program
from lowtide.texpr.index import Axis
from lowtide.texpr.printer import ExprPrinter, input_line, size_lines, sizes_of, wanted_lines
from lowtide.tile.group import Fusion
from lowtide.tile.ir import (  # fmt: skip
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TileProgram:
    """The groups of a Program, and their kernels once these are planned. `sizes`, `numbers`:
    names, in the order of a call. `moving`, `updated`: see `codegen/kernels`."""

    fusion: Fusion
    sizes: Sequence[str] = ()
    numbers: Sequence[str] = ()
    moving: Set[str] = frozenset()
    updated: Mapping[str, str] = field(default_factory=dict[str, str])
    kernels: Sequence[Kernel] = ()


def print_groups(made: TileProgram) -> str:
    """Return the text of the groups, each followed by its kernel if it has one."""
    return "\n".join(_group_lines(made))


def print_kernel(kernel: Kernel) -> str:
    """Return the text of a single kernel."""
    return "\n".join(_KernelPrinter(kernel, ExprPrinter(())).lines())


def _group_lines(made: TileProgram) -> Iterator[str]:
    fusion = made.fusion
    program, normal = fusion.program, fusion.normal
    every = {n: d for g in fusion.groups for n, d in (*g.defs.items(), *g.epilogue.items())}
    known = sizes_of(Program(inputs=program.inputs, defs={**normal.defs, **every}))
    words = {"sizes": made.sizes, "numbers": made.numbers, "moving": sorted(made.moving)}
    yield from (f"{word} {', '.join(names)}" for word, names in words.items() if names)
    yield from size_lines({a.name: a for a in known}.values())
    yield from map(input_line, program.inputs.values())
    yield from (f"updated {name} by {by}" for name, by in made.updated.items())
    declared = {n: x.dtype for n, x in (*program.inputs.items(), *every.items())}
    kernels = dict(enumerate(made.kernels))
    for k, g in enumerate(fusion.groups):
        printer = ExprPrinter({a.name for a in known}, declared)
        is_librarys = not fusion.by_library.isdisjoint(g.defs)
        yield f"group k{k}{' by library' if is_librarys else ''}"
        for d in g.defs.values():
            yield from printer.definition(d)
        if g.epilogue:
            yield f"then k{k}"
        for d in g.epilogue.values():
            yield from printer.definition(d)
        if k in kernels:
            yield from _KernelPrinter(kernels[k], printer).lines()
    for name in dict.fromkeys((*program.outputs, *program.checks)):
        requested, found = program.defs.get(name), every.get(name)
        if requested is not None and found is not None and requested.shape != found.shape:
            yield f"result {name}: [{', '.join(map(str, requested.shape))}]"
    yield from wanted_lines(program)


class _KernelPrinter:
    def __init__(self, kernel: Kernel, printer: ExprPrinter) -> None:
        self.kernel = kernel
        self.printer = printer
        self.staged: dict[str, Expr] = {}  # by buffer: the expression last written to it
        self.dtypes: dict[str, DType] = {
            load.source: load.dtype
            for nest in kernel.nests() for w in nest.writes for load in ex.loads(w.expr)
        }  # fmt: skip
        printer.declared = {**self.dtypes, **printer.declared}

    def lines(self) -> Iterator[str]:
        kernel = self.kernel
        by = f"lanes {kernel.lanes}"
        if kernel.warps:
            by = f"warps {kernel.warps} stages {kernel.stages}"
        nan = " checks nan" if kernel.checks_nan else ""
        yield f"kernel {kernel.name} grid ({', '.join(map(self.tiled, kernel.grid))}) {by}{nan}"
        yield from (f"  {self.buffer(b)}" for b in kernel.buffers)
        for words, nests in (("once per thread", kernel.prologue), ("", kernel.body),
                             ("after all tiles", kernel.epilogue)):  # fmt: skip
            if words and nests:
                yield f"  {words}"
            yield from self.stmts(nests, "    " if words else "  ")
            if not words:
                yield from (f"  {self.combine(c)}" for c in kernel.combines)

    def axis(self, a: Axis) -> str:
        """Return the name of an axis, with its extent at the first occurrence."""
        return self.printer.name(a) if a in self.printer.axes else self.printer.binders([a])

    def names(self, axes: Iterable[Axis]) -> str:
        return ", ".join(map(self.axis, axes))

    def tiled(self, t: Tiled) -> str:
        return self.printer.binders([t.axis]) + (f" by {t.tile}" if t.tile is not None else "")

    def buffer(self, b: Buffer) -> str:
        axes = ", ".join(f"{self.axis(a)}{' whole' if a in b.whole else ''}" for a in b.axes)
        text = f"{'accumulator' if b.fn else 'tile'} {b.name}[{axes}]: {b.dtype}"
        text += f" {b.fn}" if b.fn else ""
        text += f" last {self.axis(b.last)}" if b.last is not None else ""
        text += f" panel {b.panel}" if b.panel else ""
        text += " per thread" if b.per_thread else ""
        text += f" best {b.twin.name}" if b.twin is not None else ""
        for name in (n for n, held in self.kernel.values.items() if held is b):
            dtype = self.printer.declared.get(name, b.dtype)
            text += f" holds {name}" + (f":{dtype}" if dtype is not b.dtype else "")
        return text

    def combine(self, c: Combine) -> str:
        return f"combine {c.target}[{self.names(c.axes)}] = {c.buffer.name} over threads"

    def stmts(self, body: Iterable[Stmt], indent: str) -> Iterator[str]:
        for stmt in body:
            if isinstance(stmt, Sweep):
                yield f"{indent}for {self.printer.binders([stmt.axis])} by {stmt.tile}"
                yield from self.stmts(stmt.body, indent + "  ")
            elif isinstance(stmt, Fill):
                where = "" if stmt.empty is None else f" where {self.names(stmt.empty)} is empty"
                yield f"{indent}fill {stmt.buffer.name} = {stmt.value!r}{where}"
            else:
                yield from (indent + line for line in self.nest(stmt))

    def nest(self, nest: Nest) -> Iterator[str]:
        printer, before = self.printer, dict(self.staged)
        own = {w.buffer.name: w.expr for w in nest.writes if isinstance(w, Stage)}
        loops = ", ".join(self.loop(nest, a) for a in nest.order or nest.axes)
        text = f"nest ({loops})"
        if not nest.order and nest.axes:
            text += " in any order"
        elif nest.order != nest.axes:
            hidden = nest.full.difference(nest.order)
            axes = (f"{self.axis(a)}{' unrolled' if a in hidden else ''}" for a in nest.axes)
            text += f" over {', '.join(axes)}"
        text += f" transposed {self.axis(nest.transposed)}" if nest.transposed else ""
        printer.begin()
        bound = [*printer.axes]
        others: list[tuple[Expr, Buffer]] = []
        held: list[str] = []
        for e, b in nest.reads.items():
            if {**before, **own}.get(b.name) is e:
                held.append(b.name)
                if before.get(b.name) is e:
                    printer.known[e] = f"%{b.name}"
            else:
                others.append((e, b))
        for e, b in sorted(others, key=lambda pair: sum(1 for _ in ex.walk(pair[0]))):
            printer.expr(e, bound)
            printer.part(e, bound, f" in {b.name}")
        writes: list[str] = []
        for w in nest.writes:
            writes.append(self.write(w, bound))
            if isinstance(w, Stage):
                self.staged[w.buffer.name] = w.expr
                if w.buffer.name in held and nest.reads.get(w.expr) is w.buffer:
                    printer.known[w.expr], printer.depth[w.expr] = f"%{w.buffer.name}", 0
        yield text + (f" reads {', '.join(held)}" if held else "")
        yield from printer.lines
        yield from (f"  {line}" for line in writes)

    def loop(self, nest: Nest, a: Axis) -> str:
        text = self.axis(a)
        text += f" vector x{nest.vectors}" if a is nest.vector else ""
        text += " unrolled" if a in nest.full else ""
        text += f" unroll {nest.unroll[a]}" if a in nest.unroll else ""
        text += " in parts" if a in nest.parts else ""
        text += f" in blocks of {nest.blocks[a]}" if a in nest.blocks else ""
        return text

    def write(self, w: Write, bound: Sequence[Axis]) -> str:
        printer = self.printer
        if isinstance(w, Store):
            sign, e = ("+=", w.expr.value) if isinstance(w.expr, AddAt) else ("=", w.expr)
            text = printer.expr(e, bound)
            for index in w.index:
                for inner in ex.gathered([index]):
                    printer.expr(inner, bound)
            at = ", ".join(map(printer.index, w.index))
            return f"{w.target}[{at}] {sign} {text}"
        if isinstance(w, Stage):
            return f"{w.buffer.name} = {printer.expr(w.expr, bound)}"
        begins = ""
        if w.first is not None:
            begins = f" from its first {self.names(w.first)}" if w.first else " at once"
        text = printer.expr(w.expr, bound)
        return f"{w.buffer.name} = {w.fn}[{self.names(w.reduced)}]({text}){begins}"
