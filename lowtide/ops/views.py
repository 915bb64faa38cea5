"""Views: ops that only change indices, and copy nothing.

    x.t()                    →   t[i, j] = x[j, i]                 x: [N, M]
    x.reshape(N, 2, M // 2)  →   t[i, j, k] = x[i, (M // 2) * j + k]

Strides do not matter here: `view` of a tensor that is not contiguous is a reshape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lowtide.ops.operands import (
    Size,
    broadcast,
    broadcast_index,
    dim_of,
    is_list,
    ravel,
    size_list,
    unravel,
)
from lowtide.ops.registry import op
from lowtide.texpr.build import Builder, NeedConst, Unsupported, Val, symbols
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.index_ranges import floordiv

Map = Callable[[tuple[Index, ...]], Sequence[Index | int]]


def view(b: Builder, x: Val, shape: Sequence[Size], index: Map) -> Val:
    """Return the tensor of `shape` whose element at idx is x at index(idx)."""
    return b.tensor(shape, x.dtype, lambda idx: b.load(x, index(idx)))


# ---- reshape ----------------------------------------------------------------------------------


def resolve_shape(b: Builder, old: Sequence[Size], shape: Sequence[Size]) -> list[Size]:
    """Return the sizes with -1 replaced; the number of elements is required to stay."""
    sizes = list(shape)
    unknown = [k for k, s in enumerate(sizes) if _is_minus_one(s)]
    total = product(old)
    if len(unknown) > 1:
        raise b.error("more than one -1 in a shape")
    for k, s in enumerate(sizes):
        if not _is_minus_one(s):
            sizes[k] = b.extent(s, f"size {s} in a shape")
    if unknown:
        known = product(s for k, s in enumerate(sizes) if k != unknown[0])
        if not b.at_least(known, 1):
            raise Unsupported("-1 beside a size of 0")
        if not b.divides(known, total):
            raise b.error(f"{total} elements do not fit {shape}")
        size = floordiv(total, known)
        sizes[unknown[0]] = size if size.const is None else size.const
        return sizes
    b.require_equal(total, product(sizes), f"{total} elements do not fit {shape}")
    return sizes


def _is_minus_one(s: Size) -> bool:
    return (s if isinstance(s, int) else s.const) == -1


def _groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[int, int, int, int]]:
    """Cuts both shapes into the shortest runs (i0, i1, j0, j1) of equal products, so that the index
    of a run only speaks of its own axes."""
    groups: list[tuple[int, int, int, int]] = []
    i0 = j0 = 0
    while i0 < len(old) and j0 < len(new):
        found = next(
            (
                (i1, j1)
                for run in range(2, len(old) + len(new) - i0 - j0 + 1)
                for i1 in range(
                    max(i0 + 1, i0 + run - (len(new) - j0)), min(i0 + run, len(old) + 1)
                )
                for j1 in [j0 + run - (i1 - i0)]
                if product(old[i0:i1]) is product(new[j0:j1])
            ),
            None,
        )
        if found is None:
            break
        groups.append((i0, found[0], j0, found[1]))
        i0, j0 = found
    if i0 < len(old) or j0 < len(new):
        groups.append((i0, len(old), j0, len(new)))
    return groups


def reshape(b: Builder, x: Val, shape: Sequence[Size]) -> Val:
    """x with other sizes, in row-major order; -1 stands for what is left."""
    sizes = resolve_shape(b, x.shape, shape)
    groups = _groups(x.shape, sizes)
    for i0, i1, j0, j1 in groups:
        inner = any(as_index(n).const is None for n in x.shape[i0 + 1 : i1])
        if inner and all(as_index(n).const is not None for n in sizes[j0:j1]):
            raise NeedConst(symbols(product(x.shape[i0:i1])))  # else an index divides by them

    def index(idx: tuple[Index, ...]) -> list[Index]:
        out: list[Index] = []
        for i0, i1, j0, j1 in groups:
            if i1 - i0 == 1 and j1 - j0 == 1:
                out.append(idx[j0])
            else:
                out.extend(unravel(ravel(idx[j0:j1], sizes[j0:j1]), x.shape[i0:i1]))
        return out

    return view(b, x, sizes, index)


@op(
    "reshape",
    "(self: Tensor, *shape: int[]) -> Tensor",
    "torch.reshape Tensor.reshape",
    kind="view",
)
def lower_reshape(b: Builder, x: Val, shape: Any) -> Val:
    """Other sizes, the same elements in row-major order."""
    return reshape(b, x, size_list(shape))


@op(
    "view.dtype",
    "(self: Tensor, dtype: dtype) -> Tensor",
    "Tensor.view",
    kind="view",
)
def lower_view_dtype(b: Builder, x: Val, dtype: Any) -> Val:
    """The bits as another dtype: left to PyTorch."""
    raise Unsupported("view as another dtype")


@op("view", "(self: Tensor, *size: int[]) -> Tensor", "Tensor.view", kind="view")
def lower_view(b: Builder, x: Val, shape: Any) -> Val:
    """As reshape."""
    return reshape(b, x, size_list(shape))


@op("view_as", "(self: Tensor, other: Tensor) -> Tensor", "Tensor.view_as", kind="view")
@op("reshape_as", "(self: Tensor, other: Tensor) -> Tensor", "Tensor.reshape_as", kind="view")
def lower_view_as(b: Builder, x: Val, other: Val) -> Val:
    """A reshape to the sizes of other."""
    return reshape(b, x, other.shape)


@op(
    "flatten",
    "(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor",
    "torch.flatten Tensor.flatten",
    kind="view",
)
def lower_flatten(b: Builder, x: Val, start: Any, end: Any) -> Val:
    """Dims start..end become one."""
    first, last = dim_of(b, start, x.ndim), dim_of(b, end, x.ndim)
    if first > last:
        raise b.error("flatten: start after end")
    middle = product(x.shape[first : last + 1])
    return reshape(b, x, [*x.shape[:first], middle, *x.shape[last + 1 :]])


@op("ravel", "(self: Tensor) -> Tensor", "torch.ravel Tensor.ravel", kind="view")
def lower_ravel(b: Builder, x: Val) -> Val:
    """One dimension."""
    return lower_flatten(b, x, 0, -1)


@op(
    "unflatten",
    "(self: Tensor, dim: int, sizes: int[]) -> Tensor",
    "torch.unflatten Tensor.unflatten",
    kind="view",
)
def lower_unflatten(b: Builder, x: Val, dim: Any, sizes: Any) -> Val:
    """One dim becomes several."""
    d = dim_of(b, dim, x.ndim)
    inner = resolve_shape(b, [x.shape[d]], size_list(sizes))
    return reshape(b, x, [*x.shape[:d], *inner, *x.shape[d + 1 :]])


# ---- sizes of 1 -------------------------------------------------------------------------------


@op(
    "squeeze",
    "(self: Tensor, dim: int[]? = None) -> Tensor",
    "torch.squeeze Tensor.squeeze",
    kind="view",
)
def lower_squeeze(b: Builder, x: Val, dim: Any) -> Val:
    """Without the dims of size 1 (those named, or all)."""
    if dim is None:
        dims = set(range(x.ndim))
    else:
        dims = {dim_of(b, d, x.ndim) for d in size_list(dim)}
    gone = [d for d in range(x.ndim) if d in dims and b.equal(x.shape[d], 1)]
    kept = [d for d in range(x.ndim) if d not in gone]

    def index(idx: tuple[Index, ...]) -> list[Index | int]:
        return [0 if d in gone else idx[kept.index(d)] for d in range(x.ndim)]

    return view(b, x, [x.shape[d] for d in kept], index)


@op(
    "unsqueeze",
    "(self: Tensor, dim: int) -> Tensor",
    "torch.unsqueeze Tensor.unsqueeze",
    kind="view",
)
def lower_unsqueeze(b: Builder, x: Val, dim: Any) -> Val:
    """A new dim of size 1."""
    d = dim_of(b, dim, x.ndim + 1)
    return view(b, x, [*x.shape[:d], 1, *x.shape[d:]], lambda idx: [*idx[:d], *idx[d + 1 :]])


# ---- expand -----------------------------------------------------------------------------------


def expand(b: Builder, x: Val, shape: Sequence[Size]) -> Val:
    """x repeated along new dims and dims of size 1; -1 keeps a size."""
    new = len(shape) - x.ndim
    if new < 0:
        raise b.error("expand to fewer dimensions")
    sizes: list[Size] = []
    for d, s in enumerate(shape):
        old = x.shape[d - new] if d >= new else None
        if _is_minus_one(s):
            if old is None:
                raise b.error("-1 for a new dimension")
            sizes.append(old)
            continue
        if old is not None and not b.equal(old, 1):
            b.require_equal(old, s, f"expand of size {old} to {s}")
            sizes.append(old)
            continue
        sizes.append(b.extent(s, f"size {s} in a shape"))
    return view(b, x, sizes, lambda idx: broadcast_index(b, x.shape, idx))


@op("expand", "(self: Tensor, *size: int[]) -> Tensor", "Tensor.expand", kind="view")
def lower_expand(b: Builder, x: Val, shape: Any) -> Val:
    """Broadcast to the sizes; -1 keeps one."""
    return expand(b, x, size_list(shape))


@op(
    "broadcast_to",
    "(self: Tensor, size: int[]) -> Tensor",
    "torch.broadcast_to Tensor.broadcast_to",
    kind="view",
)
def lower_broadcast_to(b: Builder, x: Val, shape: Any) -> Val:
    """Broadcast to the sizes."""
    return expand(b, x, size_list(shape))


@op(
    "expand_as",
    "(self: Tensor, other: Tensor) -> Tensor",
    "Tensor.expand_as",
    kind="view",
)
def lower_expand_as(b: Builder, x: Val, other: Val) -> Val:
    """Broadcast to the sizes of other."""
    return expand(b, x, other.shape)


@op(
    "broadcast_tensors",
    "(*tensors: Tensor[]) -> Tensor[]",
    "torch.broadcast_tensors",
    kind="view",
    eager=lambda tensors: torch.broadcast_tensors(*_flat(tensors)),
)
def lower_broadcast_tensors(b: Builder, tensors: Any) -> list[Val]:
    """All tensors in their common shape."""
    xs = _flat(tensors)
    shape = broadcast(b, *(x.shape for x in xs))
    return [expand(b, x, shape) for x in xs]


def _flat(tensors: Any) -> list[Any]:
    if len(tensors) == 1 and is_list(tensors[0]):
        return list(tensors[0])
    return list(tensors)


# ---- order of dims ----------------------------------------------------------------------------


def permute(b: Builder, x: Val, dims: Sequence[int]) -> Val:
    """Dim k of the result is dim dims[k] of x."""
    inverse = [list(dims).index(d) for d in range(x.ndim)]
    return view(b, x, [x.shape[d] for d in dims], lambda idx: [idx[k] for k in inverse])


@op(
    "permute",
    "(self: Tensor, *dims: int[]) -> Tensor",
    "torch.permute Tensor.permute",
    kind="view",
)
def lower_permute(b: Builder, x: Val, dims: Any) -> Val:
    """Dims in another order."""
    order = [dim_of(b, d, x.ndim) for d in size_list(dims)]
    if sorted(order) != list(range(x.ndim)):
        raise b.error("permute: not a permutation of the dims")
    return permute(b, x, order)


@op(
    "transpose",
    "(self: Tensor, dim0: int, dim1: int) -> Tensor",
    "torch.transpose Tensor.transpose torch.swapaxes Tensor.swapaxes torch.swapdims "
    "Tensor.swapdims",
    kind="view",
)
def lower_transpose(b: Builder, x: Val, dim0: Any, dim1: Any) -> Val:
    """Two dims exchanged."""
    order = list(range(x.ndim))
    if x.ndim:
        p, q = dim_of(b, dim0, x.ndim), dim_of(b, dim1, x.ndim)
        order[p], order[q] = order[q], order[p]
    return permute(b, x, order)


@op("t", "(self: Tensor) -> Tensor", "torch.t Tensor.t", kind="view")
def lower_t(b: Builder, x: Val) -> Val:
    """A matrix transposed."""
    if x.ndim > 2:
        raise b.error("t() of more than two dimensions")
    return permute(b, x, list(reversed(range(x.ndim))))


@op("T", "(self: Tensor) -> Tensor", "Tensor.T", kind="view")
def lower_T(b: Builder, x: Val) -> Val:
    """All dims reversed."""
    return permute(b, x, list(reversed(range(x.ndim))))


def _transposing(name: str, sources: str) -> None:
    """The last two dims exchanged; PyTorch's `mH` also conjugates, which changes no real number.

    A record of its own for each, since complex matrices are left to PyTorch under its name."""

    @op(name, "(self: Tensor) -> Tensor", sources, kind="view")
    def lower(b: Builder, x: Val) -> Val:  # pyright: ignore[reportUnusedFunction]
        """The last two dims exchanged."""
        if x.ndim < 2:
            raise b.error(f"{name} of fewer than two dimensions")
        return lower_transpose(b, x, -2, -1)


_transposing("mT", "Tensor.mT")
_transposing("mH", "Tensor.mH torch.adjoint Tensor.adjoint")


@op(
    "movedim",
    "(self: Tensor, source: int[], destination: int[]) -> Tensor",
    "torch.movedim Tensor.movedim torch.moveaxis Tensor.moveaxis",
    kind="view",
)
def lower_movedim(b: Builder, x: Val, source: Any, destination: Any) -> Val:
    """Dims moved to new places, the others in order."""
    src = [dim_of(b, d, x.ndim) for d in size_list(source)]
    dst = [dim_of(b, d, x.ndim) for d in size_list(destination)]
    if len(src) != len(dst) or len(set(src)) != len(src) or len(set(dst)) != len(dst):
        raise b.error("movedim: the dims do not pair up")
    rest = [d for d in range(x.ndim) if d not in src]
    order = [src[dst.index(k)] if k in dst else rest.pop(0) for k in range(x.ndim)]
    return permute(b, x, order)
