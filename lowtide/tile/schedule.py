"""Schedules nests: loop order, vectors per block, points in registers.

In:  a planned kernel. Out: the same kernel, every nest with `order`, `vectors`, `unroll`.

    sum over k of a[i,k] * b[k,j]  ->  j by 3 vectors, i by 8 rows: 24 accumulators, k innermost
    min over j and over i of d     ->  i by 4 rows, j along the lanes; the other minimum in L1
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from lowtide.texpr.expr import Apply, Expr, Load
from lowtide.texpr.index import Axis, Index, as_index
from lowtide.texpr.places import address, stride_along
from lowtide.texpr.sizes import likely
from lowtide.tile.begin import begin_in_registers
from lowtide.tile.ir import Accumulate, Kernel, Nest, Stage, reached
from lowtide.tile.items import along_lanes, breaks_along, cost, node_cost
from lowtide.tile.parts import sum_in_parts, summed_inside
from lowtide.tile.target import Target

# rows x vectors of a register tile, by the number of accumulators that fit; best first
REGISTER_TILES = {24: ((8, 3), (6, 4), (12, 2), (20, 1)), 12: ((6, 2), (4, 3), (3, 4), (10, 1))}
HEAVY = 12  # a body of this many operations keeps the pipeline full by itself
LIGHT = 6  # a body of more operations needs registers of its own
TERMS = 32  # a float sum in a register is added up in parts where there are more,
FEW = 16  # of at least so many
SOME_PARTS = 16  # of a loop of unknown length
PARTED = 8  # accumulators at most that get partial sums in blocks: there are registers for both
WHOLE_TERMS = 1024  # terms that more accumulators than that add up one after another
LONG_CODE = 512  # operations and elements read, of all points of a register tile: C compilers take
# seconds for more, and there is work enough in fewer points


def schedule(
    kernel: Kernel,
    hints: Mapping[str, int],
    target: Target,
    strides: Mapping[str, tuple[Index, ...]],
) -> Kernel:
    """Choose for every nest, in place. Readers come first: they say how a buffer should lie."""
    nests = list(kernel.nests())
    for nest in nests:
        _choose(nest, kernel, hints, target, strides)
    for nest in sum_in_parts(kernel):
        _choose(nest, kernel, hints, target, strides)
    for nest in nests:
        nest.transposed = _across_the_grain(nest, kernel, strides)
        panels = {w.buffer.panel for w in nest.writes if isinstance(w, Stage)}
        lasts = {w.buffer.last for w in nest.writes if isinstance(w, Stage)}
        if len(panels) == 1 and lasts == {nest.vector} and not _sums(nest):
            nest.vectors = max(panels.pop() // kernel.lanes, 1)
        if _sums(nest):
            _choose_parts(nest, kernel)
    begin_in_registers(kernel)
    return kernel


def _choose_parts(nest: Nest, kernel: Kernel) -> None:
    """Sets `parts` and `blocks`, so that no float sum in a register gets more than `TERMS` terms
    one after another, if it can be."""
    sums = [w for w in _sums(nest) if w.fn == "sum" and w.expr.dtype.is_float]
    reduced = {a for w in sums if summed_inside(nest, w) for a in w.reduced}
    kept = [n for a, n in nest.unroll.items() if a not in reduced]
    has_blocks = math.prod(kept) * nest.vectors <= PARTED
    most, few = (TERMS, FEW) if has_blocks else (WHOLE_TERMS, FEW // 4)
    tiles = {a: tile for a, tile in kernel.tiles() if tile}
    parts: set[Axis] = set()
    inside: Axis | None = None
    # of the loops inside, since the last partial sum
    terms = math.prod(a.extent.const or 1 for a in nest.full if a in reduced)
    for a in reversed([a for a in nest.order if a in reduced and a not in nest.full]):
        n = tiles.get(a) or a.extent.const
        width = kernel.lanes * nest.vectors if a is nest.vector else 1
        steps = -(-n // width) if n else None
        if inside is not None and terms >= few and terms * (steps or most) > most:
            parts.add(inside)
            terms = 1
        if has_blocks and (steps is None or terms * steps > most):
            block = most // terms
            nest.blocks[a] = max(block // nest.unroll.get(a, 1), 1)
            terms = -(-steps // block) if steps else SOME_PARTS
        elif steps is None:
            parts.add(a)
            terms = 1
        else:
            terms *= steps
        inside = a
    nest.parts = frozenset(parts)


def _cost_here(e: Expr, nest: Nest) -> int:
    """Return the operations that the nest does itself, without those whose results a buffer has."""
    return sum(node_cost(node) for node in reached(e, nest.reads) if node not in nest.reads)


def _sums(nest: Nest) -> list[Accumulate]:
    return [w for w in nest.writes if isinstance(w, Accumulate)]


def _across_the_grain(
    nest: Nest, kernel: Kernel, strides: Mapping[str, tuple[Index, ...]]
) -> Axis | None:
    """Return the axis along which memory is contiguous, if the nest computes a value into a buffer
    in which the other axis is; else None. It reads no buffer, whose tiles begin elsewhere."""
    if len(nest.writes) != 1 or not isinstance(w := nest.writes[0], Stage):
        return None
    last = w.buffer.last
    if len(nest.axes) != 2 or set(w.buffer.axes) != set(nest.axes) or last is None or nest.reads:
        return None
    if w.expr.dtype is not w.buffer.dtype or w.expr.dtype.name not in ("f32", "f64"):
        return None
    (along,) = {*nest.axes} - {last}
    found = [e for e in reached(w.expr, ()) if isinstance(e, Load)]
    if (w.buffer.panel and w.buffer.panel % kernel.lanes) or any(
        e.source in kernel.values or any(True for _ in e.children) for e in found
    ):
        return None
    offsets = [address(e, strides) for e in found]
    across = [stride_along(o, last) for o, e in zip(offsets, found, strict=True) if last in e.free]
    lines = [o for o, e in zip(offsets, found, strict=True) if along in e.free]
    is_strided = any(s is not None and s.const not in (0, 1) for s in across)
    is_contiguous = all(_is_line(o, along) for o in lines)
    return along if lines and is_strided and is_contiguous and None not in across else None


def _is_line(offset: Index, along: Axis) -> bool:
    """Return whether memory is contiguous along the axis, except at a few points."""
    step = stride_along(offset, along)
    return bool(breaks_along(offset, along)) if step is None else step.const == 1


def _code_size(nest: Nest, kernel: Kernel, strides: Mapping[str, tuple[Index, ...]]) -> int:
    """Operations of one point of a register tile; a vector that is read element by element counts
    each of them."""
    v, total = nest.vector, 0
    for e in {node for w in nest.writes for node in reached(w.expr, nest.reads)}:
        total += 1
        if not isinstance(e, Load) or v is None or v not in e.free or e in nest.reads:
            continue
        if e.source in strides and along_lanes(
            address(e, strides), v, kernel.lanes
        ) is not as_index(1):
            total += kernel.lanes
    return total


def _choose(
    nest: Nest,
    kernel: Kernel,
    hints: Mapping[str, int],
    target: Target,
    strides: Mapping[str, tuple[Index, ...]],
) -> None:
    sums = _sums(nest)
    v = nest.vector
    nest.full = frozenset(a for a in nest.full if kernel.has_whole(a))
    rows = [a for a in nest.axes if a is not v and a not in nest.full]
    reduced = {a for w in sums for a in w.reduced}
    if not sums:
        nest.order = (*rows, *_some(v))
        nest.full = frozenset()
        return
    if v in reduced or v is None:
        _row_reduction(nest, sums, rows, v, hints, kernel, target)
        return
    kept = [a for a in rows if a not in reduced]
    inner = [a for a in rows if a in reduced]
    u = max(kept, key=lambda a: _points(a, kernel, hints), default=None)
    shared = _shared_rows(sums, v, kept)
    if shared:
        (u,) = shared
    held = math.prod(a.extent.const or 1 for a in nest.full)
    light = all(_cost_here(w.expr, nest) <= LIGHT for w in sums)
    tile_limit = target.accumulators // (held * len(sums)) * (3 if light else 2) // 3
    tile_limit = max(min(tile_limit, LONG_CODE // (held * _code_size(nest, kernel, strides))), 1)
    if u is None:
        nest.vectors = min(4, tile_limit, _vectors(v, kernel, hints))
    else:
        height, nest.vectors = _register_tile(u, v, tile_limit, kernel, hints, target)
        if height > 1:
            nest.unroll[u] = height
    outer = [a for a in kept if a is not u]
    nest.order = (*outer, *_some(v), *_some(u), *inner)
    for buffer in nest.reads.values():
        if len(buffer.axes) < 2:
            continue
        if buffer.last is v:
            buffer.panel = nest.vectors * kernel.lanes


def _shared_rows(sums: list[Accumulate], v: Axis, kept: list[Axis]) -> set[Axis]:
    """Return the axis that all vector loads lack, if it is one: its rows share these vectors."""
    found: set[Axis] = set()
    for w in sums:
        factors = w.expr.args if isinstance(w.expr, Apply) and w.expr.fn == "mul" else ()
        along = [f.free for f in factors if v in f.free]
        others = [f.free for f in factors if v not in f.free]
        if len(along) == 1 and len(others) == 1:
            found |= (others[0] - along[0]) & set(kept)
    return found if len(found) == 1 else set()


def _row_reduction(
    nest: Nest,
    sums: list[Accumulate],
    rows: list[Axis],
    v: Axis | None,
    hints: Mapping[str, int],
    kernel: Kernel,
    target: Target,
) -> None:
    kept_by_all = [a for a in rows if any(a not in w.reduced for w in sums)]
    u = max(kept_by_all, key=lambda a: _points(a, kernel, hints), default=None)
    others = [a for a in rows if a is not u]
    heavy = any(cost(w.expr) > HEAVY for w in nest.writes)
    whole = [a for a in kept_by_all if kernel.has_whole(a)]
    pair = _two_rows(sums[0], kept_by_all, whole, v) if len(nest.writes) == 1 else None
    if pair is not None:
        u, across = pair
        others = [a for a in rows if a not in pair]
        nest.full = frozenset({across})
        held = across.extent.const or 1
        height = min(8, max(target.accumulators // held, 1), _points(u, kernel, hints))
        if height > 1:
            nest.unroll[u] = height
    elif heavy:
        pass  # enough independent work in one row; more would only make the code long
    elif u is not None and _points(u, kernel, hints) >= 4:
        nest.unroll[u] = 4
    else:
        nest.vectors = 4 if v is not None and _vectors(v, kernel, hints) >= 4 else 1
    simple = all(isinstance(w, Accumulate | Stage) for w in nest.writes)
    if not simple:
        nest.vectors = 1
    first = [a for a in others if any(a not in w.reduced for w in sums)]
    then = [a for a in others if a not in first]
    nest.order = (*first, *_some(u), *then, *_some(v))


def _two_rows(
    w: Accumulate, kept: list[Axis], whole: list[Axis], v: Axis | None
) -> tuple[Axis, Axis] | None:
    """For a long sum of products: an axis of one factor, and a short `whole` one of the other."""
    if v is None or w.fn != "sum" or not isinstance(w.expr, Apply) or w.expr.fn != "mul":
        return None
    if not all(isinstance(f, Load) and v in f.free for f in w.expr.args):
        return None
    first, second = (f.free for f in w.expr.args)
    for mine, other in ((first, second), (second, first)):
        tall = [a for a in kept if a in mine and a not in other]
        short = [
            a for a in whole if a in other and a not in mine and 1 < (a.extent.const or 9) <= 8
        ]
        if tall and short:
            return max(tall, key=lambda a: a.extent.const or 1 << 30), short[-1]
    return None


def _register_tile(
    u: Axis, v: Axis, tile_limit: int, kernel: Kernel, hints: Mapping[str, int], target: Target
) -> tuple[int, int]:
    """Rows and vectors: the fewest operations and loads, those at the edges, too."""
    width, height = _vectors(v, kernel, hints), _points(u, kernel, hints)
    best: tuple[float, int, int] | None = None
    for rows, vectors in REGISTER_TILES[target.accumulators]:
        while rows * vectors > tile_limit and rows > 1:
            rows -= 1
        if rows * vectors > tile_limit:
            continue
        rest, beside = height % rows, width % vectors
        blocks = (width - beside) * _step_cost(rows, vectors) + beside * _step_cost(rows, 1)
        total = (height - rest) * blocks + rest * width * _step_cost(1, 1)
        key = (total, rows, vectors)
        if best is None or key < best:
            best = key
    return (best[1], best[2]) if best else (1, 1)


def _step_cost(rows: int, vectors: int) -> float:
    """Of a vector of a register tile: a multiplication, and its part of the elements and vectors
    that are loaded."""
    return 1 + (rows + vectors) / (rows * vectors)


def _points(a: Axis, kernel: Kernel, hints: Mapping[str, int]) -> int:
    n = likely(a.extent, hints)
    for axis, tile in kernel.tiles():
        if axis is a and tile:
            n = min(n, tile)
    return n


def _vectors(v: Axis, kernel: Kernel, hints: Mapping[str, int]) -> int:
    return -(-_points(v, kernel, hints) // kernel.lanes)


def _some(a: Axis | None) -> tuple[Axis, ...]:
    return () if a is None else (a,)
