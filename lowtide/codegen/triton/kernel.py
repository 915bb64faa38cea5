"""Prints a `Kernel` as a Triton function: one program for each tile of the grid.

In:  a planned kernel; dtypes and strides of tensors. Out: a `BlockText`: the function, and its
     parameters.

    @jit
    def k0(p_x, p_out, z_N, INDEX: tl.constexpr, PRECISION: tl.constexpr):
        rest = lt_wide(tl.program_id(0), INDEX)
        b_i = rest * 64
        x_i = b_i + tl.arange(0, 64)
        m_i = x_i < z_N
        ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lowtide.codegen.index_text import index_text, size_names
from lowtide.codegen.reads import indices_of, nodes_of, numbers_of, tensors_of
from lowtide.codegen.triton.block_axes import Blocks
from lowtide.codegen.triton.body import Body, Wide, fold_lines, product_of
from lowtide.codegen.triton.pointwise import literal, type_of
from lowtide.ir.dtypes import DType
from lowtide.texpr.expr import Load
from lowtide.texpr.index import (
    Atom,
    Axis,
    Clamp,
    FloorDiv,
    Gather,
    Index,
    Mod,
    as_index,
    deep_atoms,
    product,
)
from lowtide.texpr.index_ranges import floordiv
from lowtide.tile.ir import Accumulate, Buffer, Fill, Kernel, Nest, Stage, Stmt, Store, Sweep, Tiled

INDEX, PRECISION = "INDEX", "PRECISION"  # constants of a launch: index type, precision of products


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockText:
    """A function and its parameters, in order: `tensors` (`outputs` last), `sizes`, `numbers`, then
    `widths` by name.

    widths      extents of the axes that a program holds in full
    dividing    sizes that occur in strides
    programs    the number of programs
    reach       the maximum of these bounds all indices and the terms that they are computed from
    own         pairs (read, written) of tensors: if both are the same memory, a program reads only
                elements that it writes itself
    body        lines of the text
    """

    name: str
    text: str
    tensors: list[str]
    outputs: list[str]
    sizes: list[str]
    numbers: list[str]
    dividing: frozenset[str]
    widths: dict[str, Index]
    programs: Index
    reach: tuple[Index, ...]
    warps: int
    stages: int
    own: frozenset[tuple[str, str]]
    body: tuple[str, ...]

    @property
    def thread_bytes(self) -> Index:
        """Return 0: the kernel needs no work memory."""
        return as_index(0)


def number_parameter(name: str) -> str:
    """Return the declaration of a number's parameter."""
    return f'v_{name}: "fp64"'


def constant_parameters(widths: Iterable[str]) -> list[str]:
    """Return the last parameters: compile-time constants."""
    return [f"{w}: tl.constexpr" for w in (*widths, INDEX, PRECISION)]


def launch_line(warps: int, stages: int) -> str:
    """Return a comment with the options of a launch, so that equal texts have equal options."""
    return f"# {warps} warps, {stages} stages"


def size_line(name: str) -> str:
    """Return the line that converts a size to the index type."""
    return f"z_{name} = lt_wide(z_{name}, {INDEX})"


def block_text(
    kernel: Kernel,
    memory: Mapping[str, DType],
    strides: Mapping[str, tuple[Index, ...]],
) -> BlockText:
    """Return the text of a kernel. `memory`, `strides`: of the tensors that it reads and writes."""
    return _Printer(kernel, memory, strides).text()


class _Printer:
    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[str, DType],
        strides: Mapping[str, tuple[Index, ...]],
    ) -> None:
        self.kernel = kernel
        self.tiles = dict(kernel.tiles())
        self.widths: dict[str, Index] = {}
        self.blocks = Blocks(
            points={}, exact=frozenset(), strides=strides, memory=memory, values=kernel.values
        )
        self.blocks.points = self._points()
        self.blocks.exact = frozenset(a for a in self.blocks.points if self._is_exact(a))
        self.wide = {w.buffer.name: w for w in self._accumulators()}
        self.serial = [0]
        self.open: list[Axis] = []
        self.waiting: dict[str, frozenset[Axis]] = {}  # accumulators, and their open sweeps

    def _axes(self) -> list[Axis]:
        """Return all axes: those of the grid, those that buffers hold in full, then the others."""
        nests = list(self.kernel.nests())
        whole = [a for b in self.kernel.buffers for a in b.axes if a in b.whole]
        other = [a for n in nests for a in n.axes]
        return list(dict.fromkeys([*(t.axis for t in self.kernel.grid), *whole, *other]))

    def _points(self) -> dict[Axis, str]:
        found: dict[Axis, str] = {}
        for a in self._axes():
            tile = self.tiles.get(a)
            if tile is None and a.extent.const is not None:
                tile = 1 << max(a.extent.const - 1, 0).bit_length()
                found[a] = str(tile)
            elif tile is None:
                width = f"W_{self.blocks.axis(a)}"
                self.widths[width] = a.extent
                found[a] = width
            elif tile > 1:
                found[a] = str(tile)
        return found

    def _is_exact(self, a: Axis) -> bool:
        points, extent = self.blocks.points[a], a.extent.const
        return bool(extent) and points.isdigit() and extent % int(points) == 0

    def _accumulators(self) -> Iterator[Wide]:
        """Yield the block of each accumulator. It has the reduced dims during the sweep, unless
        the accumulator is read or rescaled in the sweep, or is a product of blocks."""
        nests = list(self.kernel.nests())
        changed = {w.buffer.name for n in nests for w in n.writes if isinstance(w, Stage)}
        for w in (w for n in nests for w in n.writes if isinstance(w, Accumulate)):
            b = w.buffer
            final = self.blocks.dims(b.axes)
            running = b.name in changed or f"{b.name}_old" in self.kernel.values
            at_once = running or product_of(w, self.blocks) is not None
            reduced = () if at_once else self.blocks.dims(w.reduced)
            yield Wide(buffer=b, dims=self.blocks.dims((*b.axes, *reduced)), final=final)

    # -- text --

    def text(self) -> BlockText:
        body = [*self._grid(), *self._whole_coordinates(), *self._body(self.kernel.body)]
        for nest in self.kernel.epilogue:
            body += self._nest(nest)
        self._check_reads()
        tensors, numbers = tensors_of(self.kernel), numbers_of(self.kernel)
        programs = self._programs()
        sizes = sorted({n for i in (programs, *self._indices()) for n in size_names(i)})
        parameters = [
            *(f"p_{n}" for n in tensors),
            *(f"z_{n}" for n in sizes),
            *map(number_parameter, numbers),
            *constant_parameters(self.widths),
        ]
        lines = [
            launch_line(self.kernel.warps, self.kernel.stages),
            "@jit",
            f"def {self.kernel.name}({', '.join(parameters)}):",
            *(f"    {size_line(n)}" for n in sizes),
            *("    " + line for line in body),
        ]
        return BlockText(
            name=self.kernel.name,
            text="\n".join(lines) + "\n",
            tensors=tensors,
            outputs=self.kernel.outputs,
            sizes=sizes,
            numbers=numbers,
            dividing=frozenset(
                name
                for tensor in tensors
                for stride in self.blocks.strides[tensor]
                for name in size_names(stride)
            ),
            widths=self.widths,
            programs=programs,
            reach=tuple(_greatest(bound for i in self._indices() for bound in reach(i))),
            warps=self.kernel.warps,
            stages=self.kernel.stages,
            own=frozenset(self._own()),
            body=tuple(body),
        )

    def _check_reads(self) -> None:
        """Assert that no load reads what another thread of the launch may have stored."""
        held = {*self.kernel.values, *self.blocks.written}
        for read in nodes_of(self.kernel):
            if isinstance(read, Load) and read.source in self.kernel.outputs:
                assert read.source in held, f"{self.kernel.name} reads its own {read.source}"

    def _is_whole(self, t: Tiled) -> bool:
        """Return whether each program has all points of an axis."""
        return t.axis.extent.const is not None and t.axis.extent.const <= (t.tile or 1)

    def _own(self) -> Iterator[tuple[str, str]]:
        """Yield the pairs of `BlockText.own`. Their indices are equal along each axis of the grid
        that is divided among programs."""
        grid = [as_index(t.axis) for t in self.kernel.grid if not self._is_whole(t)]
        stores = [w for n in self.kernel.nests() for w in n.writes if isinstance(w, Store)]
        loads = [x for x in nodes_of(self.kernel) if isinstance(x, Load)]
        for written in self.kernel.outputs:
            own = [w.index for w in stores if w.target == written]
            for read in tensors_of(self.kernel):
                if self.blocks.strides[read] != self.blocks.strides[written] or read == written:
                    continue
                places = [x.index for x in loads if x.source == read]
                if all(_meet(x, y, grid) for x in own for y in places):
                    yield read, written

    def _programs(self) -> Index:
        return product(
            floordiv(t.axis.extent + (t.tile or 1) - 1, t.tile or 1) for t in self.kernel.grid
        )

    def _grid(self) -> Iterator[str]:
        yield f"rest = lt_wide(tl.program_id(0), {INDEX})"
        for k, t in reversed(list(enumerate(self.kernel.grid))):
            tile = t.tile or 1
            count = index_text(floordiv(t.axis.extent + tile - 1, tile), "//")
            last = "rest" if k == 0 else f"(rest % ({count}))"
            yield from self._along(t.axis, f"{last} * {tile}" if tile > 1 else last)
            if k:
                yield f"rest = rest // ({count})"

    def _whole_coordinates(self) -> Iterator[str]:
        """Yield the coordinates of the axes that a program holds in full."""
        for a in self.blocks.points:
            if self.tiles.get(a) is None:
                yield from self._along(a, "0")

    def _along(self, a: Axis, begin: str) -> Iterator[str]:
        """Yield the coordinates of a tile from its `begin`, and the mask of those in the axis."""
        name = self.blocks.axis(a)
        if a not in self.blocks.points:
            yield f"x_{name} = lt_wide({begin}, {INDEX})"
            return
        yield f"x_{name} = lt_wide({begin} + tl.arange(0, {self.blocks.points[a]}), {INDEX})"
        if a not in self.blocks.exact:
            yield f"m_{name} = x_{name} < {index_text(a.extent, '//')}"

    def _body(self, body: list[Stmt]) -> Iterator[str]:
        for stmt in body:
            if isinstance(stmt, Nest):
                yield from self._nest(stmt)
            elif isinstance(stmt, Fill):
                yield self._fill(stmt)
            else:
                yield from self._sweep(stmt)
            yield from self._folds()

    def _sweep(self, stmt: Sweep) -> Iterator[str]:
        a, name = stmt.axis, self.blocks.axis(stmt.axis)
        step = f", {stmt.tile}" if stmt.tile > 1 else ""
        yield f"for b_{name} in range(0, {index_text(a.extent, '//')}{step}):"
        self.open.append(a)
        inner = [*self._along(a, f"b_{name}"), *self._body(stmt.body)]
        self.open.pop()
        yield from ("    " + line for line in inner)

    def _nest(self, nest: Nest) -> list[str]:
        for w in nest.writes:
            if isinstance(w, Accumulate) and w.buffer.name in self.wide:
                wide = self.wide[w.buffer.name]
                if wide.dims != wide.final:
                    self.waiting[wide.buffer.name] = frozenset(w.reduced).intersection(self.open)
        return Body(nest, self.blocks, self.wide, self.serial).text()

    def _folds(self) -> Iterator[str]:
        """Yield the folds of accumulators whose sweeps are closed."""
        for name, reduced in list(self.waiting.items()):
            if reduced.isdisjoint(self.open):
                del self.waiting[name]
                yield from fold_lines(self.wide[name], self.blocks)

    def _fill(self, stmt: Fill) -> str:
        b = stmt.buffer
        wide = self._wide_of(b)
        head = "w" if wide.dims != wide.final else "s"
        shape, value = self.blocks.shape(wide.dims), literal(stmt.value, b.dtype)
        return f"{head}_{b.name} = tl.full({shape}, {value}, {type_of(b.dtype)})"

    def _wide_of(self, b: Buffer) -> Wide:
        if b.name in self.wide:
            return self.wide[b.name]
        return next(w for w in self.wide.values() if w.buffer.twin is b)

    def _indices(self) -> Iterator[Index]:
        """Yield every index and extent that the text prints."""
        yield from (a.extent for a in self._axes())
        yield from indices_of(self.kernel, self.blocks.strides)


def _meet(a: tuple[Index, ...], b: tuple[Index, ...], axes: Iterable[Index]) -> bool:
    """Return whether two indices are equal along each of these axes."""
    same = [x for x, y in zip(a, b, strict=True) if x == y]
    return all(axis in same for axis in axes)


def reach(index: Index) -> Iterator[Index]:
    """Yield polynomials in sizes that bound the absolute values of an index and its subterms. In
    x[k // N], the index lies in x, but k may be larger than any tensor."""
    yield _largest(index)
    for atom in deep_atoms(index):
        if isinstance(atom, FloorDiv | Mod | Clamp):
            yield _largest(atom.num)


def _greatest(found: Iterable[Index]) -> list[Index]:
    """Return the polynomials without those that another one bounds in each term."""
    largest: list[Index] = []
    for bound in found:
        if not any(_is_within(bound, other) for other in largest):
            largest = [other for other in largest if not _is_within(other, bound)] + [bound]
    return largest


def _is_within(a: Index, b: Index) -> bool:
    factors = dict(b.terms)
    return all(n <= factors.get(atoms, 0) for atoms, n in a.terms)


def _largest(index: Index) -> Index:
    terms = (product([abs(n), *map(_largest_atom, atoms)]) for atoms, n in index.terms)
    return sum(terms, as_index(0))


def _largest_atom(atom: Atom) -> Index:
    if isinstance(atom, Axis):
        return _largest(atom.extent)
    if isinstance(atom, FloorDiv):
        num = _largest(atom.num)
        quotient = floordiv(num, atom.den)
        is_safe = all(a.den.const for a in quotient.atoms() if isinstance(a, FloorDiv))
        return quotient if is_safe else num  # a size in a denominator may be 0
    if isinstance(atom, Mod):
        return _largest(atom.den)
    if isinstance(atom, Clamp):
        return _largest(atom.extent)
    return as_index(1) if isinstance(atom, Gather) else as_index(atom)  # a gathered index is i64
