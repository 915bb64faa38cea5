"""Finds results of kernels that may overwrite an operand: written where it was read.

In:  the planned kernels of a program, in order, and how its tensors lie. Out: for each result the
     tensors, of the same dtype and sizes, of which all elements that share a tile are read before
     the result's element takes their place.

    y[i, j] = relu(x[i, j] * a[j])              y over x: a point reads what it writes, no other
    m[i] = max[j](x[i, j]); y[i, j] = x - m     y over x: a tile reads its rows, then writes them
    y[i, j] = x[i, j] + x[i, j - 1]             not: the point beside it reads that x, too
    y[i, j] = x[i, j] * s; z[j] = sum[i](x)     not, where z is of a later nest or kernel
    y[i, j] = s * 2; z[i, j] = x[i, j] + 1      not: one nest may write y first, and then read x

Invariant: what is not shown to be legal is not. A kernel that may run twice (`checks_nan`), one
that is measured against another way, and one that reads it before or after all tiles are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowtide.codegen.reads import tensors_of
from lowtide.ir.dtypes import DType
from lowtide.texpr.expr import Def, Expr, Input, Load
from lowtide.texpr.index import Axis, Index, row_major, the_axis
from lowtide.texpr.orders import Order, permuted, strides_in
from lowtide.tile.ir import Kernel, Nest, Stage, Store, Sweep, Write, paths, reached

Path = tuple[Sweep, ...]


@dataclass(frozen=True, slots=True)
class Lying:
    """A tensor without gaps: its sizes as memory has them, the outermost first, and which of its
    dims each of these is."""

    dtype: DType
    sizes: tuple[Index, ...]
    order: Order


def lying(inputs: Mapping[str, Input], defs: Mapping[str, Def]) -> dict[str, Lying]:
    """How tensors lie; those with gaps, or whose elements are shared, are not among them."""
    found: dict[str, Lying] = {}
    for name, i in inputs.items():
        plain = tuple(range(len(i.shape)))
        order = i.order or plain
        if i.strides == (row_major(i.shape) if order == plain else strides_in(i.shape, order)):
            found[name] = Lying(i.dtype, permuted(i.shape, order), order)
    for name, d in defs.items():
        found[name] = Lying(d.dtype, d.shape, tuple(range(len(d.shape))))
    return found


def replaceable(
    kernels: Sequence[Kernel], tensors: Mapping[str, Lying], never: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """For each result, what it may take the place of. `never`: names of kernels of which nothing
    is known to happen once, in order."""
    found: dict[str, tuple[str, ...]] = {}
    later: set[str] = set()
    for kernel in reversed(kernels):
        reads = [n for n in tensors_of(kernel) if n not in kernel.outputs]
        if kernel.name not in never and not kernel.checks_nan:
            for output in kernel.outputs:
                places = [n for n in reads if n not in later and _fits(kernel, output, n, tensors)]
                if places:
                    found[output] = tuple(places)
        later.update(reads)
    return found


def _fits(kernel: Kernel, output: str, source: str, tensors: Mapping[str, Lying]) -> bool:
    a, b = tensors.get(output), tensors.get(source)
    if a is None or b is None or (a.dtype, a.sizes) != (b.dtype, b.sizes):
        return False
    apart = (*kernel.prologue, *kernel.epilogue)  # each thread has its own time for these
    if any(True for nest in apart for _ in _loads(nest, source)):
        return False
    stores = [
        (k, w, nest, around)
        for k, (nest, around) in enumerate(paths(kernel.body))
        for w in nest.writes
        if isinstance(w, Store) and w.target == output
    ]
    if len(stores) != 1 or output in [c.target for c in kernel.combines]:
        return False
    ((at, store, nest, around),) = stores
    axes = _plain(store.index, a)
    grid = [t.axis for t in kernel.grid]
    if axes is None or not {*nest.axes, *grid, *(s.axis for s in around)} <= {*axes}:
        return False
    # What another write reads after the store, if the store itself has not: it would be too late.
    if list(_loads(nest, source)) != list(_loads(nest, source, [store])):
        return False
    return all(
        _is_read_before(list(_loads(other, source)), k - at, axes, grid, _common(around, there), b)
        for k, (other, there) in enumerate(paths(kernel.body))
    )


def _is_read_before(
    loads: Sequence[Load],
    distance: int,
    axes: Sequence[Axis | None],
    grid: Sequence[Axis],
    around: Path,
    source: Lying,
) -> bool:
    """Are all elements that a nest loads still there? `distance`: how far behind the nest that
    stores it is; `around`: the sweeps that both are in."""
    if not loads or distance > 0:
        return not loads
    found = [_plain(load.index, source) for load in loads]
    if distance == 0:  # two loads of one place might stand before the store and behind it
        return len(loads) == 1 and found[0] == list(axes)
    apart = [*grid, *(s.axis for s in around)]  # other tiles read and write elsewhere
    places = {a: k for k, a in enumerate(axes)}
    return all(the_axis(load.index[source.order[places[a]]]) is a for load in loads for a in apart)


def _common(a: Path, b: Path) -> Path:
    return tuple(s for s in a if any(s is other for other in b))


def _plain(index: Sequence[Index], tensor: Lying) -> list[Axis | None] | None:
    """The axis of each dim as memory has them, each another one; None where it is no plain axis,
    but for the 0 of a dim of size 1."""
    found: list[Axis | None] = []
    for size, i in zip(tensor.sizes, permuted(tuple(index), tensor.order), strict=True):
        axis = the_axis(i)
        if axis is None and not (i.const == 0 and size.const == 1):
            return None
        found.append(axis)
    known = [a for a in found if a is not None]
    return found if len(set(known)) == len(known) else None


def _loads(nest: Nest, source: str, writes: Sequence[Write] = ()) -> Iterator[Load]:
    """The loads of a tensor, each once, that a nest does, or that some of its `writes` ask for:
    what it finds in a buffer it does not load."""
    written = [w.buffer for w in nest.writes if isinstance(w, Stage)]
    held: set[Expr] = set()
    if not nest.transposed:
        held = {e for e, b in nest.reads.items() if not any(b is w for w in written)}
    seen: set[Load] = set()
    for w in writes or nest.writes:
        for node in reached(w.expr, held):
            if node in held:
                continue
            if isinstance(node, Load) and node.source == source and node not in seen:
                seen.add(node)
                yield node
