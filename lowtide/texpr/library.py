"""Separates the matrix products that PyTorch's library does faster: their operands are stored.

In: a normalised `Program`, and which products the library computes. Out: the Program, the names of
these products, and all products that the library could compute. Each of these products is then one
of two loads: an expression in its place becomes a stored definition, which a neighbouring kernel
computes.

    h[i, j] = sum[k](gelu(a[i, k]) * w[k, j])  ->  h_left[i, k] = gelu(a[i, k])
                                                   h[i, j] = sum[k](h_left[i, k] * w[k, j])

The library computes a product of bf16 or f16 if all its readers round it, or round its sum with one
bias. It adds up in float32, with the bias, and rounds once, so the stored result is half as large.
The bias stands in the first term.

    t[i, j]: f32 = sum[k](f32(a[i, k]) * f32(w[k, j]))
    h[i, j]: bf16 = bf16(t[i, j] + f32(b[j]))
    ->
    h[i, j]: bf16 = sum[k](f32(a[i, k]) * f32(w[k, j]) + (f32(b[j]) if k == 0 else 0))

Operands that together are all of a larger value are read from that, by their strides. Heads of an
attention are such parts of one layer's result; one kernel adds the bias, often in place.

    left[b, h, i, c]  = t[b, i, 32*h + c] + bias[32*h + c]
    right[b, h, j, c] = t[b, j, 32*h + c + 256] + bias[32*h + c + 256]
    ->
    whole[b, i, l] = t[b, i, l] + bias[l]
    left: whole[b, i, 32*h + c]    right: whole[b, j, 32*h + c + 256]

Invariant: neither a result nor an operand is a value of pairs, larger than all inputs and outputs
together (a hidden layer: twice as large, unless the backward pass recomputes it). The terms are the
same; the library chooses the order of the sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from lowtide.ir.dtypes import HALVES, DType, boolean, f32, i64
from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, over_numbers
from lowtide.texpr.expr import Apply, Cast, Def, Expr, Load, Program, Reduce, Rewriter
from lowtide.texpr.index import Axis, Index, as_index, row_major, the_axis
from lowtide.texpr.places import address, merged, stride_along
from lowtide.texpr.sizes import elements, elements_stored, likely, points

DTYPES = ("f32", "f64")
LARGE = 1 << 22  # multiplications, some 40 us
ROOM = 2  # of a product of two matrices: hidden units are more than what a layer reads and gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Sizes at the first call. `extra_bytes`: of the operands that must be stored for it."""

    dtype: str
    batch: int
    rows: int
    columns: int
    terms: int
    extra_bytes: int

    @property
    def points(self) -> int:
        """Multiplications."""
        return self.batch * self.rows * self.columns * self.terms


def operands_stored(
    program: Program, hints: Mapping[str, int], is_librarys: Callable[[Product], bool]
) -> tuple[Program, frozenset[str], Mapping[str, Product]]:
    """See the module's text."""
    work = _Work(program, hints, is_librarys)
    defs: dict[str, Def] = {}
    for d in program.defs.values():
        for made in work.apart(d):
            defs[made.name] = work.widening(made)
        work.made.add(d.name)
    made = dataclasses.replace(program, defs=defs)
    return *_without_copies(made, frozenset(work.names)), work.products


def _without_copies(program: Program, names: frozenset[str]) -> tuple[Program, frozenset[str]]:
    """Replace a product that another definition only copies or permutes by that definition."""
    roots = {*program.outputs, *program.checks}
    for name in sorted(names - roots):
        d = program.defs[name]
        found = (
            _permuted_product(d, reader) for reader in program.defs.values() if _reads(reader, name)
        )
        turned = next((t for t in found if t is not None), None)
        if turned is not None:
            program = _written_as(program, d, turned)
            names = names - {name} | {turned.name}
    return program, names


def _reads(d: Def, name: str) -> bool:
    return any(load.source == name for load in ex.loads(d.expr))


def _permuted_product(d: Def, reader: Def) -> Def | None:
    """Return the reader as the product itself, maybe with permuted axes, if it is only a copy; else
    None."""
    load = reader.expr
    axes = (*d.axes, *reader.axes)
    if not isinstance(load, Load) or reader.adds_to or any(a.extent.const == 1 for a in axes):
        return None
    at = dict(zip(load.index, d.axes, strict=True))
    walked = [as_index(a) for a in reader.axes]
    if set(at) != set(walked) or len(d.axes) != len(reader.axes):
        return None
    return dataclasses.replace(reader, axes=tuple(at[i] for i in walked), expr=d.expr)


def _written_as(program: Program, d: Def, turned: Def) -> Program:
    """Return the Program with `turned` instead of the product."""
    places = [d.axes.index(a) for a in turned.axes]

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source == d.name:
            return ex.load(turned.name, [node.index[p] for p in places], node.dtype)
        return None

    defs: dict[str, Def] = {}
    for made in program.defs.values():
        if made.name == d.name:
            defs[turned.name] = turned
        elif made.name != turned.name:
            is_reader = _reads(made, d.name)
            expr = Rewriter(visit)(made.expr) if is_reader else made.expr
            defs[made.name] = dataclasses.replace(made, expr=expr) if is_reader else made
    return dataclasses.replace(program, defs=defs)


def large_products(program: Program, hints: Mapping[str, int]) -> set[str]:
    """Return the dtypes of the products that are large enough for a choice between library and
    kernel."""
    found: set[str] = set()
    for d in program.defs.values():
        sides = _factors(d)
        if sides is not None and points((*d.axes, *_reduced(d)), hints) >= LARGE:
            found.add((_half_of(*sides) or d.dtype).name)
    return found


def _factors(d: Def) -> tuple[Expr, Expr] | None:
    """Return the two factors of a sum of products; None for any other definition."""
    e = d.expr
    if not isinstance(e, Reduce) or e.fn != "sum" or d.dtype.name not in DTYPES or d.adds_to:
        return None
    body = e.body
    if body.dtype is not d.dtype or not isinstance(body, Apply) or body.fn != "mul":
        return None
    first, second = body.args  # as they are multiplied: in another order they might overflow
    return first, second


def _half_of(first: Expr, second: Expr) -> DType | None:
    """Return the 16-bit dtype that both were converted from, None if there is none."""
    if not (isinstance(first, Cast) and isinstance(second, Cast) and first.dtype is f32):
        return None
    half = first.arg.dtype
    return half if half.name in HALVES and second.arg.dtype is half else None


def _roundings(expr: Expr, d: Def, half: DType) -> set[Expr | None] | None:
    """Return the biases that a reader adds to a product before it rounds the sum to 16 bits. None
    in the set: it rounds the product itself. None as the result: it does anything else."""
    found: set[Expr | None] = set()
    wide: dict[Expr, Expr | None] = {}
    for node in ex.walk(expr):
        if isinstance(node, Load) and node.source == d.name:
            wide[node] = None
        elif not wide.keys().isdisjoint(node.children):
            if isinstance(node, Cast) and node.dtype is half:
                found.add(wide[node.arg])
                continue
            bias = _bias(node, d, half)
            if bias is None:
                return None
            wide[node] = bias
    return None if expr in wide else found


def _bias(node: Expr, d: Def, half: DType) -> Expr | None:
    """Return the bias that the node adds to a product, over the axes of the product; None if there
    is none."""
    if not isinstance(node, Apply) or node.fn != "add":
        return None
    load, other = node.args if _is_load(node.args[0], d.name) else node.args[::-1]
    if not (isinstance(load, Load) and isinstance(other, Cast) and other.arg.dtype is half):
        return None
    walked = zip(load.index, d.axes, strict=True)
    own = {i: as_index(a) for i, a in walked if i.const is None}

    def visit(part: Expr) -> Expr | None:
        if isinstance(part, Load):
            return ex.load(part.source, [own.get(i, i) for i in part.index], part.dtype)
        return None

    bias = Rewriter(visit)(other.arg)
    is_same = at_indices(bias, dict(zip(d.axes, load.index, strict=True))) is other.arg
    return bias if is_same and bias.free <= {*d.axes} else None


def _is_load(node: Expr, name: str) -> bool:
    return isinstance(node, Load) and node.source == name


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """`expr`: the value over `axes`. `index`: where the operand is in it."""

    axes: tuple[Axis, ...]
    expr: Expr
    index: tuple[Index, ...]

    @property
    def key(self) -> Expr:
        """The value over numbered axes: equal for equal values."""
        return over_numbers(self.expr, self.axes)


def whole_of(side: Expr, shape_of: Callable[[str], Sequence[Index]]) -> Whole | None:
    """Return the value of which an operand is a part, changed element by element; None if there is
    none. `shape_of`: of what it loads."""
    large = [load for load in dict.fromkeys(ex.loads(side)) if load.free == side.free]
    if isinstance(side, Load) or len(large) != 1:
        return None
    (load,) = large
    shape = shape_of(load.source)
    axes = tuple(Axis(f"w{k}", extent) for k, extent in enumerate(shape))
    own = {i: a for i, a in zip(load.index, axes, strict=True) if a.extent.const != 1}
    if all(the_axis(i) for i in own) or any(i.const is not None for i in own):
        return None
    fits = True

    def visit(node: Expr) -> Expr | None:
        nonlocal fits
        if not isinstance(node, Load):
            return None
        for i, extent in zip(node.index, shape_of(node.source), strict=True):
            fits &= i not in own or own[i].extent is extent
        index = [as_index(own[i]) if i in own else i for i in node.index]
        return ex.load(node.source, index, node.dtype)

    expr = Rewriter(visit)(side)
    if not fits or not expr.free <= {*axes}:
        return None
    is_same = at_indices(expr, dict(zip(axes, load.index, strict=True))) is side
    return Whole(axes=axes, expr=expr, index=load.index) if is_same else None


class _Work:
    def __init__(
        self, program: Program, hints: Mapping[str, int], is_librarys: Callable[[Product], bool]
    ) -> None:
        self.program = program
        self.hints = hints
        self.is_librarys = is_librarys
        self.names: list[str] = []
        self.products: dict[str, Product] = {}
        self.stored: dict[Expr, str] = {}  # operands, over numbered axes
        self.roots = {*program.outputs, *program.checks}
        self.held = elements_stored(program, self.roots, hints)
        self.readers: dict[str, list[Expr]] = {}
        for d in program.defs.values():
            for source in {load.source for load in ex.loads(d.expr)}:
                self.readers.setdefault(source, []).append(d.expr)
        self.halves: dict[str, DType] = {}  # products that are rounded now
        self.made: set[str] = set()  # definitions so far
        self.parts = self.elements_of_parts()

    def apart(self, d: Def) -> list[Def]:
        """Return the definition, preceded by its operands."""
        found = self.sides(d)
        if found is None:
            return [d]
        left, right = found
        half, bias = self.half(d, left, right)
        if half is not None:
            left, right = left.children[0], right.children[0]
        dtype = half or d.dtype
        both = {a for a in d.axes if a in left.free and a in right.free}
        operands = [self.operand(d, x, n, both) for x, n in ((left, "left"), (right, "right"))]
        if bias is not None:
            operands.append(self.operand(d, bias, "bias", {*d.axes}))
        extra_bytes = sum(
            elements(made.shape, self.hints) * made.dtype.itemsize
            for made, _ in operands
            if made is not None
        )
        product = self.product(d, left, right, dtype, extra_bytes)
        self.products[d.name] = product
        made = [x for x, _ in operands if x is not None]
        if not self.is_librarys(product):
            for x in made:
                del self.stored[over_numbers(x.expr, x.axes)]
            return [d]
        self.names.append(d.name)
        if half is not None:
            self.halves[d.name] = half
        x, y, *rest = (ex.cast(load, d.dtype) for _, load in operands)
        body = ex.apply("mul", (x, y), d.dtype)
        for z in rest:
            body = ex.apply("add", (body, in_first_term(z, _reduced(d))), d.dtype)
        total = ex.reduce("sum", list(_reduced(d)), body, dtype)
        return [*made, dataclasses.replace(d, expr=total)]

    def product(self, d: Def, left: Expr, right: Expr, dtype: DType, extra_bytes: int) -> Product:
        """Return the sizes of a product."""
        return Product(
            dtype=dtype.name,
            batch=self.count(a for a in d.axes if a in left.free and a in right.free),
            rows=self.count(a for a in d.axes if a in left.free and a not in right.free),
            columns=self.count(a for a in d.axes if a in right.free and a not in left.free),
            terms=self.count(_reduced(d)),
            extra_bytes=extra_bytes,
        )

    def elements_of_parts(self) -> Mapping[Expr, int]:
        """Return for each value, see `whole_of`, the elements of those operands of the
        library's products that are parts of it."""
        found: dict[Expr, int] = {}
        for d in self.program.defs.values():
            sides = self.sides(d)
            if sides is None or not self.is_librarys(self.product(d, *sides, d.dtype, 0)):
                continue
            for side in dict.fromkeys(sides):
                whole = whole_of(side, self.shape)
                if whole is not None:
                    found[whole.key] = found.get(whole.key, 0) + self.count(side.free)
        return found

    def shape(self, name: str) -> Sequence[Index]:
        """Return the shape of an input or a definition."""
        return (self.program.inputs.get(name) or self.program.defs[name]).shape

    def half(self, d: Def, left: Expr, right: Expr) -> tuple[DType | None, Expr | None]:
        """Return the 16-bit dtype of a product that may be rounded, and the bias that is added;
        None each if not."""
        half = _half_of(left, right)
        if half is None or d.name in self.roots:
            return None, None
        biases: set[Expr | None] = set()
        for reader in self.readers.get(d.name, []):
            found = _roundings(reader, d, half)
            if found is None:
                return None, None
            biases |= found
        if len(biases) != 1:
            return None, None
        (bias,) = biases
        if bias is not None and not self.is_bias(d, bias, left, right):
            return None, None
        return half, bias

    def is_bias(self, d: Def, bias: Expr, left: Expr, right: Expr) -> bool:
        """Return whether the library can add the bias. It must exist before the product, and the
        product must be of two matrices."""
        made = all(x.source in self.made or x.source not in self.program.defs
                   for x in ex.loads(bias))  # fmt: skip
        has_batch = any(a in left.free and a in right.free for a in d.axes)
        return made and not has_batch and self.fits(d, bias)

    def widening(self, d: Def) -> Def:
        """Return the definition with loads of products that are rounded now."""
        if self.halves.keys().isdisjoint(load.source for load in ex.loads(d.expr)):
            return d

        def visit(node: Expr) -> Expr | None:
            if not isinstance(node, Cast) or node.dtype.name not in HALVES:
                return None
            for load in (node.arg, *node.arg.children):
                if not isinstance(load, Load) or load.dtype is not f32:
                    continue
                if self.halves.get(load.source) is node.dtype:
                    return ex.load(load.source, load.index, node.dtype)
            return None

        return dataclasses.replace(d, expr=Rewriter(visit)(d.expr))

    def count(self, axes: Iterable[Axis]) -> int:
        """Return the number of points of the axes at the sizes of the first call."""
        return math.prod(likely(a.extent, self.hints) for a in axes)

    def sides(self, d: Def) -> tuple[Expr, Expr] | None:
        """Return the two factors of a product of matrices."""
        factors = _factors(d)
        if factors is None:
            return None
        first, second = factors
        mine, theirs = ({a for a in d.axes if a in side.free} for side in (first, second))
        if not (mine - theirs and theirs - mine and first.dtype is second.dtype):
            return None
        if not all(a in first.free and a in second.free for a in _reduced(d)):
            return None
        has_batch = any(a in first.free and a in second.free for a in d.axes)
        room = 1 if has_batch or d.name in self.program.shared_sums else ROOM
        if elements(d.shape, self.hints) > self.held * room:
            return None
        return (first, second) if self.fits(d, first) and self.fits(d, second) else None

    def fits(self, d: Def, side: Expr) -> bool:
        """Return whether an operand is no value of pairs."""
        axes = [a for a in (*d.axes, *_reduced(d)) if a in side.free]
        return side.free <= {*axes} and elements([a.extent for a in axes], self.hints) <= self.held

    def operand(self, d: Def, side: Expr, name: str, both: Set[Axis]) -> tuple[Def | None, Expr]:
        """Return the definition that stores an operand, None if it is in memory already, and the
        expression by which the product reads it. `both`: axes of `d` that no product joins with
        others: of both operands, or all, of a bias."""
        own = [a for a in d.axes if a in side.free]
        outer, rows = [a for a in own if a in both], [a for a in own if a not in both]
        terms = [a for a in _reduced(d) if a in side.free]
        if isinstance(side, Load) and self.is_matrices(side, outer, rows, terms):
            return None, side
        label = f"{d.name}_{name}"
        whole = whole_of(side, self.shape)
        if whole is not None and self.is_covered(whole):
            at = ex.load(self.stored.get(whole.key, label), whole.index, side.dtype)
            if self.is_matrices(at, outer, rows, terms, row_major([a.extent for a in whole.axes])):
                is_new = at.source == label
                return self.definition(d, label, whole.axes, whole.expr) if is_new else None, at
        order = max(
            ([*outer, *rows, *terms], [*outer, *terms, *rows]),
            key=lambda axes: sum(_runs_along(load, axes[-1]) for load in ex.loads(side)),
        )
        known = self.stored.get(over_numbers(side, order))
        at = [as_index(a) for a in order]
        if known is not None:
            return None, ex.load(known, at, side.dtype)
        fresh = [Axis(a.name, a.extent) for a in order]
        expr = at_indices(side, {a: as_index(b) for a, b in zip(order, fresh, strict=True)})
        return self.definition(d, label, fresh, expr), ex.load(label, at, side.dtype)

    def definition(self, d: Def, label: str, axes: Sequence[Axis], expr: Expr) -> Def:
        """Return the definition of a stored operand of `d`."""
        self.stored[over_numbers(expr, axes)] = label
        return Def(name=label, axes=tuple(axes), expr=expr, loc=d.loc, op=d.op)

    def is_covered(self, whole: Whole) -> bool:
        """Return whether operands are together all of a value that is no value of pairs."""
        size = self.count(whole.axes)
        return size <= min(self.parts.get(whole.key, 0), ROOM * self.held)

    def is_matrices(
        self, load: Load, outer: Sequence[Axis], rows: Sequence[Axis], terms: Sequence[Axis],
        strides: tuple[Index, ...] | None = None,
    ) -> bool:  # fmt: skip
        """Return whether what is read has one step for each outer axis, one for all rows and one
        for all terms, and one of the latter two is 1. `strides`: of a value that is made."""
        if strides is None:
            found = self.program.inputs.get(load.source)
            strides = found.strides if found else row_major(self.program.defs[load.source].shape)
        place = address(load, {load.source: strides})
        steps = {a: stride_along(place, a) for a in (*outer, *rows, *terms)}
        known = {a: step for a, step in steps.items() if step is not None}
        if len(known) < len(steps) or not load.free <= known.keys():
            return False
        inner = [merged(part, known) for part in (rows, terms) if part]
        inner_steps = [x[1].const for x in inner if x is not None]
        return len(inner_steps) == len(inner) and (1 in inner_steps or not inner)


def in_first_term(value: Expr, axes: Sequence[Axis]) -> Expr:
    """Return a value at the first point of some axes, 0 at the others: a sum over them adds it
    once."""
    zero = ex.const(0.0, value.dtype)
    for a in axes:
        is_first = ex.apply("eq", (ex.at(as_index(a), i64), ex.const(0, i64)), boolean)
        value = ex.select(is_first, value, zero)
    return value


def _reduced(d: Def) -> Sequence[Axis]:
    assert isinstance(d.expr, Reduce)
    return d.expr.axes


def _runs_along(load: Load, a: Axis) -> bool:
    """Return whether the last dim that is read walks along an axis."""
    return bool(load.index) and a in load.index[-1].atoms()
