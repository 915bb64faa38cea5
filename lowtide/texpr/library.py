"""Sets the matrix products apart that the library does faster: their operands are stored.

In: a normalised `Program`, and which products are the library's. Out: the Program, and the names of
these products. Each is a product of two loads then; what was written into it is a definition that
is stored, so that it is computed in the kernels of its neighbours.

    h[i, j] = sum[k](gelu(a[i, k]) * w[k, j])  ->  h_left[i, k] = gelu(a[i, k])
                                                   h[i, j] = sum[k](h_left[i, k] * w[k, j])

Invariant: neither a result nor an operand is a value of pairs, larger than all inputs and
outputs together (a hidden layer: twice as large). The terms are the same; the library chooses the
order of the sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowtide.texpr import expr as ex
from lowtide.texpr.algebra import at_indices, over_numbers
from lowtide.texpr.expr import Apply, Def, Expr, Load, Program, Reduce
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.sizes import elements, elements_held, likely, points

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
) -> tuple[Program, frozenset[str]]:
    """See the module's text."""
    work = _Work(program, hints, is_librarys)
    defs: dict[str, Def] = {}
    for d in program.defs.values():
        for made in work.apart(d):
            defs[made.name] = made
    return _without_copies(dataclasses.replace(program, defs=defs), frozenset(work.names))


def _without_copies(program: Program, names: frozenset[str]) -> tuple[Program, frozenset[str]]:
    """A product that is only read to be turned round is written as its reader is."""
    readers: dict[str, list[Def]] = {}
    for d in program.defs.values():
        for source in {load.source for load in ex.loads(d.expr)}:
            readers.setdefault(source, []).append(d)
    roots = {*program.outputs, *program.checks}
    defs = dict(program.defs)
    for name in sorted(names - roots):
        d, found = defs[name], readers.get(name, [])
        turned = _turned(d, found[0]) if len(found) == 1 else None
        if turned is not None:
            del defs[name]
            defs[turned.name] = turned
            names = names - {name} | {turned.name}
    return dataclasses.replace(program, defs=defs), names


def _turned(d: Def, reader: Def) -> Def | None:
    """The product as the whole value of its reader, if that has it with other axes in front."""
    load = reader.expr
    axes = (*d.axes, *reader.axes)
    if not isinstance(load, Load) or reader.adds_to or any(a.extent.const == 1 for a in axes):
        return None
    at = dict(zip(load.index, d.axes, strict=True))
    walked = [as_index(a) for a in reader.axes]
    if set(at) != set(walked) or len(d.axes) != len(reader.axes):
        return None
    return dataclasses.replace(reader, axes=tuple(at[i] for i in walked), expr=d.expr)


def has_large_product(program: Program, hints: Mapping[str, int]) -> bool:
    """Is there a sum of so many products that it matters whose it is?"""
    for d in program.defs.values():
        e = d.expr
        is_sum = isinstance(e, Reduce) and e.fn == "sum" and d.dtype.name in DTYPES
        if is_sum and points((*d.axes, *_reduced(d)), hints) >= LARGE:
            return True
    return False


class _Work:
    def __init__(
        self, program: Program, hints: Mapping[str, int], is_librarys: Callable[[Product], bool]
    ) -> None:
        self.program = program
        self.hints = hints
        self.is_librarys = is_librarys
        self.names: list[str] = []
        self.stored: dict[Expr, str] = {}  # operands, over numbered axes
        self.held = elements_held(program, {*program.outputs, *program.checks}, hints)

    def apart(self, d: Def) -> list[Def]:
        """The definition, preceded by its operands."""
        found = self.sides(d)
        if found is None:
            return [d]
        left, right = found
        operands = [self.operand(d, left, "left"), self.operand(d, right, "right")]
        product = Product(
            dtype=d.dtype.name,
            batch=self.count(a for a in d.axes if a in left.free and a in right.free),
            rows=self.count(a for a in d.axes if a in left.free and a not in right.free),
            columns=self.count(a for a in d.axes if a in right.free and a not in left.free),
            terms=self.count(_reduced(d)),
            extra_bytes=sum(
                elements(made.shape, self.hints) * made.dtype.itemsize
                for made, _ in operands
                if made is not None
            ),
        )
        if not self.is_librarys(product):
            return [d]
        self.names.append(d.name)
        made = [x for x, _ in operands if x is not None]
        for x in made:
            self.stored[over_numbers(x.expr, x.axes)] = x.name
        body = ex.apply("mul", (operands[0][1], operands[1][1]), d.dtype)
        total = ex.reduce("sum", list(_reduced(d)), body, d.dtype)
        return [*made, dataclasses.replace(d, expr=total)]

    def count(self, axes: Iterable[Axis]) -> int:
        """Their points at the sizes of the first call."""
        return math.prod(likely(a.extent, self.hints) for a in axes)

    def sides(self, d: Def) -> tuple[Expr, Expr] | None:
        """The two factors of a product of matrices."""
        e = d.expr
        if not isinstance(e, Reduce) or e.fn != "sum" or d.dtype.name not in DTYPES or d.adds_to:
            return None
        body = e.body
        if body.dtype is not d.dtype or not isinstance(body, Apply) or body.fn != "mul":
            return None
        # as they are multiplied: other factors first might overflow, or underflow
        first, second = body.args
        mine, theirs = ({a for a in d.axes if a in side.free} for side in (first, second))
        if not (mine - theirs and theirs - mine and first.dtype is second.dtype):
            return None
        if not all(a in first.free and a in second.free for a in _reduced(d)):
            return None
        has_batch = any(a in first.free and a in second.free for a in d.axes)
        if elements(d.shape, self.hints) > self.held * (1 if has_batch else ROOM):
            return None
        return (first, second) if self.fits(d, first) and self.fits(d, second) else None

    def fits(self, d: Def, side: Expr) -> bool:
        """Is an operand no value of pairs?"""
        axes = [a for a in (*d.axes, *_reduced(d)) if a in side.free]
        return side.free <= {*axes} and elements([a.extent for a in axes], self.hints) <= self.held

    def operand(self, d: Def, side: Expr, name: str) -> tuple[Def | None, Expr]:
        """What must be stored for an operand, and how the product reads it."""
        axes = [a for a in (*d.axes, *_reduced(d)) if a in side.free]
        if isinstance(side, Load) and _is_plain(side, axes):
            return None, side
        order = next(
            (
                [a for a in _in_order(load) if a in side.free]
                for load in ex.loads(side)
                if load.free == side.free and _is_plain(load, axes)
            ),
            axes,
        )
        known = self.stored.get(over_numbers(side, order))
        at = [as_index(a) for a in order]
        if known is not None:
            return None, ex.load(known, at, d.dtype)
        fresh = [Axis(a.name, a.extent) for a in order]
        expr = at_indices(side, {a: as_index(b) for a, b in zip(order, fresh, strict=True)})
        label = f"{d.name}_{name}"
        made = Def(name=label, axes=tuple(fresh), expr=expr, loc=d.loc, op=d.op)
        return made, ex.load(label, at, d.dtype)


def _reduced(d: Def) -> Sequence[Axis]:
    assert isinstance(d.expr, Reduce)
    return d.expr.axes


def _is_plain(load: Load, axes: Sequence[Axis]) -> bool:
    """Does it walk through memory along plain axes?"""
    at = {as_index(a) for a in axes}
    walked = [i for i in load.index if i.const is None]
    return len(set(walked)) == len(walked) and at.issuperset(walked)


def _in_order(load: Load) -> list[Axis]:
    found: list[Axis] = []
    for i in load.index:
        found += [a for a in i.atoms() if isinstance(a, Axis)]
    return found
