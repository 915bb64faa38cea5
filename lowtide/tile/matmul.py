"""Recognises a group that is one plain matrix product, which PyTorch's own may run faster.

In:  the definitions of a group and the strides of what it loads.
Out: a `Matmul`: the two operands and the result as strided matrices, or None.

    t[b, i, j] = sum[k](mul(x[b, i, k], w[j, k]))  ->  x as (b*i, k) times w as (k, j)

In half precision, the operands are widened and the sum is rounded:

    r[i, j] = sum[k](mul(f32(x[i, k]), f32(w[k, j])))    t[i, j] = bf16(r[i, j])

A bias in the first term, as `texpr/library` writes it, is a third operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lowtide.ir.dtypes import HALVES
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Apply, Cast, Def, Expr, Load, Reduce, Select
from lowtide.texpr.index import Axis, Index, as_index, product
from lowtide.texpr.library import in_first_term
from lowtide.texpr.places import address, merged, stride_along
from lowtide.tile.axes import own_axes

LEAST_POINTS = 1 << 18  # multiplications; below, a call into PyTorch costs more than it can gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """`source[offset + …]` seen as (batch…, rows, columns)."""

    source: str
    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """`bias`: of the size of the result, with strides of 0; without batch dims."""

    left: Matrix
    right: Matrix
    result: Matrix
    points: Index
    bias: Matrix | None = None

    @property
    def operands(self) -> tuple[Matrix, ...]:
        """All that is read."""
        return (self.left, self.right, *([] if self.bias is None else [self.bias]))

    def renamed(self, name_of: Callable[[str], str]) -> Matmul:
        """Return the same product of other tensors."""
        left, right, result, *bias = (
            replace(x, source=name_of(x.source))
            for x in (self.left, self.right, self.result, *self.operands[2:])
        )
        return replace(self, left=left, right=right, result=result, bias=bias[0] if bias else None)


def as_matmul(
    defs: Mapping[str, Def], strides: Mapping[str, tuple[Index, ...]], *, halves: bool = False
) -> Matmul | None:
    """Return the product that a group is, or None. `halves`: products of bf16 and f16 count, too.

    The sum of such a product is no value: the caller must not store it.
    """
    found = _sum_of(defs, halves)
    if found is None:
        return None
    d, e, (x, y), added = found
    terms = list(e.axes)
    kept = own_axes(d)
    in_x, in_y = x.free, y.free
    if not (in_x.issuperset(terms) and in_y.issuperset(terms) and set(kept) <= in_x | in_y):
        return None
    batch = [a for a in kept if a in in_x and a in in_y]
    left, right = ([a for a in kept if a in s and a not in batch] for s in (in_x, in_y))
    if not left or not right:
        return None
    here = ex.load(d.name, [as_index(a) for a in d.axes], d.dtype)
    parts = (
        _matrix(x, batch, left, terms, strides),
        _matrix(y, batch, terms, right, strides),
        _matrix(here, batch, left, right, strides),
    )
    if any(p is None for p in parts):
        return None
    if any(1 not in (m.strides[-2].const, m.strides[-1].const) for m in parts if m is not None):
        return None
    a, b, c = parts
    assert a is not None
    assert b is not None
    assert c is not None
    bias = _matrix(added, [], left, right, strides) if added is not None else None
    if added is not None and (bias is None or batch):
        return None
    if c.strides[-1].const != 1:  # some products are slow into columns
        a, b, c = (_transposed(m) for m in (b, a, c))
        bias = _transposed(bias) if bias is not None else None
    points = product(z.extent for z in (*kept, *terms))
    return Matmul(left=a, right=b, result=c, points=points, bias=bias)


def _sum_of(
    defs: Mapping[str, Def], halves: bool
) -> tuple[Def, Reduce, tuple[Load, Load], Load | None] | None:
    """Return the result of a group, its sum, the two factors and the bias; None if it is no
    product."""
    made = list(defs.values())
    d, e = made[-1], made[0].expr
    if not isinstance(e, Reduce) or e.fn != "sum":
        return None
    body, bias = _without_bias(e)
    if not isinstance(body, Apply) or body.fn != "mul":
        return None
    if bias is not None and len(made) > 1:
        return None
    x, y = (_widened(side, d) for side in body.args)
    added = _widened(bias, d) if bias is not None else None
    if len(made) == 1:
        is_product = d.dtype.name in ("f32", "f64", *HALVES)
    else:
        is_product = halves and d.dtype.name in HALVES and _is_rounding(made)
    if not is_product or not (isinstance(x, Load) and isinstance(y, Load)):
        return None
    if added is None:
        return d, e, (x, y), None
    return (d, e, (x, y), added) if isinstance(added, Load) else None


def _without_bias(e: Reduce) -> tuple[Expr, Expr | None]:
    """Return the terms of a sum, and what `in_first_term` has added to the first one."""
    body = e.body
    if not isinstance(body, Apply) or body.fn != "add":
        return body, None
    term, added = body.args
    value = added
    while isinstance(value, Select):
        value = value.yes
    is_bias = in_first_term(value, e.axes) is added
    return (term, value) if is_bias else (body, None)


def _is_rounding(made: list[Def]) -> bool:
    """Return whether the second definition is the first, rounded to the dtype of one op's
    result. A program that widens its operands itself wants a sum in float32; PyTorch may add
    parts in less."""
    if len(made) != 2:
        return False
    s, d = made
    if (s.op, s.loc) != (d.op, d.loc):
        return False
    if not isinstance(d.expr, Cast) or not isinstance(d.expr.arg, Load) or d.axes != s.axes:
        return False
    own = tuple(as_index(0 if a.extent.const == 1 else a) for a in s.axes)
    at = tuple(as_index(0) if a.extent.const == 1 else i
               for a, i in zip(s.axes, d.expr.arg.index, strict=True))  # fmt: skip
    return d.expr.arg.source == s.name and s.dtype.name == "f32" and at == own


def _widened(side: Expr, d: Def) -> Expr:
    """Return the operand before a cast from the dtype of the result to float32, else the
    operand."""
    if isinstance(side, Cast) and side.arg.dtype is d.dtype and side.dtype.name == "f32":
        return side.arg
    return side


def _matrix(
    load: Load,
    batch: list[Axis],
    rows: list[Axis],
    columns: list[Axis],
    strides: Mapping[str, tuple[Index, ...]],
) -> Matrix | None:
    offset = address(load, strides)
    steps: dict[Axis, Index] = {}
    for a in (*batch, *rows, *columns):
        step = stride_along(offset, a)
        if step is None:
            return None
        steps[a] = step
        offset = offset - as_index(a) * step
    if load.free - set(steps) or any(ax in offset.atoms() for ax in steps):
        return None
    down, along = merged(rows, steps), merged(columns, steps)
    if down is None or along is None:
        return None
    return Matrix(
        source=load.source,
        sizes=(*(a.extent for a in batch), down[0], along[0]),
        strides=(*(steps[a] for a in batch), down[1], along[1]),
        offset=offset,
    )


def _transposed(m: Matrix) -> Matrix:
    sizes, strides = ((*x[:-2], x[-1], x[-2]) for x in (m.sizes, m.strides))
    return Matrix(source=m.source, sizes=sizes, strides=strides, offset=m.offset)
