"""Prints the inside of a nest as Triton: each value once, as a block over some of the nest's axes.

In:  a nest and the kernel's `Blocks`. Out: lines of text.

    nest (i, j)  d = sub(x[i], y[j])         r1 = tl.load(p_x + x_i[:, None], mask=m_i[:, None])
                 acc = min[j](mul(d, d))     r2 = tl.load(p_y + x_j[None, :], mask=m_j[None, :])
                                             r3 = (r1 - r2)
                                             r5 = tl.where(m_j[None, :], r4, inf)
                                             w_acc = tl.minimum(w_acc, r5)

During a sweep, an accumulator `w_…` has the reduced dims, too: each element of the block has a sum
of its own. After the sweep, it is folded into `s_…`. An accumulator that is read during the sweep
is folded in each step. A product of blocks (`lt_dot`) adds to `s_…`.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.codegen.index_text import index_text
from lowtide.codegen.triton import pointwise as pw
from lowtide.codegen.triton.block_axes import Blocks, Dims
from lowtide.ir.dtypes import DType
from lowtide.texpr.algebra import identity
from lowtide.texpr.expr import AddAt, Apply, At, Cast, Const, Expr, Load, Scalar, Select
from lowtide.texpr.index import Axis, Gather, Index, deep_atoms
from lowtide.texpr.places import address, place_in
from lowtide.tile.ir import Accumulate, Buffer, Nest, Stage, Store
from lowtide.tile.items import ARG
from lowtide.tile.products import LEAST_PRODUCT, BlockProduct, as_product, half_of

_FOLD = {
    "sum": "lt_sum({0}, {1})", "prod": "lt_prod({0}, {1})", "max": "lt_best({0}, {1}, False)",
    "min": "lt_best({0}, {1}, True)", "any": "lt_any({0}, {1})", "all": "lt_all({0}, {1})",
}  # fmt: skip
_JOIN = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """An accumulator's block during its sweep, with `dims`; the fold leaves `final`."""

    buffer: Buffer
    dims: Dims
    final: Dims


class Body:
    """Prints one nest."""

    def __init__(
        self, nest: Nest, blocks: Blocks, wide: dict[str, Wide], serial: list[int]
    ) -> None:
        self.nest = nest
        self.blocks = blocks
        self.wide = wide  # accumulators by name
        self.serial = serial
        self.lines: list[str] = []
        self.known: dict[tuple[Expr, Dims], str] = {}
        self.written = {id(w.buffer) for w in nest.writes if isinstance(w, Stage)}

    def text(self) -> list[str]:
        """Return the lines of the nest."""
        for w in self.nest.writes:
            if isinstance(w, Accumulate):
                self._accumulate(w)
            elif isinstance(w, Stage):
                self._stage(w)
            else:
                self._store(w)
        return self.lines

    # -- values --

    def value(self, e: Expr, dims: Dims) -> str:
        """Return the name of a value as a block with `dims`, of size 1 along unused ones."""
        found = self.known.get((e, dims))
        if found is None:
            buffer = self.nest.reads.get(e)
            if buffer is not None and id(buffer) not in self.written:
                text = self._shared_value(buffer, dims)
            else:
                text = self._text(e, dims)
            found = self.known[e, dims] = text if text.isidentifier() else self._named(text)
        return found

    def _named(self, text: str) -> str:
        self.serial[0] += 1
        name = f"r{self.serial[0]}"
        self.lines.append(f"{name} = {text}")
        return name

    def _text(self, e: Expr, dims: Dims) -> str:
        if isinstance(e, Const):
            return pw.constant(e.value, e.dtype)
        if isinstance(e, Load):
            return self._load(e, dims)
        if isinstance(e, At):
            return f"lt_wide({self._index(e.index, dims)}, tl.int64)"
        if isinstance(e, Scalar):
            # `lt_wide` adds to 0, which would turn -0.0 into 0.0.
            return f"tl.cast(v_{e.name}, {pw.type_of(e.dtype)})"
        if isinstance(e, Select):
            return f"tl.where({', '.join(self.value(c, dims) for c in (e.cond, e.yes, e.no))})"
        if isinstance(e, Cast):
            text = pw.cast(e.arg.dtype, e.dtype, self.value(e.arg, dims))
        else:
            assert isinstance(e, Apply)
            text = pw.call(e.fn, e.args[0].dtype, [self.value(a, dims) for a in e.args])
        is_flag = e.dtype.name == "bool" and not self.blocks.dims(tuple(e.free))
        return f"lt_flag({text})" if is_flag else text

    def _index(self, index: Index, dims: Dims) -> str:
        def coordinate(a: Axis) -> str:
            return self.blocks.coordinate(a, dims)

        def gathered(g: Gather) -> str:
            return self.value(g.expr, dims)

        return index_text(index, "//", coordinate, gathered)

    def _load(self, e: Load, dims: Dims) -> str:
        buffer = self.blocks.values.get(e.source)
        if buffer is not None:
            return self._shared_value(buffer, dims)
        if e.source in self.blocks.written:
            return self.blocks.written[e.source]
        dtype = self.blocks.memory[e.source]
        offset = address(e, self.blocks.strides)
        place = self._index(offset, dims)
        mask = self.blocks.mask(_axes_of(offset), dims)  # an axis of stride 0 needs no mask
        masked = f", mask={mask}, other=0" if mask else ""
        text = f"tl.load(p_{e.source} + ({place}){masked})"
        if dtype.name == "bool":
            return f"({text} != 0)"
        held = pw.type_of(dtype)
        return text if held == pw.TYPES[dtype.name] else f"{text}.to({held})"

    def _shared_value(self, buffer: Buffer, dims: Dims) -> str:
        return self.blocks.arranged(f"s_{buffer.name}", self.blocks.dims(buffer.axes), dims)

    def _full(self, name: str, dims: Dims) -> str:
        """Return the text that broadcasts a block to all its dims."""
        return f"tl.broadcast_to({name}, {self.blocks.shape(dims)})" if dims else name

    # -- writes --

    def _stage(self, w: Stage) -> None:
        dims = self.blocks.dims(w.buffer.axes)
        value = self._full(self.value(w.expr, dims), dims)
        self.lines.append(f"s_{w.buffer.name} = {value}.to({pw.type_of(w.buffer.dtype)})")

    def _store(self, w: Store) -> None:
        dims = self.blocks.dims(self.nest.axes)
        dtype = self.blocks.memory[w.target]
        places = self._places(w, dims)
        mask = self.blocks.mask(self.nest.axes, dims)
        masked = f", mask={mask}" if mask else ""
        if isinstance(w.expr, AddAt):
            value = self._full(self.value(w.expr.value, dims), dims)
            self.lines.append(f"tl.atomic_add({places}, {value}{masked}, sem='relaxed')")
            return
        held = self.value(w.expr, dims)
        value = pw.rounded(held, dtype)
        if not self.nest.axes:
            read = held if value == held else self._named(f"{value}.to({pw.type_of(dtype)})")
            self.blocks.written[w.target] = read
        self.lines.append(f"tl.store({places}, {self._full(value, dims)}{masked})")

    def _places(self, w: Store, dims: Dims) -> str:
        """Return the pointers to the elements of a block."""
        offset = place_in(w.index, self.blocks.strides[w.target])
        place = self._index(offset, dims)
        if not set(dims) <= set(_axes_of(offset)):  # a dim that the offset does not depend on
            place = f"tl.full({self.blocks.shape(dims)}, 0, INDEX) + {place}"
        return f"p_{w.target} + ({place})"

    # -- reductions --

    def _accumulate(self, w: Accumulate) -> None:
        wide = self.wide[w.buffer.name]
        if (product := product_of(w, self.blocks)) is not None:
            self._product(w.buffer, product)
        elif wide.dims != wide.final:
            self._add_up(w, "w_", wide.dims)
        elif inner := self.blocks.dims(w.reduced):
            self._fold_in(w, self.blocks.dims((*wide.final, *inner)), wide.final)
        else:
            self._add_up(w, "s_", wide.final)

    def _add_up(self, w: Accumulate, head: str, dims: Dims) -> None:
        """Print an elementwise update of an accumulator's block."""
        name, e = f"{head}{w.buffer.name}", w.expr
        is_sum = w.fn == "sum" and e.dtype.is_float and isinstance(e, Apply) and e.fn == "mul"
        if is_sum and not self.blocks.mask(w.reduced, dims):
            x, y = (self.value(a, dims) for a in e.children)
            self.lines.append(f"{name} = lt_fma({x}, {y}, {name})")
        elif w.fn in ARG:
            self._better(w, head, self._masked(w, dims), self._place(w, dims))
        else:
            value = self._masked(w, dims)
            self.lines.append(f"{name} = {pw.call(_JOIN[w.fn], w.buffer.dtype, [name, value])}")

    def _fold_in(self, w: Accumulate, dims: Dims, final: Dims) -> None:
        """Print the fold of a block to its `final` dims, and the update of the accumulator."""
        value = self._full(self._masked(w, dims), dims)
        reduced = [k for k, a in reversed([*enumerate(dims)]) if a not in final]
        if w.fn in ARG:
            at = self._full(self._place(w, dims), dims)
            for k in reduced:
                best = self._named(f"lt_best({value}, {k}, {w.fn == 'argmin'})")
                at = self._named(f"lt_where_best({value}, {best}, {at}, {k})")
                value = best
            self._better(w, "s_", value, at)
            return
        for k in reduced:
            value = self._named(_FOLD[w.fn].format(value, k))
        name = f"s_{w.buffer.name}"
        self.lines.append(f"{name} = {pw.call(_JOIN[w.fn], w.buffer.dtype, [name, value])}")

    def _masked(self, w: Accumulate, dims: Dims) -> str:
        """Return the accumulated value; it is neutral past the end of a reduced axis."""
        value, mask = self.value(w.expr, dims), self.blocks.mask(w.reduced, dims)
        if not mask:
            return value
        fn = {"argmin": "min", "argmax": "max"}.get(w.fn, w.fn)
        neutral = pw.constant(identity(fn, w.expr.dtype), w.expr.dtype)
        return self._named(f"tl.where({mask}, {value}, {neutral})")

    def _better(self, w: Accumulate, head: str, value: str, at: str) -> None:
        """Print the update of an argmin or argmax: the best value, and the first index of it."""
        assert w.buffer.twin is not None
        place, best = f"{head}{w.buffer.name}", f"{head}{w.buffer.twin.name}"
        test = self._named(f"lt_better({value}, {best}, {w.fn == 'argmin'})")
        self.lines.append(f"{best} = tl.where({test}, {value}, {best})")
        self.lines.append(f"{place} = tl.where({test}, {at}, {place})")

    def _place(self, w: Accumulate, dims: Dims) -> str:
        (axis,) = w.reduced
        return f"lt_wide({self.blocks.coordinate(axis, dims)}, tl.int64)"

    # -- products of blocks --

    def _product(self, buffer: Buffer, product: BlockProduct) -> None:
        half = half_of(product)
        left = self._side(product.left, (product.rows, product.inner), product.inner, half)
        right = self._side(product.right, (product.inner, product.columns), product.inner, half)
        name = f"s_{buffer.name}"
        self.lines.append(f"{name} = lt_dot({left}, {right}, {name}, PRECISION)")

    def _side(self, e: Expr, dims: Dims, inner: Axis, half: DType | None) -> str:
        if half is not None and isinstance(e, Cast):
            e = e.arg
        name, mask = self.value(e, dims), self.blocks.mask((inner,), dims)
        if mask and not self._is_zero_beyond(e, inner):
            name = self._named(f"tl.where({mask}, {name}, 0)")
        full = self._full(name, dims)
        if half is not None:
            return f"{full}.to({pw.TYPES[half.name]})"  # exact: the value was cast from this dtype
        return pw.rounded(full, e.dtype)

    def _is_zero_beyond(self, e: Expr, a: Axis) -> bool:
        """Return whether a value is 0 past the end of an axis, as a masked load from memory is. A
        load with stride 0 along the axis is not masked, nor is a value that the program holds."""
        while isinstance(e, Cast):
            e = e.arg
        if not isinstance(e, Load) or e.source in self.blocks.values:
            return False
        return a in _axes_of(address(e, self.blocks.strides))


def _axes_of(index: Index) -> list[Axis]:
    """Return the axes that an index depends on."""
    found: list[Axis] = []
    for atom in deep_atoms(index):
        found += [atom] if isinstance(atom, Axis) else []
        found += atom.expr.free if isinstance(atom, Gather) else ()
    return found


def product_of(w: Accumulate, blocks: Blocks) -> BlockProduct | None:
    """Return the matrix product of blocks that an accumulation computes, None if none."""
    kept, reduced = blocks.dims(w.buffer.axes), blocks.dims(w.reduced)
    points = (blocks.points[a] for a in (*kept, *reduced))
    if any(n.isdigit() and int(n) < LEAST_PRODUCT for n in points):
        return None
    return as_product(w.fn, w.expr, kept, reduced)


def fold_lines(wide: Wide, blocks: Blocks) -> list[str]:
    """Return the lines that fold an accumulator after its sweeps."""
    b, dims = wide.buffer, list(wide.dims)
    source = f"w_{b.name}"
    lines: list[str] = []
    twin = b.twin
    best = f"w_{twin.name}" if twin is not None else ""
    for a in reversed([a for a in dims if a not in wide.final]):
        k = dims.index(a)
        dims.remove(a)
        if twin is not None:
            lines.append(f"s_{twin.name} = lt_best({best}, {k}, {b.fn == 'argmin'})")
            lines.append(f"s_{b.name} = lt_where_best({best}, s_{twin.name}, {source}, {k})")
            best = f"s_{twin.name}"
        else:
            lines.append(f"s_{b.name} = {_FOLD[b.fn].format(source, k)}")
        source = f"s_{b.name}"
    return lines
