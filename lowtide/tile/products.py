"""Products of blocks: sums that a GPU's tensor cores compute.

In:  a reduction's function, body and axes. Out: a `BlockProduct`: the factor of each side.

    sum[k](a[i, k] * b[k, j])               rows i: a    columns j: b
    sum[k](f32(a[i, k]) * f32(b[k, j]))     the same, of halves if a and b are
    sum[k]((a[i, k] * b[k, j]) * c[i, k])   none: a * c may overflow, where a * b does not
"""

from __future__ import annotations

from dataclasses import dataclass

from lowtide.ir.dtypes import HALVES, DType
from lowtide.texpr.expr import Apply, Cast, Expr
from lowtide.texpr.index import Axis

LEAST_PRODUCT = 16  # what the units for products take at least


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProduct:
    """`sum[k](left[rows, k] * right[k, columns])`: each factor lacks the other side's axis."""

    rows: Axis
    columns: Axis
    inner: Axis
    left: Expr
    right: Expr


def as_product(
    fn: str, body: Expr, kept: tuple[Axis, ...], reduced: tuple[Axis, ...]
) -> BlockProduct | None:
    """Return a sum of products over one axis, whose two other axes are on one side each; None for
    others.

    `kept`, `reduced`: the axes that are blocks. The first of `kept` is that of the rows.
    """
    if fn != "sum" or len(reduced) != 1 or len(kept) != 2:
        return None
    if not (isinstance(body, Apply) and body.fn == "mul" and body.dtype.is_float):
        return None
    (rows, columns), (k,) = kept, reduced
    for left, right in (body.args, body.args[::-1]):
        is_left = {rows, k} <= left.free and columns not in left.free
        if is_left and {columns, k} <= right.free and rows not in right.free:
            return BlockProduct(rows=rows, columns=columns, inner=k, left=left, right=right)
    return None


def half_of(product: BlockProduct) -> DType | None:
    """Return the 16-bit dtype of both operands, if each is one value that is only widened for the
    sum.

    Tensor cores multiply such numbers exactly, and add in float32.
    """
    found = {_half(side) for side in (product.left, product.right)}
    return found.pop() if len(found) == 1 else None


def _half(side: Expr) -> DType | None:
    if not isinstance(side, Cast) or side.dtype.name != "f32":
        return None
    return side.arg.dtype if side.arg.dtype.name in HALVES else None
