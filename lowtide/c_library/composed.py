"""PyTorch's ops that have no kernel, written by other ops, for exported C.

In: the name of an op. Out: a Python function with the op's parameters, which the exporter compiles
and prints in place of the op.

    x.median(dim=0)      v, i = x.sort(0); v and i at the middle
    grid_sample(x, g)    four gathers and their weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

_WRITTEN: Final[dict[str, Callable[..., Any]]] = {}


def found(target: str) -> Callable[..., Any] | None:
    """Return the function for `torch.median`, `Tensor.median_` or `F.grid_sample`; None if there is
    none."""
    root, _, name = target.rpartition(".")
    return _WRITTEN.get(name) if root in ("torch", "Tensor", "F", "torch.linalg") else None


def _written(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        _WRITTEN.update(dict.fromkeys(names, function))
        return function

    return add


# ---- order -------------------------------------------------------------------------------------


@_written("median")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of two middle values; NaN if there is one."""
    if dim is None:
        x = input.flatten()
        s, _ = x.sort(stable=True)
        n = x.shape[0]
        bad = s[n - 1] != s[n - 1]
        return torch.where(bad, s[n - 1], s[(n - 1) // 2])
    if input.dim() == 0:
        return input, torch.zeros((), dtype=torch.int64)
    s, i = input.sort(dim=dim, stable=True)
    n = input.size(dim)
    bad = (input != input).sum(dim, keepdim=True)
    middle = torch.where(bad > 0, n - bad, (n - 1) // 2)
    values, places = s.gather(dim, middle), i.gather(dim, middle)
    if keepdim:
        return values, places
    return values.squeeze(dim), places.squeeze(dim)


@_written("nanmedian")
def nanmedian(input: Tensor) -> Tensor:
    """The lower of two middle values of those that are no NaN."""
    x = input.flatten()
    s, _ = x.sort(stable=True)
    count = (x == x).sum()
    return s.gather(0, ((count - 1) // 2).clamp(min=0).view(1))[0]


@_written("kthvalue")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest value, counted from 1."""
    s, i = input.sort(dim=dim, stable=True)
    values, places = s.select(dim, k - 1), i.select(dim, k - 1)
    if keepdim:
        return values.unsqueeze(dim), places.unsqueeze(dim)
    return values, places


@_written("quantile")
def quantile(
    input: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """Between the two values next to rank q * (n - 1); NaN if there is one."""
    x = input.flatten() if dim is None else input.movedim(dim, -1)
    s, _ = x.sort(dim=-1, stable=True)
    n = s.shape[-1]
    ranks = (q if isinstance(q, Tensor) else torch.full((), q, dtype=input.dtype)) * (n - 1)
    if interpolation == "lower":
        ranks = ranks.floor()
    elif interpolation == "higher":
        ranks = ranks.ceil()
    elif interpolation == "nearest":
        ranks = ranks.round()
    below = ranks.floor()
    part = ranks - below
    if interpolation == "midpoint":
        part = torch.where(part > 0, 0.5, part)
    low = s.index_select(-1, below.long().view(-1))
    high = s.index_select(-1, ranks.ceil().long().view(-1))
    last = s[..., n - 1 :]
    made = torch.where(last == last, torch.lerp(low, high, part.view(-1)), last)
    made = made.movedim(-1, 0)
    if keepdim and dim is not None:
        made = made.unsqueeze(dim + 1 if dim >= 0 else dim)
    elif keepdim:
        made = made.view([made.shape[0]] + [1] * input.dim())
    return made if ranks.dim() else made.squeeze(0)


@_written("unique", "_unique2")
def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Any:
    """The values in order, each once."""
    s, i = input.flatten().sort(stable=True)
    n = s.shape[0]
    first = torch.ones(n, dtype=torch.bool)
    first[1:] = s[1:] != s[:-1]
    values = s[first]
    starts = torch.nonzero(first)[:, 0]
    inverse = torch.zeros(n, dtype=torch.int64)
    inverse[i] = first.cumsum(0) - 1
    inverse = inverse.view(input.shape)
    ends = torch.full_like(starts, n)
    ends[:-1] = starts[1:]
    counts = ends - starts
    if return_inverse and return_counts:
        return values, inverse, counts
    if return_inverse:
        return values, inverse
    if return_counts:
        return values, counts
    return values


@_written("bucketize")
def bucketize(
    input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Return the count of boundaries below each value, or up to it."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@_written("searchsorted")
def searchsorted(
    sorted_sequence: Tensor,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Tensor:
    """Return the count of numbers of a sorted row below each value, or up to it."""
    rows = sorted_sequence
    values = input if isinstance(input, Tensor) else torch.full((), input, dtype=rows.dtype)
    if rows.dim() > 1:
        rows = rows.unsqueeze(-2)
    wide = values.unsqueeze(-1)
    passed = ~(rows > wide) if right or side == "right" else ~(rows >= wide)
    found = passed.sum(-1)
    return found.to(torch.int32) if out_int32 else found


@_written("isin")
def isin(elements: Tensor, test_elements: Tensor, *, invert: bool = False) -> Tensor:
    """Return for each element whether it is among the others."""
    hit = (elements.unsqueeze(-1) == test_elements.flatten()).any(-1)
    return ~hit if invert else hit


@_written("histc")
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Return the count of values in each of equal intervals."""
    x = input.flatten()
    low, high = torch.full((), float(min)).to(x.dtype), torch.full((), float(max)).to(x.dtype)
    if min == max:
        low, high = x.min(), x.max()
        alike = low == high
        low, high = torch.where(alike, low - 1, low), torch.where(alike, high + 1, high)
    place = ((x - low) / (high - low) * bins).long().clamp(min=0, max=bins - 1)
    inside = ((x >= low) & (x <= high)).to(x.dtype)
    return torch.zeros(bins, dtype=x.dtype).index_add(0, place, inside)


# ---- places that are data ----------------------------------------------------------------------


@_written("index_put", "index_put_")
def index_put(
    input: Tensor, indices: Sequence[Tensor], values: Tensor, accumulate: bool = False
) -> Tensor:
    """The tensor with values written, or added, at places that vectors name."""
    assert accumulate, "exported C writes by x[i] = v"
    n = len(indices)
    rest = 1
    for d in range(n, input.dim()):
        rest = rest * input.shape[d]
    place = torch.zeros((), dtype=torch.int64)
    for d, index in enumerate(indices):
        size = input.shape[d]
        place = place * size + torch.where(index < 0, index + size, index)
    shape = list(place.shape) + list(input.shape[n:])
    flat = input.contiguous().view(-1, rest)
    rows = values.expand(shape).reshape(-1, rest)
    return flat.index_add(0, place.view(-1), rows).view(input.shape)


@_written("embedding_bag")
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sums, means or maxima of rows, for each row of indices or each bag from an offset on."""
    assert max_norm is None
    assert padding_idx is None
    rows = F.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is None:
        if mode == "sum":
            return rows.sum(1)
        return rows.mean(1) if mode == "mean" else rows.amax(1)
    count = offsets.shape[0] - 1 if include_last_offset else offsets.shape[0]
    n = rows.shape[0]
    bag = (offsets[:count] <= torch.arange(n).unsqueeze(1)).sum(1) - 1
    if mode == "max":
        wide = bag.unsqueeze(1).expand(n, rows.shape[1])
        made = torch.zeros(count, rows.shape[1], dtype=rows.dtype)
        return made.scatter_reduce(0, wide, rows, "amax", include_self=False)
    sums = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add(0, bag, rows)
    if mode == "sum":
        return sums
    counts = torch.zeros(count, dtype=rows.dtype).index_add(0, bag, torch.ones(n, dtype=rows.dtype))
    return sums / counts.clamp(min=1).unsqueeze(1)


# ---- images ------------------------------------------------------------------------------------


def _place(x: Tensor, size: int, padding_mode: str, corners: bool) -> Tensor:
    """Return the place in a row of pixels of coordinates from -1 to 1."""
    at = (x + 1) / 2 * (size - 1) if corners else ((x + 1) * size - 1) / 2
    if padding_mode == "border":
        return at.clamp(0, size - 1)
    if padding_mode == "reflection":
        low = 0.0 if corners else -0.5
        span = float(size - 1) if corners else float(size)
        if span == 0:
            return torch.zeros_like(at)
        apart = (at - low).abs()
        rest = torch.fmod(apart, span)
        is_odd = torch.floor(apart / span) % 2 == 1
        return (torch.where(is_odd, span - rest, rest) + low).clamp(0, size - 1)
    return at


def _pixels(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """The pixels at whole places, 0 outside; x: [N, C, H, W], places: [N, P] → [N, C, P]."""
    n, c, h, w = x.shape
    is_in = (row >= 0) & (row < h) & (column >= 0) & (column < w)
    at = row.clamp(0, h - 1).long() * w + column.clamp(0, w - 1).long()
    wide = at.unsqueeze(1).expand(n, c, at.shape[1])
    return x.reshape(n, c, h * w).gather(2, wide) * is_in.unsqueeze(1).to(x.dtype)


@_written("grid_sample", "grid_sampler")
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: Any = "bilinear",
    padding_mode: Any = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The image at the places of a grid."""
    assert input.dim() == 4, "grid_sample of images"
    how, pad = str(mode), str(padding_mode)
    if not isinstance(mode, str):  # as torch.export writes it
        how = ("bilinear", "nearest", "bicubic")[int(mode)]
        pad = ("zeros", "border", "reflection")[int(padding_mode)]
    assert how != "bicubic", "grid_sample of mode bicubic"
    n, c, h, w = input.shape
    rows, columns = grid.shape[1], grid.shape[2]
    corners = align_corners is True
    x = _place(grid[..., 0].reshape(n, rows * columns), w, pad, corners)
    y = _place(grid[..., 1].reshape(n, rows * columns), h, pad, corners)
    if how == "nearest":
        return _pixels(input, y.round(), x.round()).view(n, c, rows, columns)
    left, top = x.floor(), y.floor()
    a, b = (x - left).unsqueeze(1), (y - top).unsqueeze(1)
    upper = _pixels(input, top, left) * (1 - a) + _pixels(input, top, left + 1) * a
    lower = _pixels(input, top + 1, left) * (1 - a) + _pixels(input, top + 1, left + 1) * a
    return (upper * (1 - b) + lower * b).view(n, c, rows, columns)


def _steps(n: int, corners: bool) -> Tensor:
    x = torch.arange(n, dtype=torch.float32)
    if corners:
        return x * (2.0 / (n - 1)) - 1 if n > 1 else torch.zeros(1)
    return (2 * x + 1) / n - 1


@_written("affine_grid")
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid of an affine map."""
    assert len(size) == 4, "affine_grid of images"
    h, w = size[2], size[3]
    corners = align_corners is True
    x = _steps(w, corners).to(theta.dtype).view(1, 1, w, 1)
    y = _steps(h, corners).to(theta.dtype).view(1, h, 1, 1)
    t = theta.view(-1, 1, 1, 2, 3)
    return t[..., 0] * x + t[..., 1] * y + t[..., 2]


def _cubic(x: Tensor, a: float) -> Tensor:
    """The weight of a pixel at a distance x >= 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, 0.0))


def _nearest(x: Tensor, dim: int, new: int, step: float, offset: float) -> Tensor:
    places = ((torch.arange(new, dtype=torch.float32) + offset) * step).floor().long()
    return x.index_select(dim, places.clamp(max=x.shape[dim] - 1))


def _filtered(x: Tensor, dim: int, new: int, step: float, is_cubic: bool) -> Tensor:
    """One dim of an image in another size, by a filter as wide as a new pixel."""
    n = x.shape[dim]
    wide = max(step, 1.0)
    reach = (2.0 if is_cubic else 1.0) * wide
    centre = (torch.arange(new, dtype=torch.float32) + 0.5) * step
    first = (centre - reach + 0.5).long().clamp(min=0).unsqueeze(1)
    end = (centre + reach + 0.5).long().clamp(max=n).unsqueeze(1)
    j = torch.arange(n, dtype=torch.float32)
    apart = ((j + 0.5 - centre.unsqueeze(1)) / wide).abs()
    weight = _cubic(apart, -0.5) if is_cubic else (1 - apart).clamp(min=0)
    weight = torch.where((j >= first) & (j < end), weight, 0.0)
    weight = weight / weight.sum(1, keepdim=True)
    return (x.movedim(dim, -1) @ weight.t().to(x.dtype)).movedim(-1, dim)


def _between(x: Tensor, dim: int, new: int, step: float, corners: bool, is_cubic: bool) -> Tensor:
    """One dim of an image in another size, between two or four pixels."""
    n = x.shape[dim]
    i = torch.arange(new, dtype=torch.float32)
    at = i * step if corners else (i + 0.5) * step - 0.5
    if not is_cubic:
        at = at.clamp(min=0)
    low = at.floor()
    part = at - low
    made = torch.zeros((), dtype=x.dtype)
    shape = [new] + [1] * (x.dim() - 1 - dim)
    for k in range(4):
        apart = (part - (k - 1)).abs()
        weight = _cubic(apart, -0.75) if is_cubic else (1 - apart).clamp(min=0)
        taken = x.index_select(dim, (low + (k - 1)).long().clamp(0, n - 1))
        made = made + taken * weight.view(shape).to(x.dtype)
    return made


@_written("interpolate")
def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Images of other sizes: what the kernels of `ops/resampling` leave out."""
    dims = input.dim() - 2
    given = scale_factor if size is None else size
    each: list[Any] = [given] * dims if isinstance(given, int | float) else list(given)
    old = [input.shape[d + 2] for d in range(dims)]
    new = [math.floor(n * s) if size is None else int(s) for n, s in zip(old, each, strict=False)]
    if mode == "area" and dims == 1:
        made = F.adaptive_avg_pool1d(input, new[0])
    elif mode == "area" and dims == 2:
        made = F.adaptive_avg_pool2d(input, (new[0], new[1]))
    elif mode == "area":
        made = F.adaptive_avg_pool3d(input, (new[0], new[1], new[2]))
    else:
        corners, is_cubic = align_corners is True, mode == "bicubic"
        offset = 0.5 if mode == "nearest-exact" else 0.0
        made = input
        for d in range(dims):
            step: float = old[d] / new[d]
            if size is None and not recompute_scale_factor:
                step = 1.0 / each[d]
            if corners:
                step = (old[d] - 1) / (new[d] - 1) if new[d] > 1 else 0.0
            if mode in ("nearest", "nearest-exact"):
                made = _nearest(made, d + 2, new[d], step, offset)
            elif antialias:
                made = _filtered(made, d + 2, new[d], step, is_cubic)
            else:
                made = _between(made, d + 2, new[d], step, corners, is_cubic)
    return made


# ---- small matrices ----------------------------------------------------------------------------


@_written("logcumsumexp")
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithms of running sums of exponentials."""
    rows = input.movedim(dim, 0)
    made = torch.empty_like(rows)
    last = torch.full_like(rows[0], -math.inf)
    for k in range(rows.shape[0]):
        last = torch.logaddexp(last, rows[k])
        made[k] = last
    return made.movedim(0, dim)


@_written("solve", "linalg_solve")
def solve(A: Tensor, B: Tensor) -> Tensor:
    """The solution of A x = B by elimination; A: [N, N], B: [N] or [N, M]."""
    assert A.dim() == 2, "solve of one matrix"
    n = A.shape[0]
    is_vector = B.dim() == 1
    both = torch.cat([A, B.view(n, 1) if is_vector else B], 1)
    for k in range(n):
        column = both[:, k].abs()
        rows = torch.arange(n)
        pivot = torch.where(rows < k, -1.0, column).argmax()
        order = torch.where(rows == k, pivot, torch.where(rows == pivot, k, rows))
        both = both.index_select(0, order)
        assert bool(both[k, k] != 0), "the matrix is singular"
        row = both[k] / both[k, k]
        both = torch.where((rows == k).unsqueeze(1), row, both - both[:, k : k + 1] * row)
    made = both[:, n:]
    return made[:, 0] if is_vector else made


@_written("inv", "inverse", "linalg_inv")
def inverse(A: Tensor) -> Tensor:
    """The inverse of a matrix."""
    return solve(A, torch.eye(A.shape[0], dtype=A.dtype))


@_written("cholesky", "linalg_cholesky")
def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangle whose product with its transpose is A."""
    assert A.dim() == 2, "cholesky of one matrix"
    n = A.shape[0]
    made = torch.zeros_like(A)
    for k in range(n):
        rest = A[:, k] - made @ made[k]
        assert bool(rest[k] > 0), "the matrix is not positive definite"
        column = rest / rest[k].sqrt()
        made[:, k] = torch.where(torch.arange(n) < k, 0.0, column)
    return made.t() if upper else made


# ---- lists -------------------------------------------------------------------------------------


def numbered(x: Tensor) -> Tensor:
    """The place of each element."""
    return torch.arange(x.numel()).view(x.shape)


def spread(value: Any, places: Tensor, like: Tensor) -> Tensor:
    """A value for each place."""
    x = value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype)
    return x.to(like.dtype).expand(places.shape).contiguous()


def stacked(rows: Tensor, dim: int) -> Tensor:
    """`torch.stack` of the rows."""
    return rows.movedim(0, dim).contiguous()


def concatenated(rows: Tensor, dim: int) -> Tensor:
    """`torch.cat` of the rows."""
    return rows.movedim(0, dim).flatten(dim, dim + 1)


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x.to(dtype)`."""
    return x.to(dtype)
