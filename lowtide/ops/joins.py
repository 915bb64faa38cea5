"""Joins and borders: cat, stack, pad, triangles, grids: a select between loads by the index.

    cat([x, y])        →   t[i] = x[i] if i < N else y[i - N]                  x: [N], y: [M]
    pad(x, (1, 1))     →   t[i] = x[i - 1] if i >= 1 and i - 1 < N else 0

The index of a load whose value is dropped is clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lowtide.ir import dtypes
from lowtide.ir.effects import Effects
from lowtide.ops.operands import (
    Number,
    Size,
    check_fits,
    dim_of,
    is_list,
    number,
    promote_types,
    size_list,
)
from lowtide.ops.registry import op
from lowtide.ops.views import view
from lowtide.texpr import expr as ex
from lowtide.texpr.build import Builder, Unsupported, Val
from lowtide.texpr.expr import Expr
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.index_ranges import mod


def _is_made_of_others(b: Builder, x: Val) -> bool:
    """Not a constant: it may carry a gradient."""
    made = b.program.defs.get(x.name)
    return made is None or any(True for _ in ex.loads(made.expr))


def _common(xs: Sequence[Val]) -> Any:
    dtype = None
    for x in xs:
        dtype = promote_types(dtype, x.dtype)
    return dtype


@op(
    "cat",
    "(tensors: Tensor[], dim: int = 0) -> Tensor",
    "torch.cat torch.concat torch.concatenate",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_cat(b: Builder, tensors: Any, dim: Any) -> Val:
    """Tensors one after another along a dim."""
    given: list[Val] = list(tensors)
    if not given or any(x.ndim == 0 for x in given):
        raise b.error("cat of nothing, or of 0-dim tensors")
    dtype = _common(given)
    # PyTorch accepts vectors of size 0 with tensors of any rank.
    xs = [x for x in given if not (x.ndim == 1 and b.equal(x.shape[0], 0))] or given[:1]
    first = xs[0]
    d = dim_of(b, dim, first.ndim)
    for x in xs[1:]:
        if x.ndim != first.ndim:
            raise b.error("cat of tensors of different ranks")
        for k in range(first.ndim):
            if k != d:
                b.require_equal(first.shape[k], x.shape[k], "cat: sizes differ")
    total = sum((as_index(x.shape[d]) for x in xs), as_index(0))
    parts = [x for x in xs if not b.equal(x.shape[d], 0)] or xs[:1]
    if b.records and any(_is_made_of_others(b, x) for x in given if x not in parts):
        raise Unsupported("an empty part, whose gradient is zero and not None")

    def body(idx: tuple[Index, ...]) -> Expr:
        def load(x: Val, start: Index) -> Expr:
            at = [b.clamp(i - start, x.shape[d]) if k == d else i for k, i in enumerate(idx)]
            return b.cast(b.load(x, at), dtype)

        start = total - parts[-1].shape[d]
        value = load(parts[-1], start)
        for x in reversed(parts[:-1]):
            here = b.apply("lt", b.at(idx[d]), b.at(start))
            start = start - x.shape[d]
            value = b.select(here, load(x, start), value)
        return value

    return b.tensor([*first.shape[:d], total, *first.shape[d + 1 :]], dtype, body)


@op(
    "stack",
    "(tensors: Tensor[], dim: int = 0) -> Tensor",
    "torch.stack",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_stack(b: Builder, tensors: Any, dim: Any) -> Val:
    """Tensors of one shape along a new dim."""
    xs: list[Val] = list(tensors)
    if not xs:
        raise b.error("stack of nothing")
    dtype = _common(xs)
    d = dim_of(b, dim, xs[0].ndim + 1)
    for x in xs[1:]:
        if x.ndim != xs[0].ndim:
            raise b.error("stack of tensors of different ranks")
        for s, t in zip(xs[0].shape, x.shape, strict=True):
            b.require_equal(s, t, "stack: sizes differ")

    def body(idx: tuple[Index, ...]) -> Expr:
        at = [*idx[:d], *idx[d + 1 :]]
        value = b.cast(b.load(xs[-1], at), dtype)
        for k in reversed(range(len(xs) - 1)):
            here = b.apply("eq", b.at(idx[d]), b.const(k, dtypes.i64))
            value = b.select(here, b.cast(b.load(xs[k], at), dtype), value)
        return value

    return b.tensor([*xs[0].shape[:d], len(xs), *xs[0].shape[d:]], dtype, body)


def _at_least_2d(b: Builder, x: Val) -> Val:
    if x.ndim >= 2:
        return x
    shape = (1,) * (2 - x.ndim) + x.shape
    return view(b, x, shape, lambda idx: idx[2 - x.ndim :])


@op(
    "hstack",
    "(tensors: Tensor[]) -> Tensor",
    "torch.hstack",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_hstack(b: Builder, tensors: Any) -> Val:
    """Along dim 1; vectors end to end."""
    xs: list[Val] = list(tensors)
    if any(x.ndim == 0 for x in xs):
        raise Unsupported("hstack of 0-dim tensors")
    return lower_cat(b, xs, 0 if xs and xs[0].ndim == 1 else 1)


@op(
    "vstack",
    "(tensors: Tensor[]) -> Tensor",
    "torch.vstack torch.row_stack",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_vstack(b: Builder, tensors: Any) -> Val:
    """Along dim 0; vectors as rows."""
    return lower_cat(b, [_at_least_2d(b, x) for x in tensors], 0)


# ---- pad --------------------------------------------------------------------------------------


@op(
    "pad",
    "(input: Tensor, pad: int[], mode: str = 'constant', value: Scalar? = None) -> Tensor",
    "F.pad",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
    eager="F.pad",
)
def lower_pad(b: Builder, x: Val, pad: Any, mode: Any, value: Number | None) -> Val:
    """Borders around the last dims, given in pairs from the last dim on."""
    pairs = size_list(pad)
    if len(pairs) % 2 or len(pairs) // 2 > x.ndim:
        raise b.error("pad: pairs of sizes")
    border = {x.ndim - 1 - k: (pairs[2 * k], pairs[2 * k + 1]) for k in range(len(pairs) // 2)}
    border = {d: p for d, p in border.items() if not all(_is_zero(s) for s in p)}
    shape: list[Size] = []
    for d, size in enumerate(x.shape):
        low, high = border.get(d, (0, 0))
        new = as_index(size) + low + high
        if not b.at_least(new, 0) or (d in border and not b.at_least(size, 1)):
            raise Unsupported("pad of an empty dimension, or to a negative size")
        shape.append(new)
    if mode == "constant":
        check_fits(b, x.dtype, value)
        return _pad_constant(b, x, shape, border, 0 if value is None else value)
    if mode not in ("reflect", "replicate", "circular"):
        raise b.error(f"pad mode {mode!r}")
    _check_border(b, x, len(pairs) // 2, border, mode)

    def index(idx: tuple[Index, ...]) -> list[Index]:
        return [
            _inside(b, mode, i, x.shape[d], *border[d]) if d in border else i
            for d, i in enumerate(idx)
        ]

    return view(b, x, shape, index)


def _is_zero(s: Size) -> bool:
    return (s if isinstance(s, int) else s.const) == 0


def _pad_constant(
    b: Builder, x: Val, shape: list[Size], border: dict[int, tuple[Size, Size]], value: Number
) -> Val:
    def body(idx: tuple[Index, ...]) -> Expr:
        at = list(idx)
        within: Expr | None = None
        for d, (low, high) in border.items():
            i = idx[d] - low
            at[d] = b.clamp(i, x.shape[d])
            zero, size = b.const(0, dtypes.i64), b.at(x.shape[d])
            tests = [b.apply("ge", b.at(i), zero)] if b.at_least(low, 1) else []
            tests += [b.apply("lt", b.at(i), size)] if b.at_least(high, 1) else []
            for test in tests:
                within = test if within is None else b.apply("and", within, test)
        inner = b.load(x, at)
        return inner if within is None else b.select(within, inner, number(b, value, x.dtype))

    return b.tensor(shape, x.dtype, body)


def _check_border(
    b: Builder, x: Val, padded: int, border: dict[int, tuple[Size, Size]], mode: str
) -> None:
    if padded not in (1, 2, 3) or not padded < x.ndim <= padded + 2:
        raise Unsupported(f"{mode} padding of {padded} of {x.ndim} dims")
    for d, pair in border.items():
        for p in pair:
            if not b.at_least(p, 0):
                raise Unsupported(f"{mode} padding by a negative size")
            slack = as_index(x.shape[d]) - p - (1 if mode == "reflect" else 0)
            if mode != "replicate" and not b.at_least(slack, 0):
                raise b.error(f"{mode} padding larger than the dimension")


def _inside(b: Builder, mode: str, i: Index, size: Size, low: Size, high: Size) -> Index:
    """Return the index in x that the padded index i reads."""
    j = i - low
    if mode == "replicate":
        return b.clamp(j, size)
    if mode == "circular":
        return mod(j, size)
    before = b.clamp(-j, as_index(low) + 1)  # max(-j, 0)
    after = b.clamp(j - (as_index(size) - 1), as_index(high) + 1)
    return j + 2 * before - 2 * after


# ---- triangles and grids ----------------------------------------------------------------------


def _triangle(name: str, keep: str) -> None:
    @op(
        name,
        "(self: Tensor, diagonal: int = 0) -> Tensor",
        f"torch.{name} Tensor.{name}",
        kind="copy",
        effects=Effects.MAKES | Effects.RAISES,
    )
    def lower(  # pyright: ignore[reportUnusedFunction]
        b: Builder, x: Val, diagonal: Any
    ) -> Val:
        """One triangle of the last two dims, the rest 0."""
        if x.ndim < 2:
            raise b.error(f"{name} of fewer than two dimensions")

        def body(idx: tuple[Index, ...]) -> Expr:
            inside = b.apply(keep, b.at(idx[-1] - idx[-2]), b.at(as_index(diagonal)))
            return b.select(inside, b.load(x, idx), b.const(0, x.dtype))

        return b.tensor(x.shape, x.dtype, body)


_triangle("tril", "le")
_triangle("triu", "ge")


@op(
    "diag_embed",
    "(self: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor",
    "torch.diag_embed Tensor.diag_embed",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_diag_embed(b: Builder, x: Val, offset: Any, dim1: Any, dim2: Any) -> Val:
    """The last dim on the diagonal of two new ones, the rest 0."""
    if (
        x.ndim == 0
        or dim_of(b, dim1, x.ndim + 1) != x.ndim - 1
        or dim_of(b, dim2, x.ndim + 1) != x.ndim
    ):
        raise Unsupported("diag_embed into other dims than the last two")
    k = b.static_int(offset)
    size = as_index(x.shape[-1]) + abs(k)
    if not b.at_least(x.shape[-1], 1):
        raise Unsupported("diag_embed of an empty dimension")

    def body(idx: tuple[Index, ...]) -> Expr:
        along = idx[-2] - max(-k, 0)
        on = b.apply("eq", b.at(idx[-1] - idx[-2]), b.const(k, dtypes.i64))
        value = b.load(x, [*idx[:-2], b.clamp(along, x.shape[-1])])
        return b.select(on, value, b.const(0, x.dtype))

    return b.tensor([*x.shape[:-1], size, size], x.dtype, body)


@op(
    "diag",
    "(self: Tensor, diagonal: int = 0) -> Tensor",
    "torch.diag Tensor.diag",
    kind="copy",
    effects=Effects.MAKES | Effects.RAISES,
)
def lower_diag(b: Builder, x: Val, diagonal: Any) -> Val:
    """The diagonal of a matrix, or the diagonal matrix of a vector."""
    from lowtide.ops.rearrange import lower_diagonal

    if x.ndim == 1:
        return lower_diag_embed(b, x, diagonal, -2, -1)
    if x.ndim != 2:
        raise b.error("diag of a tensor that is no vector and no matrix")
    return lower_diagonal(b, x, diagonal, 0, 1)


@op(
    "meshgrid",
    "(*tensors: Tensor[], *, indexing: str? = None) -> Tensor[]",
    "torch.meshgrid",
    kind="view",
    eager=lambda tensors, indexing: torch.meshgrid(
        *(tensors[0] if is_list(tensors[0]) else tensors),
        indexing=indexing or "ij",
    ),
)
def lower_meshgrid(b: Builder, tensors: Any, indexing: Any) -> list[Val]:
    """Each vector along its own dim of the common grid."""
    xs: list[Val] = list(tensors[0] if is_list(tensors[0]) else tensors)
    if any(x.ndim > 1 for x in xs) or indexing not in (None, "ij", "xy"):
        raise b.error("meshgrid of tensors that are not vectors")
    order = list(range(len(xs)))
    if indexing == "xy" and len(xs) >= 2:
        order[:2] = [1, 0]
    sizes = [x.shape[0] if x.ndim else 1 for x in xs]
    shape = [sizes[k] for k in order]

    def grid(k: int, x: Val) -> Val:
        place = order.index(k)
        return view(b, x, shape, lambda idx: [idx[place]] if x.ndim else [])

    return [grid(k, x) for k, x in enumerate(xs)]
