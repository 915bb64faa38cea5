"""Products of blocks: sums that the units for products of a GPU take.

In:  a reduction's function, body and axes. Out: a `BlockProduct`: the factors of each side.

    sum[k](a[i, k] * b[k, j])               rows i: a    columns j: b
    sum[k](f32(a[i, k]) * f32(b[k, j]))     the same, of halves if a and b are
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.dtypes import DType
from lowtide.texpr.algebra import factors
from lowtide.texpr.expr import Cast, Expr
from lowtide.texpr.index import Axis

HALVES = ("bf16", "f16")
LEAST_PRODUCT = 16  # what the units for products take at least


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProduct:
    """`sum[k](left[rows, k] * right[k, columns])`: factors without the other side's axis."""

    rows: Axis
    columns: Axis
    over: Axis
    left: tuple[Expr, ...]
    right: tuple[Expr, ...]


def as_product(
    fn: str, body: Expr, kept: tuple[Axis, ...], over: tuple[Axis, ...]
) -> BlockProduct | None:
    """A sum of products over one axis that leaves two, each on one side; None for any other.

    `kept`, `over`: of the reduction's axes, those that are blocks. The first of `kept` is that of
    the rows."""
    if fn != "sum" or len(over) != 1 or len(kept) != 2 or not body.dtype.is_float:
        return None
    parts = list(factors(body))
    for rows, columns in (kept, kept[::-1]):
        left = tuple(f for f in parts if rows in f.free)
        right = tuple(f for f in parts if rows not in f.free)
        if not left or not any(columns in f.free for f in right):
            continue
        if any(columns in f.free for f in left):
            continue
        if any(over[0] in f.free for f in left) and any(over[0] in f.free for f in right):
            first, second = (left, right) if rows is kept[0] else (right, left)
            return BlockProduct(
                rows=kept[0], columns=kept[1], over=over[0], left=first, right=second
            )
    return None


def half_of(product: BlockProduct) -> DType | None:
    """The half type that both sides are numbers of, if each is one value, only widened for the sum.

    The units for products multiply such numbers exactly, and add up in float32."""
    found = {_half(side) for side in (product.left, product.right)}
    return found.pop() if len(found) == 1 else None


def _half(side: tuple[Expr, ...]) -> DType | None:
    (only, *rest) = side
    if rest or not isinstance(only, Cast) or only.dtype.name != "f32":
        return None
    return only.arg.dtype if only.arg.dtype.name in HALVES else None
