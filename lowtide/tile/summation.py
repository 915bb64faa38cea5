"""The order in which a kernel adds up a float sum: equal orders give equal bits.

In:  a scheduled kernel and a definition of its group.
Out: an `Order`. Two are equal if each result combines the same terms, in the same order, by the
     same operations, whatever else the kernels do.

    for k by 144                                   (k by 144), k, fma
      nest (j vector x3, i unroll 8, k)       ->   whichever of i and j lies along the lanes: a lane
        t = sum[k](a[i, k] * b[k, j])              has one result

    nest (i unroll 4, k vector x1)            ->   k in 8 lanes: each of them has an eighth of a sum
      t = sum[k](a[i, k] * b[i, k])
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lowtide.errors import VerifyError
from lowtide.ir.dtypes import DType
from lowtide.texpr.expr import Apply, Def, Reduce
from lowtide.texpr.index import Axis
from lowtide.tile.group import RECOMPUTED, Group
from lowtide.tile.ir import Accumulate, Buffer, Kernel, Nest, Stage, paths
from lowtide.tile.products import LEAST_PRODUCT, as_product

KEPT = "kept"  # a loop over results, within one over the terms of each


@dataclass(frozen=True, slots=True)
class Order:
    """The order of a sum. `sweeps`: tiles of the grid and of sweeps that divide the sum, outermost
    first. `loops`: the loops of its nest, and which of them runs along the lanes. `fma`: a product
    is added without rounding it. `in_parts`: 1 if each tile has its own sum, 2 if that has parts,
    too. `rescaled`: the sum follows a running maximum. `dtypes`: those of the sum and its parts."""

    sweeps: tuple[tuple[int, int], ...]
    loops: tuple[tuple[object, ...], ...]
    fma: bool
    in_parts: int
    rescaled: bool
    dtypes: tuple[str, ...]


def recomputed(groups: Iterable[Group], elsewhere: Mapping[str, DType]) -> dict[str, DType]:
    """Return the values that several groups or other programs compute, by all their names, the sums
    inside of those, and the dtype in which tiles of each are added up."""
    defs = {n: d for g in groups for n, d in g.defs.items()}
    copied = {n.removesuffix(RECOMPUTED) for n in defs if n.endswith(RECOMPUTED)}
    found: dict[str, DType] = {}
    for n, d in defs.items():
        name = n.removesuffix(RECOMPUTED)
        dtype = elsewhere.get(name) or elsewhere.get(n.rpartition("r")[0])
        if dtype is None and name in copied:
            dtype = defs.get(name, d).tiles_dtype
        if dtype is not None:
            found[n] = dtype
    return found


def two_orders(
    kernels: Iterable[Kernel],
    groups: Iterable[Group],
    order: Callable[[Kernel, Def], Hashable] | None = None,
) -> set[str]:
    """Sums that several kernels add up, in orders that differ. `order`: `order_of`, or
    `order_in_blocks`."""
    found: dict[str, set[Hashable]] = {}
    for kernel, g in zip(kernels, groups, strict=True):
        for d in g.defs.values():
            if d.is_rounded:
                name = d.name.removesuffix(RECOMPUTED)
                found.setdefault(name, set()).add((order or order_of)(kernel, d))
    return {name for name, orders in found.items() if len(orders) > 1}


def order_in_blocks(kernel: Kernel, d: Def) -> Hashable:
    """Return a key of the order in which a kernel of blocks adds up a sum.

    Terms that come one after another have an order. So has a product of blocks, whose terms tensor
    cores add along the summed axis. Triton's layout decides about terms in one block: such a sum
    equals no other kernel's.
    """
    assert isinstance(d.expr, Reduce)
    points = {a: _points(a, tile) for a, tile in kernel.tiles()}
    kept, reduced = (
        tuple(a for a in axes if points.get(a, LEAST_PRODUCT) > 1) for axes in (d.axes, d.expr.axes)
    )
    if reduced:
        is_large = all(points.get(a, LEAST_PRODUCT) >= LEAST_PRODUCT for a in (*kept, *reduced))
        if not is_large or as_product(d.expr.fn, d.expr.body, kept, reduced) is None:
            return kernel.name, d.name
    number = {a: k for k, a in enumerate(d.expr.axes)}
    swept = {
        tuple(number[s.axis] for s in around if s.axis in number)
        for nest, around in paths(kernel.body)
        for w in nest.writes
        if isinstance(w, Accumulate) and w.buffer is kernel.values.get(d.name)
    }
    return bool(reduced), frozenset(swept)


def _points(a: Axis, tile: int | None) -> int:
    """Of an axis, how many a program has at a time; all of those that are not cut."""
    if tile is not None or a.extent.const is None:
        return tile or LEAST_PRODUCT
    return 1 << max(a.extent.const - 1, 0).bit_length()


def order_of(kernel: Kernel, d: Def) -> Order | None:
    """Return the order in which a kernel adds up a definition; None if it has no such float sum.
    Raises VerifyError if two nests differ."""
    if not d.is_rounded or d.name not in kernel.values:
        return None
    found = list(dict.fromkeys(_orders(kernel, d)))
    if len(found) > 1:
        raise VerifyError(f"kernel {kernel.name} adds up {d.name} in two orders")
    return found[0] if found else None


def _orders(kernel: Kernel, d: Def) -> Iterator[Order]:
    assert isinstance(d.expr, Reduce)
    number = {a: k for k, a in enumerate(d.expr.axes)}
    name, sums = d.name, list[Buffer]()
    while name in kernel.values:
        sums.append(kernel.values[name])
        name += "_part"
    grid = [(number[t.axis], t.tile or 0) for t in kernel.grid if t.axis in number]
    rescaled = len(sums) == 1 and any(
        isinstance(w, Stage) and w.buffer in sums for n, _ in paths(kernel.body) for w in n.writes
    )
    for nest, around in paths(kernel.body):
        for w in nest.writes:
            if isinstance(w, Accumulate) and w.buffer in sums:
                swept = [(number[s.axis], s.tile) for s in around if s.axis in number]
                yield Order(
                    sweeps=(*grid, *swept),
                    loops=_loops(nest, w, number, kernel),
                    fma=_is_product(nest, w),
                    in_parts=sums.index(w.buffer),
                    rescaled=rescaled,
                    dtypes=tuple(b.dtype.name for b in sums),
                )


def _loops(
    nest: Nest, w: Accumulate, number: Mapping[Axis, int], kernel: Kernel
) -> tuple[tuple[object, ...], ...]:
    """Return the loops of a nest from the first over terms on. Of loops over results, only their
    presence counts: an inner one means that sums are in memory."""
    found: list[tuple[object, ...]] = []
    for a in nest.order:
        if a not in w.reduced:
            if found and found[-1] != (KEPT,):
                found.append((KEPT,))
        else:
            lanes = (kernel.lanes, nest.vectors) if a is nest.vector else ()
            parts: list[object] = [("part",)] if a in nest.parts else []
            parts += [("block", nest.blocks[a])] if a in nest.blocks else []
            found.append((number.get(a), *lanes, nest.unroll.get(a, 1), *parts))
    return tuple(found)


def _is_product(nest: Nest, w: Accumulate) -> bool:
    e = w.expr
    return isinstance(e, Apply) and e.fn == "mul" and e not in nest.reads
