"""Finds outputs of kernels that may take the memory of an operand.

In:  the planned kernels of a program, in order, and the memory layouts of its tensors.
Out: for each output, the operands of the same dtype and layout of which every element is read
     before the output's element overwrites it.

    y[i, j] = relu(x[i, j] * a[j])              y over x: each point reads x only where it writes y
    m[i] = max[j](x[i, j]); y[i, j] = x - m     y over x: a tile reads its rows, then writes them
    y[i, j] = x[i, j] + x[i, j - 1]             no: the next point reads the same x, too
    y[i, j] = x[i, j] * s; z[j] = sum[i](x)     no, if z is computed in a later nest or kernel
    y[i, j] = s * 2; z[i, j] = x[i, j] + 1      no: the nest may write y before it reads x
    s[i] = sum[j](x[i, j]); y[i, j] = s[i]      y over x, if y is computed in a later kernel

Invariant: an operand is overwritten only if this is shown to be legal. It is not for kernels that
may run twice (`checks_nan`, timed products), or for reads in the prologue or the epilogue.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowtide.codegen.reads import tensors_of
from lowtide.ir.dtypes import DType
from lowtide.texpr.expr import Def, Expr, Input, Load
from lowtide.texpr.index import Axis, Index, product, row_major, the_axis
from lowtide.texpr.orders import Order, permuted, strides_in
from lowtide.tile.ir import Kernel, Nest, Stage, Store, Sweep, Write, paths, reached

Path = tuple[Sweep, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of a tensor without gaps. `sizes`: outermost first. `order`: the dim of each."""

    dtype: DType
    sizes: tuple[Index, ...]
    order: Order


def layouts(inputs: Mapping[str, Input], defs: Mapping[str, Def]) -> dict[str, Layout]:
    """Return the layouts of tensors, except of inputs with gaps or overlapping elements."""
    found: dict[str, Layout] = {}
    for name, i in inputs.items():
        plain = tuple(range(len(i.shape)))
        order = i.order or plain
        if i.strides == (row_major(i.shape) if order == plain else strides_in(i.shape, order)):
            found[name] = Layout(i.dtype, permuted(i.shape, order), order)
    for name, d in defs.items():
        found[name] = Layout(d.dtype, d.shape, tuple(range(len(d.shape))))
    return found


def replaceable(
    kernels: Sequence[Kernel],
    tensors: Mapping[str, Layout],
    inputs: Collection[str],
    never: Collection[str],
) -> dict[str, tuple[str, ...]]:
    """Return for each output the operands whose memory it may take, and those of `inputs` that only
    earlier kernels read. `never`: the names of kernels that a product of PyTorch's may replace: it
    reads operands while it writes."""
    found: dict[str, tuple[str, ...]] = {}
    later: set[str] = set()
    read = [[n for n in tensors_of(k) if n not in k.outputs] for k in kernels]
    for number, (kernel, reads) in reversed([*enumerate(zip(kernels, read, strict=True))]):
        before = dict.fromkeys(n for names in read[:number] for n in names)
        ended = [n for n in before if n in inputs and n not in later and n not in reads]
        may_overwrite = kernel.name not in never and not kernel.checks_nan
        operands = [n for n in reads if n not in later] if may_overwrite else []
        for output in kernel.outputs:
            places = [n for n in operands if _fits(kernel, output, n, tensors)]
            places += [n for n in ended if _is_as_large(output, n, tensors)]
            if places:
                found[output] = tuple(places)
        later.update(reads)
    return found


def _is_as_large(output: str, source: str, tensors: Mapping[str, Layout]) -> bool:
    a, b = tensors.get(output), tensors.get(source)
    if a is None or b is None or a.dtype is not b.dtype:
        return False
    return product(a.sizes) == product(b.sizes)


def _fits(kernel: Kernel, output: str, source: str, tensors: Mapping[str, Layout]) -> bool:
    a, b = tensors.get(output), tensors.get(source)
    if a is None or b is None or (a.dtype, a.sizes) != (b.dtype, b.sizes):
        return False
    apart = (*kernel.prologue, *kernel.epilogue)  # not ordered with the tiles of other threads
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
    # Another write of the nest may read the operand after the store, unless the store reads it too.
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
    source: Layout,
) -> bool:
    """Return whether a nest's loads come before the store overwrites their elements. `distance`:
    number of nests from the storing nest to this one. `around`: the sweeps around both nests."""
    if not loads or distance > 0:
        return not loads
    found = [_plain(load.index, source) for load in loads]
    if distance == 0:  # of two loads of an element, one may come after the store
        return len(loads) == 1 and found[0] == list(axes)
    apart = [*grid, *(s.axis for s in around)]  # tiles at other places of these axes are disjoint
    places = {a: k for k, a in enumerate(axes)}
    return all(the_axis(load.index[source.order[places[a]]]) is a for load in loads for a in apart)


def _common(a: Path, b: Path) -> Path:
    return tuple(s for s in a if any(s is other for other in b))


def _plain(index: Sequence[Index], tensor: Layout) -> list[Axis | None] | None:
    """Return the axis of each dim, in memory order; a dim of size 1 indexed by 0 has none. None
    if another index is not a plain axis, or if an axis occurs twice."""
    found: list[Axis | None] = []
    for size, i in zip(tensor.sizes, permuted(tuple(index), tensor.order), strict=True):
        axis = the_axis(i)
        if axis is None and not (i.const == 0 and size.const == 1):
            return None
        found.append(axis)
    known = [a for a in found if a is not None]
    return found if len(set(known)) == len(known) else None


def _loads(nest: Nest, source: str, writes: Sequence[Write] = ()) -> Iterator[Load]:
    """Yield the distinct loads of a tensor by a nest, or by some of its `writes`. A value that the
    nest reads from a buffer is not loaded."""
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
