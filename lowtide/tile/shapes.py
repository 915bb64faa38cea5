"""The work of a program of blocks for given tiles: the `Shape` that `predict` takes.

In:  the items of a kernel, the points of each axis in a program, the axes that it sweeps.
Out: plain numbers.

    s[i, j] = sum[c](q[i, c] * k[j, c])     i by 64 in the grid; j by 32, c by 32 swept, 1024 each
    ->  a product of 64 x 32 by 32, visited 32 * 32 times; 12 KiB of float32 read at each visit
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lowtide.ir.dtypes import BY_NAME, DType
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Cast, Expr, Load, Reduce
from lowtide.texpr.index import Axis
from lowtide.texpr.places import address, stride_along
from lowtide.tile.items import Context, Item, node_cost
from lowtide.tile.predict import Part, Product, Shape
from lowtide.tile.products import LEAST_PRODUCT, BlockProduct, as_product, half_of

LOAD_OPERATIONS = 4  # of a load at each point: its place, its mask
SECTOR = 32  # bytes that memory gives at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """`points`: of each axis that is a block, how many a program has at a time; `programs`: how
    many there are; `swept`: of each axis that a program goes through, in how many steps."""

    points: Mapping[Axis, int]
    programs: int
    swept: Mapping[Axis, int]

    def product(self, axes: Iterable[Axis]) -> int:
        """Points of a block of these axes."""
        return math.prod(self.points.get(a, 1) for a in axes)

    def dims(self, axes: Iterable[Axis]) -> tuple[Axis, ...]:
        """Of these axes those that are blocks."""
        return tuple(a for a in axes if self.points.get(a, 1) > 1)


def shape_of(items: Iterable[Item], tiles: Tiles, ctx: Context) -> Shape:
    """See the module's text."""
    items = list(items)
    reduces = [i for i in items if i.kind == "reduce"]
    wide = [i for i in reduces if product_in(i, tiles) is None]
    return Shape(
        programs=tiles.programs,
        parts=tuple(_part(i, tiles, ctx) for i in items),
        held_words=sum(_accumulator_registers(i, tiles) for i in reduces),
        folds=sum(len(tiles.dims(i.reduced)) for i in wide),
        moved_bytes=_moved_bytes(items, ctx),
    )


def product_in(item: Item, tiles: Tiles) -> BlockProduct | None:
    """Return the product of blocks that an item is with these tiles, else None."""
    if item.kind != "reduce" or not isinstance(item.d.expr, Reduce):
        return None
    kept, reduced = tiles.dims(item.unreduced), tiles.dims(item.reduced)
    if any(tiles.points[a] < LEAST_PRODUCT for a in (*kept, *reduced)):
        return None
    return as_product(item.d.expr.fn, item.body, kept, reduced)


def _part(item: Item, tiles: Tiles, ctx: Context) -> Part:
    product = product_in(item, tiles)
    both = frozenset((product.rows, product.columns)) if product is not None else frozenset[Axis]()
    layers: dict[int, float] = {}
    nodes = [n for n in ex.walk(item.body) if product is None or not both <= n.free]
    for node in nodes:  # but for what the units do
        operations = LOAD_OPERATIONS if _is_read(node, ctx) else node_cost(node)
        if operations:
            here = tiles.product(node.free)
            layers[here] = layers.get(here, 0.0) + operations
    reads = {x for x in nodes if _is_read(x, ctx)}
    held = nodes if product is None else [n for n in nodes if not _is_only_read(n, ctx)]
    return Part(
        visits=math.prod(tiles.swept.get(a, 1) for a in item.loops),
        layers=tuple(sorted(layers.items())),
        live_words=_live_words(held, tiles),
        read_bytes=sum(_read_bytes(x, tiles, ctx) for x in reads),
        product=_handed(product, item, tiles, ctx) if product is not None else None,
        doubles=item.body.dtype.name == "f64",
    )


def _live_words(nodes: list[Expr], tiles: Tiles) -> int:
    """Return the most words that values take at once. They are computed in this order, and each is
    live until its last read."""
    last = {child: k for k, node in enumerate(nodes) for child in node.children}
    words = {n: tiles.product(n.free) * _words(n.dtype) if n.free else 0 for n in nodes}
    live = most = 0
    for k, node in enumerate(nodes):
        live += words[node]
        most = max(most, live)
        live -= sum(words.get(c, 0) for c in set(node.children) if last[c] == k)
    return most


def _handed(product: BlockProduct, item: Item, tiles: Tiles, ctx: Context) -> Product:
    half = half_of(product)
    rows, columns, inner = (tiles.points[a] for a in (product.rows, product.columns, product.inner))
    dtype = half if half is not None else item.body.dtype
    sides = ((product.left, rows * inner), (product.right, inner * columns))
    reads = {x for side, _ in sides for x in ex.loads(side) if _is_read(x, ctx)}
    made = sum(n for side, n in sides if not _is_only_read(side, ctx))
    return Product(
        rows=rows,
        columns=columns,
        inner=inner,
        dtype=dtype.name,
        read_bytes=sum(tiles.product(x.free) * x.dtype.itemsize for x in reads),
        made_bytes=made * dtype.itemsize,
    )


def _is_only_read(e: Expr, ctx: Context) -> bool:
    """Return whether the expression is one block as memory has it, which goes to shared memory."""
    while isinstance(e, Cast):
        e = e.arg
    return _is_read(e, ctx)


def _is_read(e: Expr, ctx: Context) -> bool:
    """Return whether the expression is a load from memory."""
    return isinstance(e, Load) and e.source not in ctx.inner


def _words(dtype: DType) -> int:
    return max(BY_NAME[dtype.compute].itemsize // 4, 1)


def _accumulator_registers(item: Item, tiles: Tiles) -> int:
    """Registers of an accumulator: wide, unless it is a product."""
    axes = item.unreduced if product_in(item, tiles) is not None else item.loops
    twin = 3 if item.d.expr.dtype is not item.body.dtype else 1  # a place, and the best value
    return tiles.product(axes) * _words(item.body.dtype) * twin


def _read_bytes(load: Expr, tiles: Tiles, ctx: Context) -> int:
    """Return the bytes that memory transfers for a block, in whole sectors."""
    assert isinstance(load, Load)
    itemsize = load.dtype.itemsize
    offset = address(load, ctx.strides)
    waste = SECTOR / itemsize
    for a in tiles.dims(load.free):
        step = stride_along(offset, a)
        if step is not None and step.const is not None:
            apart = max(abs(step.const), 1)
            run = max(SECTOR / (tiles.points[a] * itemsize), 1.0)
            waste = min(waste, max(apart, run))
    return math.ceil(tiles.product(load.free) * itemsize * waste)


def _moved_bytes(items: Iterable[Item], ctx: Context) -> int:
    """Return each tensor once."""
    found: dict[object, int] = {}
    for item in items:
        for x in ex.loads(item.body):
            if _is_read(x, ctx):
                size = math.prod(map(ctx.extent, x.free)) * x.dtype.itemsize
                found[x.source] = max(found.get(x.source, 0), size)
        if item.kind == "store":
            found[item] = math.prod(map(ctx.extent, item.loops)) * item.d.dtype.itemsize
    return sum(found.values())
