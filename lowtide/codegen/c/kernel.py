"""Prints a `Kernel` as C: an entry, a task for each thread, buffers, the fold over threads.

In:  a scheduled kernel; dtypes and strides of tensors. Out: a `KernelText`: C, and its parameters.

    static void k_task(slots, t, threads, exact, nan)  the prologue, then a share of the tiles
    int64_t k(slots)                                   runs the tasks; again, exact, if NaN was seen
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from lowtide.codegen.c import pointwise as pw
from lowtide.codegen.c.c_names import Names, buffer_place, c_index, number
from lowtide.codegen.c.nest import nest_lines
from lowtide.codegen.c.reduce import ARG
from lowtide.codegen.c.transpose import transposed_lines
from lowtide.codegen.host.program import BEGUN
from lowtide.codegen.index_text import size_names
from lowtide.codegen.reads import indices_of, numbers_of, tensors_of
from lowtide.ir.dtypes import DType
from lowtide.texpr.algebra import identity
from lowtide.texpr.index import Axis, Index, as_index, product
from lowtide.texpr.index_ranges import floordiv
from lowtide.tile.ir import Buffer, Combine, Fill, Kernel, Nest, Stmt, sweeps
from lowtide.tile.overlays import Overlay, overlays

LONG_LINES = 1000  # in a kernel of at least so many lines …
OUTLINED_LINES = 80  # … a nest of at least so many is a function of its own
SERIAL_POINTS = 1 << 14  # with fewer points, waking a thread costs more than it saves


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSignature:
    """The fields of a `KernelText` that are known without its text."""

    name: str
    tensors: list[str]
    sizes: list[str]
    numbers: list[str]
    thread_bytes: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelText:
    """A kernel's C. `tensors`, `sizes`, `numbers`: the slots after the scratch pointer, in order.
    `thread_bytes`: work memory per thread, a polynomial in the sizes."""

    name: str
    text: str
    tensors: list[str]
    sizes: list[str]
    numbers: list[str]
    thread_bytes: Index
    names: Names


def kernel_text(
    kernel: Kernel,
    memory: Mapping[str, DType],
    strides: Mapping[str, tuple[Index, ...]],
    is_step: bool = False,
    updated: Mapping[str, str] | None = None,
) -> KernelText:
    """Return the text of a kernel. `memory`, `strides`: of the tensors that it reads and writes.
    `is_step`: it runs in each step of a loop; with a prologue, `BEGUN` is one of its sizes.
    `updated`: operands, and the outputs that overwrite them element by element."""
    return _Printer(kernel, memory, strides, is_step, updated or {}).text()


def kernel_signature(
    kernel: Kernel,
    memory: Mapping[str, DType],
    strides: Mapping[str, tuple[Index, ...]],
    is_step: bool = False,
) -> KernelSignature:
    """Return a kernel's parameters and its work memory, without printing it; see `kernel_text`."""
    return _Printer(kernel, memory, strides, is_step, {}).signature()


def _aligned(kernel: Kernel) -> frozenset[Axis]:
    """Return the axes of which every tile has whole vectors."""
    apart = {a for a, tile in kernel.tiles() if tile is not None and tile % kernel.lanes}
    return frozenset(a for nest in kernel.nests() for a in nest.axes if a not in apart)


class _Printer:
    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[str, DType],
        strides: Mapping[str, tuple[Index, ...]],
        is_step: bool,
        updated: Mapping[str, str],
    ) -> None:
        self.kernel = kernel
        self.is_step = is_step
        read = {*tensors_of(kernel)} if updated else set[str]()
        self.updated = {n: of for n, of in updated.items() if of in kernel.outputs and n in read}
        self.names = Names(
            lanes=kernel.lanes,
            strides=dict(strides),
            memory=dict(memory),
            values=kernel.values,
            fixed=frozenset(t.axis for t in kernel.grid if t.tile == 1),
            grid=frozenset(t.axis for t in kernel.grid),
            aligned=_aligned(kernel),
        )
        self.grid_tiles = {t.axis: t.tile or 1 for t in kernel.grid}
        self.sweeps = {s.axis: s.tile for s in sweeps(kernel.body)}
        self.sizes: dict[str, None] = {}
        self.is_long = False
        self.printed: dict[int, list[str]] = {}
        self.outlined: list[tuple[str, list[str], list[str]]] = []  # name, tile variables, lines

    # -- buffers --

    def _length(self, b: Buffer, a: Axis) -> Index:
        if a in b.whole:
            return a.extent
        if a in self.grid_tiles:
            return as_index(self.grid_tiles[a])
        return as_index(self.sweeps[a]) if a in self.sweeps else a.extent

    def _padded(self, b: Buffer) -> Index:
        """Return the length of the contiguous axis, padded to whole vectors or whole panels."""
        if b.last is None:
            return as_index(1)
        step = max(b.panel, self.kernel.lanes)
        return floordiv(self._length(b, b.last) + step - 1, step) * step

    def _elements(self, b: Buffer) -> Index:
        others = [self._length(b, a) for a in b.axes if a is not b.last]
        return product(others) * self._padded(b) + self.kernel.lanes

    def _bytes(self, b: Buffer) -> Index:
        size = 4 if b.dtype.name == "bool" else b.dtype.itemsize
        return floordiv(self._elements(b) * size + 63, 64) * 64

    @cached_property
    def _overlays(self) -> list[Overlay]:
        return overlays(self.kernel, {b.name: self._bytes(b) for b in self.kernel.buffers})

    def thread_bytes(self) -> Index:
        total = as_index(0)
        for shared in self._overlays:
            total = total + shared.nbytes
        return total

    def signature(self) -> KernelSignature:
        thread_bytes = self.thread_bytes()
        sizes: dict[str, None] = {}
        for index in (self._work(), self._tiles(), thread_bytes, *self._indices()):
            sizes.update(dict.fromkeys(size_names(index)))
        if self.is_step and self.kernel.prologue:
            sizes[BEGUN] = None
        return KernelSignature(
            name=self.kernel.name, tensors=tensors_of(self.kernel), sizes=list(sizes),
            numbers=numbers_of(self.kernel), thread_bytes=thread_bytes,
        )  # fmt: skip

    # -- text --

    def text(self) -> KernelText:
        prologue = list(self._prologue())
        body = list(self._body(self.kernel.body, frozenset()))
        if len(body) >= LONG_LINES:
            self.is_long = True
            body = list(self._body(self.kernel.body, frozenset()))
        task = [*self._buffer_lines(), *self._thread_fills(), *prologue, *self._tile_loop(body)]
        combines = [line for c in self.kernel.combines for line in self._combine(c)]
        for nest in self.kernel.epilogue:
            combines += ["{", *("  " + line for line in self._last(nest)), "}"]
        work, tiles = self._work(), self._tiles()
        taken = self.signature()
        tensors, numbers = taken.tensors, taken.numbers
        self.sizes = dict.fromkeys(taken.sizes)
        slots = list(self._slots(tensors, numbers))
        lines = [
            *self._outlined(slots),
            f"static void {self.kernel.name}_task(const lt_slot *slots, int64_t t, "
            "int64_t threads, int64_t tiles, int exact, int *nan) {",
            *("  " + line for line in (*slots, *task)),
            "}",
            *self._entry(slots, combines, c_index(tiles), c_index(work)),
        ]
        return KernelText(
            name=self.kernel.name,
            text="\n".join(lines) + "\n",
            tensors=tensors,
            sizes=taken.sizes,
            numbers=numbers,
            thread_bytes=taken.thread_bytes,
            names=self.names,
        )

    def _indices(self) -> Iterator[Index]:
        """Yield the polynomials that the text prints; their sizes are parameters."""
        for b in self.kernel.buffers:
            yield from (self._length(b, a) for a in b.axes)
        for t in self.kernel.grid:
            yield t.axis.extent
        yield from indices_of(self.kernel, self.names.strides)
        for c in self.kernel.combines:
            yield from self.names.strides[c.target]
            yield from (a.extent for a in c.buffer.axes)

    def _slots(self, tensors: list[str], numbers: list[str]) -> Iterator[str]:
        yield "char *scratch = slots[2].p;"
        k = 3
        for name in tensors:
            c = pw.MEMORY[self.names.memory[name].name]
            const = "" if name in self.kernel.outputs else "const "
            restrict = "" if name in {*self.updated, *self.updated.values()} else "restrict "
            yield f"{const}{c} *{restrict}p_{name} = slots[{k}].p;"
            k += 1
        for name in self.sizes:
            yield f"const int64_t z_{name} = slots[{k}].q;"
            k += 1
        for name in numbers:
            yield f"const double v_{name} = slots[{k}].d;"
            k += 1

    def _buffer_lines(self) -> Iterator[str]:
        yield f"scratch += t * ({c_index(self.thread_bytes())});"
        yield from self._buffer_pointers

    @cached_property
    def _buffer_pointers(self) -> list[str]:
        offset = as_index(0)
        lines: list[str] = []
        overlay_of = {b.name: shared for shared in self._overlays for b in shared.buffers}
        places: dict[int, str] = {}
        for b in self.kernel.buffers:
            c, shared = pw.SCALAR[b.dtype.name], overlay_of[b.name]
            restrict = "restrict " if len(shared.buffers) == 1 else ""
            if id(shared) not in places:
                places[id(shared)] = f"(scratch + {c_index(offset)})"
                if not restrict:  # pointers made of one restrict pointer may meet in memory
                    whole = f"shared_{b.name}"
                    lines.append(f"char *restrict {whole} = {places[id(shared)]};")
                    places[id(shared)] = whole
                offset = offset + shared.nbytes
            lines.append(f"{c} *{restrict}s_{b.name} = ({c} *){places[id(shared)]};")
            for a in b.axes:
                if a is not b.last:
                    length = c_index(self._length(b, a))
                    lines.append(f"const int64_t e_{b.name}_{self.names.axis(a)} = {length};")
            if b.last is not None:
                lines.append(f"const int64_t e_{b.name}_last = {c_index(self._padded(b))};")
        return lines

    def _start(self, b: Buffer) -> str:
        fn, is_index = b.fn, b.twin is not None
        value = 0 if is_index else identity(ARG.get(fn, fn), b.dtype)
        return self._scalar(value, b)

    def _scalar(self, value: float | int | bool, b: Buffer) -> str:
        t = pw.REGISTER[b.dtype.name]
        return str(-int(value)) if t == "bool" else number(value, t)

    def _thread_fills(self) -> Iterator[str]:
        for b in self.kernel.buffers:
            if b.per_thread:
                yield self._fill(b, self._start(b))

    def _fill(self, b: Buffer, value: str) -> str:
        n = c_index(self._elements(b))
        return f"for (int64_t q = 0; q < {n}; q++) s_{b.name}[q] = {value};"

    def _prologue(self) -> Iterator[str]:
        if self.kernel.prologue:
            yield f"if (!z_{BEGUN}) {{" if self.is_step else "{"
            yield from ("  " + x for x in self._body([*self.kernel.prologue], frozenset()))
            yield "}"

    def _tiles(self) -> Index:
        return product(
            floordiv(t.axis.extent + (t.tile or 1) - 1, t.tile or 1) for t in self.kernel.grid
        )

    def _tile_loop(self, body: list[str]) -> Iterator[str]:
        yield "const int64_t from = tiles * t / threads, to = tiles * (t + 1) / threads;"
        yield "for (int64_t tile = from; tile < to; tile++) {"
        yield "  int64_t rest = tile;"
        for k, t in reversed(list(enumerate(self.kernel.grid))):
            a, n = self.names.axis(t.axis), c_index(t.axis.extent)
            tile = t.tile or 1
            count = c_index(floordiv(t.axis.extent + tile - 1, tile))
            last = "rest" if k == 0 else f"rest % ({count})"
            yield f"  const int64_t b_{a} = {last} * {tile};"
            yield f"  const int64_t n_{a} = lt_min({tile}, {n} - b_{a});"
            if k:
                yield f"  rest /= {count};"
        yield from ("  " + line for line in body)
        yield "}"

    def _in_full(self, nest: Nest, open_sweeps: frozenset[Axis]) -> Iterator[str]:
        """Yield the tiles of axes without grid or sweep: they begin at 0 and have the extent."""
        for a in nest.axes:
            if a not in self.grid_tiles and a not in open_sweeps:
                name = self.names.axis(a)
                yield f"  const int64_t b_{name} = 0, n_{name} = {c_index(a.extent)};"
                yield f"  (void)b_{name}; (void)n_{name};"

    def _body(self, body: list[Stmt], open_sweeps: frozenset[Axis]) -> Iterator[str]:
        for stmt in body:
            if isinstance(stmt, Nest):
                lines = self._nest(stmt, open_sweeps)
                if self.is_long and len(lines) >= OUTLINED_LINES:
                    yield self._outlined_call(lines, open_sweeps)
                else:
                    yield from ("{", *lines, "}")
            elif isinstance(stmt, Fill):
                fill = self._fill(stmt.buffer, self._scalar(stmt.value, stmt.buffer))
                tests = " || ".join(f"{c_index(a.extent)} == 0" for a in stmt.empty or ())
                yield f"if ({tests}) {fill}" if tests else fill
            else:
                a, n = self.names.axis(stmt.axis), c_index(stmt.axis.extent)
                yield f"for (int64_t b_{a} = 0; b_{a} < {n}; b_{a} += {stmt.tile}) {{"
                yield f"  const int64_t n_{a} = lt_min({stmt.tile}, {n} - b_{a});"
                yield from (
                    "  " + line for line in self._body(stmt.body, open_sweeps | {stmt.axis})
                )
                yield "}"

    def _nest(self, nest: Nest, open_sweeps: frozenset[Axis]) -> list[str]:
        """Return the lines of a nest. A long kernel is printed twice, its nests only once."""
        if id(nest) not in self.printed:
            print_nest = transposed_lines if nest.transposed else nest_lines
            inner = ("  " + line for line in print_nest(nest, self.names))
            self.printed[id(nest)] = [*self._in_full(nest, open_sweeps), *inner]
        return self.printed[id(nest)]

    def _outlined_call(self, lines: list[str], open_sweeps: frozenset[Axis]) -> str:
        """Return the call of a function made of a long nest. Compile time grows faster than the
        length of a function; a short kernel, however, runs faster in one piece."""
        around = [t.axis for t in self.kernel.grid]
        around += sorted(open_sweeps, key=lambda a: a.key)
        tiles = [f"{part}_{self.names.axis(a)}" for a in around for part in "bn"]
        name = f"{self.kernel.name}_nest{len(self.outlined)}"
        self.outlined.append((name, tiles, lines))
        return f"{name}({', '.join(['slots', 'scratch', 'exact', 'nan', *tiles])});"

    def _outlined(self, slots: list[str]) -> Iterator[str]:
        base = "const lt_slot *slots, char *scratch, int exact, int *nan"
        for name, tiles, lines in self.outlined:
            parameters = ", ".join([base, *(f"int64_t {x}" for x in tiles)])
            yield f"LT_CALLED void {name}({parameters}) {{"
            yield from ("  " + line for line in slots[1:])  # scratch is a parameter here
            yield from ("  " + line for line in self._buffer_pointers)
            yield from lines
            yield "}"

    # -- entry --

    def _work(self) -> Index:
        """Return the number of points of the nest with most axes, as a polynomial."""
        best = as_index(1)
        most = 0
        grid = tuple(t.axis for t in self.kernel.grid)
        for nest in self.kernel.nests():
            axes = dict.fromkeys((*grid, *nest.axes))
            if len(axes) > most:
                most, best = len(axes), product(a.extent for a in axes)
        return best

    def _entry(self, slots: list[str], combines: list[str], tiles: str, work: str) -> Iterator[str]:
        name = self.kernel.name
        fields = "const lt_slot *slots; int64_t threads, tiles; int nan, exact;"
        yield f"typedef struct {{ {fields} }} {name}_context;"
        yield f"static void {name}_tasks(int64_t begin, int64_t end, void *context) {{"
        yield f"  {name}_context *c = context;"
        yield "  int nan = 0;"
        yield "  for (int64_t t = begin; t < end; t++)"
        yield f"    {name}_task(c->slots, t, c->threads, c->tiles, c->exact, &nan);"
        yield "  if (nan) c->nan = 1;"
        yield "}"
        yield f"LT_EXPORT int64_t {name}(const void *args) {{"
        yield "  const lt_slot *slots = args;"
        yield from ("  " + line for line in slots)
        yield f"  const int64_t tiles = {tiles};"
        yield f"  const int64_t few = {work} < {SERIAL_POINTS};"
        yield "  const int64_t threads = few ? 1 : lt_max(1, lt_min(slots[1].q, tiles));"
        once = bool(self.updated)  # a second run would read what the first one has overwritten
        yield f"  {name}_context context = {{slots, threads, tiles, 0, {int(once)}}};"
        yield f"  int64_t fault = lt_run(slots, 0, threads, 1, {name}_tasks, &context);"
        if self.kernel.checks_nan and not once:
            yield "  if (context.nan) {"
            yield "    context.exact = 1;"
            yield f"    fault |= lt_run(slots, 0, threads, 1, {name}_tasks, &context);"
            yield "  }"
        if combines:
            yield "  {"
            yield from ("    " + line for line in self._buffer_pointers)
            yield f"    const int64_t stride = {c_index(self.thread_bytes())};"
            yield from ("    " + line for line in combines)
            yield "  }"
        yield "  (void)scratch;"
        yield "  return fault;"
        yield "}"

    def _last(self, nest: Nest) -> Iterator[str]:
        """Yield a nest that runs once, after all tiles; it reads values from memory only."""
        held, self.names.values = self.names.values, {}
        yield from nest_lines(nest, self.names)
        self.names.values = held

    def _combine(self, c: Combine) -> Iterator[str]:
        b = c.buffer
        loops = {a: f"c_{self.names.axis(a)}" for a in b.axes}
        for a in b.axes:
            var = loops[a]
            yield f"for (int64_t {var} = 0; {var} < {c_index(a.extent)}; {var}++)"
        yield "{"
        place = buffer_place(b, self.names, lambda a: loops[a])
        ctype = pw.SCALAR[b.dtype.name]
        yield f"  {ctype} *first = &{place}, x = *first;"
        if b.twin is not None:
            yield from self._combine_arg(b, b.twin, loops)
        else:
            yield "  for (int64_t t = 1; t < threads; t++) {"
            yield f"    const {ctype} h = *({ctype} *)((char *)first + t * stride);"
            yield f"    {_scalar_step(b.fn, b.dtype.name)}"
            yield "  }"
        steps = zip(c.axes, self.names.strides[c.target], strict=True)
        text = [f"{loops[a]} * ({c_index(s)})" for a, s in steps if a in loops]
        yield f"  {self._store_scalar(c.target, ' + '.join(text) or '0')}"
        yield "}"

    def _combine_arg(self, b: Buffer, twin: Buffer, loops: dict[Axis, str]) -> Iterator[str]:
        best = buffer_place(twin, self.names, lambda a: loops[a])
        c = pw.SCALAR[twin.dtype.name]
        sign = "<" if b.fn == "argmin" else ">"
        yield f"  {c} *bests = &{best}, y = *bests;"
        yield "  for (int64_t t = 1; t < threads; t++) {"
        yield f"    const {c} h = *({c} *)((char *)bests + t * stride);"
        yield f"    if (h {sign} y || (h != h && y == y)) {{"
        yield "      y = h; x = *(int64_t *)((char *)first + t * stride);"
        yield "    }"
        yield "  }"

    def _store_scalar(self, target: str, offset: str) -> str:
        dtype = self.names.memory[target]
        where = f"p_{target}[{offset}]"
        if dtype.name == "bool":
            return f"{where} = x != 0;"
        if dtype.name in ("bf16", "f16"):
            self.names.use(f"store_part_{dtype.name}", "splat_f32")
            return f"store_part_{dtype.name}(&{where}, splat_f32(x), 1);"
        return f"{where} = x;"


def _scalar_step(fn: str, t: str) -> str:
    if t == "bool":
        return "x |= h;" if fn in ("any", "max", "sum") else "x &= h;"
    if fn in ("sum", "prod"):
        return f"x {'+' if fn == 'sum' else '*'}= h;"
    sign = "<" if fn == "min" else ">"
    return f"if (h {sign} x || h != h) x = h;"
