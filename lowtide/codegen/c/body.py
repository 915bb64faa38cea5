"""Prints the inside of a nest as C: each value in the outermost loop that has all its axes.

In:  a nest, the names of its kernel, and the `Variant` of the loops to print.
Out: C lines. The loop body is unrolled over rows and vectors. A `Point` says which row and which
     vector a text is for. A value is computed once for each point of the axes it depends on.

    acc[i, j] += a[i, k] * b[k, j], 2 rows by 2 vectors: 2 values of a, 2 of b, 4 products
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

from lowtide.codegen.c import pointwise as pw
from lowtide.codegen.c.c_names import Names, buffer_place, c_index, number
from lowtide.ir.dtypes import HALVES, DType, boolean, f32, i32, i64
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import AddAt, Apply, At, Cast, Const, Expr, Load, Scalar, Select
from lowtide.texpr.index import Axis, Clamp, Gather, Index, Mod, as_index, deep_atoms
from lowtide.texpr.index_ranges import substitute
from lowtide.texpr.places import address, place_in, stride_along
from lowtide.tile.ir import Accumulate, Buffer, Nest, Stage, Store
from lowtide.tile.items import along_lanes, breaks_along


@dataclass(slots=True)
class Variant:
    """One version of the loops. `vectors`, `rows`: per block. `partial`: lanes are counted.

    A partial version or one row at a time covers the rest that whole blocks leave. `everything`:
    it covers the whole vector axis instead; `alone`: the whole row axes, too."""

    vectors: int
    rows: int
    partial: bool
    everything: bool = False
    alone: bool = False


FAR_BYTES = 1024  # between two steps of a loop: the processor guesses no further
AHEAD = 8  # steps: some 100 ns
_INTS = {**pw.COMPARE, "add": "+", "sub": "-", "mul": "*"}


@dataclass(slots=True)
class Scope:
    """Statements at one loop depth, or in a block of a loop: before and after the inner loop."""

    before: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])


Point = tuple[tuple[Axis, int], ...]


class Body:
    """Prints one variant of a nest."""

    def __init__(
        self,
        nest: Nest,
        names: Names,
        variant: Variant,
        accumulate: Callable[[Body, Accumulate], None],
    ) -> None:
        """`accumulate`: prints an `Accumulate` into the body, see `reduce`."""
        self.nest = nest
        self.accumulate = accumulate
        self.names = names
        self.variant = variant
        self.order = [a for a in nest.order if a not in nest.full]
        self.scopes = [Scope() for _ in range(len(self.order) + 1)]
        is_rest = variant.partial and not variant.everything  # of less than a block
        blocked = [a for a in nest.blocks if not (is_rest and a is nest.vector)]
        self.blocks = {k: Scope() for k, a in enumerate(self.order) if a in blocked}
        self.known: dict[tuple[Expr, Point], str] = {}
        self.scalars: dict[tuple[Expr, Point], str] = {}  # ints that all lanes share
        self.serial = 0
        self.counts = dict.fromkeys(nest.unroll, variant.rows)
        self.counts.update({a: a.extent.const or 1 for a in nest.full})
        if nest.vector is not None:
            self.counts[nest.vector] = variant.vectors
        self.depths: dict[Axis, int] = {a: k + 1 for k, a in enumerate(self.order)}
        self.watched: dict[str, dict[str, None]] = {}
        self.written = {id(w.buffer) for w in nest.writes if isinstance(w, Stage)}

    # -- the loops --

    def lines(self) -> Iterator[str]:
        for w in self.nest.writes:
            if isinstance(w, Accumulate):
                self.accumulate(self, w)
            else:
                for point in self.points(frozenset(self.nest.axes)):
                    self._write(w, point)
        self._watch()
        yield from self._nested(0)

    def _watch(self) -> None:
        """Sum up the operands of fast minima, which lose NaN; a sum does not."""
        if self.variant.alone:
            return
        inner = self.scopes[len(self.order)].before
        for t, names in self.watched.items():
            values = list(names)
            while len(values) > 1:
                values = [f"({' + '.join(values[k : k + 2])})" for k in range(0, len(values), 2)]
            inner.append(f"seen_{t} += {values[0]};")

    def _nested(self, depth: int) -> Iterator[str]:
        scope = self.scopes[depth]
        yield from scope.before
        if depth < len(self.order):
            yield from self._loop(depth)
        yield from scope.after

    def _loop(self, depth: int) -> Iterator[str]:
        a = self.order[depth]
        low, high, step = self._bounds(a)
        local, block = self._local(a), self.blocks.get(depth)
        inner = ["  " + line for line in self._nested(depth + 1)]
        if block is None or not block.before:  # no sum in registers
            yield f"for (int64_t {local} = {low}; {local} < {high}; {local} += {step}) {{"
            yield from (*inner, "}")
            return
        p, steps = f"p_{local}", step * self.nest.blocks[a]
        yield f"for (int64_t {p} = {low}; {p} < {high}; {p} += {steps}) {{"
        yield f"  const int64_t e_{local} = lt_min({p} + {steps}, {high});"
        yield from ("  " + line for line in block.before)
        yield f"  for (int64_t {local} = {p}; {local} < e_{local}; {local} += {step}) {{"
        yield from (*("  " + line for line in inner), "  }")
        yield from (*("  " + line for line in block.after), "}")

    def _bounds(self, a: Axis) -> tuple[str, str, int]:
        n, low, high = f"n_{self.names.axis(a)}", "0", f"n_{self.names.axis(a)}"
        step = 1
        if a is self.nest.vector:
            step = self.names.lanes * self.variant.vectors
            width = self.names.lanes * self.nest.vectors
            if self.variant.partial:
                low = "0" if self.variant.everything else f"{n} - {n} % {width}"
            else:
                high = f"{n} - {width - 1}"
        elif a in self.nest.unroll:
            step = self.variant.rows
            rows = self.nest.unroll[a]
            if rows == step:
                high = f"{n} - {rows - 1}"
            elif not self.variant.alone:
                low = f"{n} - {n} % {rows}"
        if a is self.nest.vector and self.variant.partial:
            self.scopes[self.depths[a]].before.insert(
                0, f"const int lanes = (int)lt_min({self.names.lanes}, {n} - {self._local(a)});"
            )
        return low, high, step

    def _local(self, a: Axis) -> str:
        return f"l_{self.names.axis(a)}"

    def points(self, axes: frozenset[Axis]) -> Iterator[Point]:
        blocked = [a for a in (*self.nest.axes,) if a in axes and self.counts.get(a, 1) > 1]
        ranges = [range(self.counts[a]) for a in blocked]
        for choice in product(*ranges):
            yield tuple(zip(blocked, choice, strict=True))

    def restrict(self, point: Point, axes: frozenset[Axis]) -> Point:
        return tuple((a, k) for a, k in point if a in axes)

    # -- coordinates --

    def offset(self, a: Axis, point: Point) -> str:
        """Return the coordinate within the tile; along the vector axis, of the first lane."""
        k = dict(point).get(a, 0)
        if a in self.nest.full:
            return str(k)
        if a is self.nest.vector:
            k *= self.names.lanes
        local = self._local(a)
        return f"{local} + {k}" if k else local

    def coordinate(self, a: Axis, point: Point) -> str:
        """Return the coordinate within the tensor."""
        if a in self.names.fixed:
            return f"b_{self.names.axis(a)}"
        return f"(b_{self.names.axis(a)} + {self.offset(a, point)})"

    def depth(self, axes: frozenset[Axis]) -> int:
        return max((self.depths.get(a, 0) for a in axes), default=0)

    def _declare(self, vector: str, text: str, axes: frozenset[Axis]) -> str:
        self.serial += 1
        name = f"r{self.serial}"
        self.scopes[self.depth(axes)].before.append(f"{vector} {name} = {text};")
        return name

    # -- expressions --

    def value(self, e: Expr, point: Point) -> str:
        """Return the C name or text of a value at a point."""
        axes = e.free
        key = (e, self.restrict(point, axes))
        if key not in self.known:
            buffer = self.nest.reads.get(e)
            if buffer is not None and id(buffer) not in self.written:
                self.known[key] = self._from_buffer(buffer, key[1])
            else:
                text = self._text(e, key[1])
                self.known[key] = self._declare(pw.VECTOR[e.dtype.name], text, axes)
        return self.known[key]

    def _text(self, e: Expr, point: Point) -> str:
        use = self.names.use
        if isinstance(e, Const):
            return self.constant(e.value, e.dtype)
        if isinstance(e, Load):
            return self._load(e, point)
        if isinstance(e, At):
            return self._at(e.index, point)
        if isinstance(e, Scalar):
            t = pw.REGISTER[e.dtype.name]
            return f"{use(f'splat_{t}')}(v_{e.name})"
        if isinstance(e, Cast):
            text, used = pw.cast(e.arg.dtype, e.dtype, self.value(e.arg, point))
            self.names.library.update(dict.fromkeys(used))
            return text
        if isinstance(e, Select):
            parts = [self.value(c, point) for c in e.children]
            return f"{use(f'select_{pw.REGISTER[e.dtype.name]}')}({', '.join(parts)})"
        assert isinstance(e, Apply)
        dtype = e.args[0].dtype
        self.names.library.update(dict.fromkeys(pw.uses(e.fn, dtype)))
        if e.fn == "floordiv" and dtype.is_float:
            self.names.floordivs.add(pw.REGISTER[dtype.name])
        if e.fn == "div" and self.nest.vector in e.free and self._is_unknown_number(e.args[1]):
            return self._quotient(e, point)
        return self._lanes_compared(e, point) or pw.call(
            e.fn, dtype, [self.value(a, point) for a in e.args]
        )

    def _is_unknown_number(self, e: Expr) -> bool:
        """Return whether a value is equal for all points, and known only at run time."""
        return not e.free and not isinstance(e, Const)

    def _quotient(self, e: Apply, point: Point) -> str:
        """Return a quotient by a divisor that all points share. If the divisor is a power of two,
        such as the square root of 64 channels, a product with its inverse has the same bits. The
        product takes a fifth of the time. (For a constant divisor the C compiler does the same.)"""
        t = pw.REGISTER[e.dtype.name]
        divisor, use = self.value(e.args[1], point), self.names.use
        one_over, is_power = f"{divisor}_under", f"{divisor}_ispower"
        before, first = self.scopes[0].before, f"int {is_power} ="
        if not any(line.startswith(first) for line in before):
            before.append(f"{pw.VECTOR[e.dtype.name]} {one_over} = 1 / {divisor};")
            before.append(f"{first} {use(f'ispower_{t}')}({divisor}[0]);")
        number = self.value(e.args[0], point)
        return f"{use(f'quotient_{t}')}({number}, {divisor}, {one_over}, {is_power})"

    def _lanes_compared(self, e: Apply, point: Point) -> str | None:
        """Return `start + lane < a`, if all lanes share `a`, without vectors of 64-bit integers;
        None for any other comparison."""
        v = self.nest.vector
        if v is None or e.fn not in pw.COMPARE:
            return None
        for k, at in enumerate(e.args):
            other = e.args[1 - k]
            if not isinstance(at, At) or other.dtype is not at.dtype or v in other.free:
                continue
            if self._gathers_along(at.index) or stride_along(at.index, v) is not as_index(1):
                continue
            place = f"lt_lane({self.value(other, point)}[0], {self._index(at.index, point)})"
            lanes, there = self.iota("i32"), f"{self.names.use('splat_i32')}({place})"
            left, right = (there, lanes) if k else (lanes, there)
            return f"{left} {pw.COMPARE[e.fn]} {right}"
        return None

    def constant(self, value: float | int | bool, dtype: DType) -> str:
        t = pw.REGISTER[dtype.name]
        if t == "bool":
            return f"(i32v){{0}} - {int(value)}"
        return f"{self.names.use(f'splat_{t}')}({number(value, t)})"

    def _index(self, index: Index, point: Point, lane: str = "") -> str:
        """Return a scalar index; with `lane`, its value at that lane of the vector axis."""
        v = self.nest.vector

        def coordinate(a: Axis) -> str:
            text = self.coordinate(a, point)
            return f"({text} + {lane})" if lane and a is v else text

        def gathered(g: Gather) -> str:
            along = v is not None and v in g.expr.free
            if not along and self._is_plain_int(g.expr):
                return self._shared_int(g.expr, point)
            return f"{self.value(g.expr, point)}[{lane if lane and along else 0}]"

        return c_index(index, coordinate, gathered)

    def _shared_int(self, e: Expr, point: Point) -> str:
        """Return the C name of an index that all lanes share, as a plain int."""
        key = (e, self.restrict(point, e.free))
        if key not in self.scalars:
            text = self._shared_text(e, key[1])
            self.scalars[key] = self._declare("int64_t", text, e.free)
        return self.scalars[key]

    def _shared_text(self, e: Expr, point: Point) -> str:
        if isinstance(e, Const):
            return number(int(e.value), "i64")
        if isinstance(e, At):
            return f"(int64_t)({self._index(e.index, point)})"
        if isinstance(e, Load):
            place = self._index(address(e, self.names.strides), point)
            return f"(int64_t)p_{e.source}[{place}]"
        parts = [self._shared_int(a, point) for a in e.children]
        if isinstance(e, Select):
            return "{} ? {} : {}".format(*parts)
        text = f"{parts[0]} {_INTS[e.fn]} {parts[1]}" if isinstance(e, Apply) else parts[0]
        return f"({pw.SCALAR[e.dtype.name]})({text})"

    def _is_plain_int(self, e: Expr) -> bool:
        """Return whether an index can be computed without vectors, in a tenth of the time."""
        if self.nest.reads.get(e) is not None or e.dtype not in (i64, i32, boolean):
            return False
        if isinstance(e, Load):
            is_read = e.source not in self.names.values
            return is_read and self.names.memory.get(e.source) in (i64, i32)
        if isinstance(e, Apply) and e.fn not in (pw.COMPARE if e.dtype is boolean else _INTS):
            return False
        if isinstance(e, Cast) and e.dtype is boolean:
            return False
        return isinstance(e, Const | At | Apply | Select | Cast) and all(
            map(self._is_plain_int, () if isinstance(e, At) else e.children)
        )

    def _gather_axes(self, index: Index) -> frozenset[Axis]:
        axes: set[Axis] = set()
        for atom in deep_atoms(index):
            if isinstance(atom, Axis):
                axes.add(atom)
            elif isinstance(atom, Gather):
                axes |= atom.expr.free
        return frozenset(axes)

    def _at(self, index: Index, point: Point) -> str:
        v = self.nest.vector
        if v is None or v not in self._gather_axes(index):
            return f"{self.names.use('splat_i64')}({self._index(index, point)})"
        step = self._step(index, v) if v in deep_atoms(index) else None
        if step is not None and not self._gathers_along(index):
            if step.const == 0:
                return f"{self.names.use('splat_i64')}({self._index(index, point)})"
            base = self._index(index, point)
            lanes = self.iota("i64")
            return f"{self.names.use('splat_i64')}({base}) + {lanes} * ({c_index(step)})"
        items = [self._index(index, point, str(k)) for k in range(self.names.lanes)]
        return f"(i64v){{{', '.join(items)}}}"

    def _gathers_along(self, index: Index) -> bool:
        v = self.nest.vector
        return any(isinstance(g, Gather) and v in g.expr.free for g in deep_atoms(index))

    def iota(self, t: str) -> str:
        return f"(({t}v){{{', '.join(map(str, range(self.names.lanes)))}}})"

    # -- reading memory and buffers --

    def _load(self, load: Load, point: Point) -> str:
        buffer = self.names.values.get(load.source)
        if buffer is not None:
            return self._read(buffer, point, load.dtype)
        dtype = self.names.memory[load.source]
        offset = address(load, self.names.strides)
        v, use = self.nest.vector, self.names.use
        pointer = f"p_{load.source}"
        if v is None or v not in self._gather_axes(offset):
            return self._splat(f"{pointer}[{self._index(offset, point)}]", dtype)
        step = None if self._gathers_along(offset) else self._step(offset, v)
        n = "lanes" if self.variant.partial else str(self.names.lanes)
        if step is None:
            return self._load_clamped(pointer, offset, point, dtype, n)
        if step.const == 0:
            return self._splat(f"{pointer}[{self._index(offset, point)}]", dtype)
        base = f"{pointer} + {self._index(offset, point)}"
        if step.const == 1:
            self._prefetch(base, offset, dtype)
            if self.variant.partial:
                return f"{use(f'load_part_{dtype.name}')}({base}, lanes)"
            return f"{use(f'load_{dtype.name}')}({base})"
        return f"{use(f'load_strided_{dtype.name}')}({base}, {c_index(step)}, {n})"

    def _prefetch(self, base: str, offset: Index, dtype: DType) -> None:
        """Ask for the line of memory of a later step, where the processor does not by itself: if a
        step of the innermost loop goes far, as down columns."""
        a = self.order[-1] if self.order else None
        if a is None or a is self.nest.vector:
            return
        step = stride_along(offset, a)
        if step is None or (step.const is not None and step.const * dtype.itemsize < FAR_BYTES):
            return
        line = f"__builtin_prefetch({base} + {AHEAD} * ({c_index(step)}));"
        before = self.scopes[len(self.order)].before
        if line not in before:
            before.append(line)

    def _step(self, offset: Index, v: Axis) -> Index | None:
        """By how much an offset grows from lane to lane, if that is fixed."""
        if v in self.names.aligned:
            return along_lanes(offset, v, self.names.lanes)
        return stride_along(offset, v)

    def _splat(self, element: str, dtype: DType) -> str:
        if dtype.name == "bool":
            return f"(i32v){{0}} - (int32_t)({element} != 0)"
        if dtype.name in ("bf16", "f16"):
            return f"{self.names.use(f'cast_{dtype.name}_f32')}((u16v){{0}} + {element})"
        return f"{self.names.use(f'splat_{dtype.name}')}({element})"

    def _load_clamped(self, pointer: str, offset: Index, point: Point, dtype: DType, n: str) -> str:
        """Load lanes that are contiguous except for clamps and remainders: one vector load if no
        lane is clamped or wraps around, one element if a clamp makes all lanes equal."""
        v = self.nest.vector
        assert v is not None
        held = breaks_along(offset, v)
        if not held:
            return self._lane_by_lane(pointer, offset, point, dtype, n)
        tests = [self._is_run(a, point, n) for a in held]
        scope = self.scopes[self.depth(self._gather_axes(offset))]
        self.serial += 1
        name = f"h{self.serial}"
        part = self.variant.partial
        load = self.names.use(f"load_{'part_' if part else ''}{dtype.name}")
        first = substitute(offset, {a: a.num for a in held if isinstance(a, Clamp)})
        fast = f"{load}({pointer} + {self._index(first, point)}{', lanes' if part else ''})"
        scope.before.append(f"{pw.VECTOR[dtype.name]} {name};")
        scope.before.append(f"if ({' && '.join(tests)}) {name} = {fast};")
        if len(held) == 1 and isinstance(held[0], Clamp):
            beyond = self._is_beyond(held[0], point, n)
            same = self._splat(f"{pointer}[{self._index(offset, point)}]", dtype)
            scope.before.append(f"else if ({beyond}) {name} = {same};")
        scope.before.append("else {")
        text = self._lane_by_lane(pointer, offset, point, dtype, n)
        scope.before.append(f"{name} = {text}; }}")
        return name

    def _is_run(self, a: Clamp | Mod, point: Point, n: str) -> str:
        """Return the test that each lane's index is one more than that of the lane before."""
        if isinstance(a, Mod):
            return f"{self._index(as_index(a), point)} + {n} <= {self._index(a.den, point)}"
        ends = (self._index(a.num, point, lane) for lane in ("0", f"{n} - 1"))
        extent = self._index(a.extent, point)
        return " && ".join(f"{i} >= 0 && {i} < {extent}" for i in ends)

    def _is_beyond(self, a: Clamp, point: Point, n: str) -> str:
        """Return the test that all lanes are clamped to the same end."""
        first, last = (self._index(a.num, point, lane) for lane in ("0", f"{n} - 1"))
        return f"{last} < 0 || {first} >= {self._index(a.extent, point)}"

    def _lane_by_lane(self, pointer: str, offset: Index, point: Point, dtype: DType, n: str) -> str:
        depth = self.scopes[self.depth(self._gather_axes(offset))]
        self.serial += 1
        name = f"g{self.serial}"
        element = f"{pointer}[{self._index(offset, point, 'q')}]"
        depth.before.append(f"{pw.MEMORY[dtype.name]} {name}[{self.names.lanes}] = {{0}};")
        depth.before.append(f"for (int q = 0; q < {n}; q++) {name}[q] = {element};")
        return f"{self.names.use(f'load_{dtype.name}')}({name})"

    def _from_buffer(self, buffer: Buffer, point: Point) -> str:
        return self._declare(
            pw.VECTOR[buffer.dtype.name],
            self._read(buffer, point, buffer.dtype),
            frozenset(buffer.axes),
        )

    def _read(self, buffer: Buffer, point: Point, dtype: DType) -> str:
        """Return the C of what a buffer holds, rounded to `dtype` if it is a wider accumulator."""
        t = buffer.dtype.name
        place = self.place(buffer, point)
        v, use = self.nest.vector, self.names.use
        kind, wanted = ("i32" if x == "bool" else x for x in (t, dtype.compute))
        if v not in buffer.axes:
            return f"{use(f'splat_{wanted}')}({place})"
        if v is buffer.last:
            text = f"{use(f'load_{kind}')}(&{place})"
        else:
            n = "lanes" if self.variant.partial else str(self.names.lanes)
            text = f"{use(f'load_strided_{kind}')}(&{place}, {self.stride(buffer, v)}, {n})"
        return text if kind == wanted else f"{use(f'cast_{kind}_{wanted}')}({text})"

    def stride(self, buffer: Buffer, a: Axis | None) -> str:
        others = [b for b in buffer.axes if b is not buffer.last]
        assert a is not None
        behind = others[others.index(a) + 1 :]
        lengths = [f"e_{buffer.name}_{self.names.axis(b)}" for b in behind]
        lengths.append(str(buffer.panel) if buffer.panel else f"e_{buffer.name}_last")
        return " * ".join(lengths)

    def place(self, buffer: Buffer, point: Point) -> str:
        """Return the element of a buffer as an lvalue."""
        block = self._block(buffer, point)
        return buffer_place(buffer, self.names, lambda a: self._within(buffer, a, point), block)

    def _block(self, buffer: Buffer, point: Point) -> tuple[str, int] | None:
        """Return the panel's first coordinate and the offset in it, if a block of vectors is
        exactly one panel; else None."""
        last, width = buffer.last, self.names.lanes * self.variant.vectors
        if not buffer.panel or last is None or last in buffer.whole:
            return None
        k = dict(point).get(last, 0)
        if last is self.nest.vector and not self.variant.partial and buffer.panel == width:
            return self._local(last), k * self.names.lanes
        return None

    def _within(self, buffer: Buffer, a: Axis, point: Point) -> str:
        if a in buffer.whole:
            return self.coordinate(a, point)
        return self.offset(a, point)

    # -- writing --

    def _write(self, w: Store | Stage, point: Point) -> None:
        made = w.expr.value if isinstance(w.expr, AddAt) else w.expr
        if isinstance(w, Store) and isinstance(made, Cast) and made.dtype.name in HALVES:
            made = made.arg if made.arg.dtype is f32 else made  # the store rounds
        value = self.value(made, point)
        axes = frozenset(self.nest.axes)
        after = self.scopes[self.depth(axes)].before
        use, v = self.names.use, self.nest.vector
        if isinstance(w, Stage):
            t = w.buffer.dtype.name
            kind = "i32" if t == "bool" else t
            place = self.place(w.buffer, point)
            if v in w.buffer.axes:
                if v is w.buffer.last:
                    after.append(f"{use(f'store_{kind}')}(&{place}, {value});")
                else:
                    step = self.stride(w.buffer, v)
                    n = "lanes" if self.variant.partial else str(self.names.lanes)
                    after.append(f"{use(f'store_strided_{kind}')}(&{place}, {step}, {value}, {n});")
            else:
                after.append(f"{place} = {value}[0];")
            return
        dtype = self.names.memory[w.target]
        offset = place_in(w.index, self.names.strides[w.target])
        base = f"p_{w.target} + {self._index(offset, point)}"
        step = stride_along(offset, v) if v is not None else as_index(0)
        n = "lanes" if self.variant.partial else str(self.names.lanes)
        if v is None or step is None or step.const == 0:
            kind, apart, count = "part_", "", ", 1"
        elif step.const == 1 and not self.variant.partial:
            kind, apart, count = "", "", ""
            self._prefetch(base, offset, dtype)
        elif step.const == 1:
            kind, apart, count = "part_", "", ", lanes"
        else:
            kind, apart, count = "strided_", f", {c_index(step)}", f", {n}"
        if isinstance(w.expr, AddAt):
            value += f" + {use(f'load_{kind}{dtype.name}')}({base}{apart}{count})"
        after.append(f"{use(f'store_{kind}{dtype.name}')}({base}{apart}, {value}{count});")

    # -- reductions --

    def masked(self, name: str, t: str, neutral: str) -> str:
        """Return the value with lanes past the end replaced by the neutral one."""
        v = self.nest.vector
        if not self.variant.partial or v is None:
            return name
        mask = self.lane_mask()
        return f"{self.names.use(f'select_{t}')}({mask}, {name}, {neutral})"

    def lane_mask(self) -> str:
        v = self.nest.vector
        assert v is not None
        key = (ex.const(True, boolean), ((v, -1),))
        if key not in self.known:
            self.known[key] = self._declare("i32v", f"{self.iota('i32')} < lanes", frozenset({v}))
        return self.known[key]
