"""PyTorch's ops that have no kernel, written by other ops, for exported C.

In: the name of an op. Out: a Python function with the op's parameters, which the exporter compiles
and prints in place of the op.

    x.median(dim=0)      v, i = x.sort(0); v and i at the middle
    grid_sample(x, g)    four gathers and their weights
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowtide.c_library.written import written

# ---- order -------------------------------------------------------------------------------------


@written("median")
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


@written("nanmedian")
def nanmedian(input: Tensor) -> Tensor:
    """The lower of two middle values of those that are no NaN."""
    x = input.flatten()
    s, _ = x.sort(stable=True)
    count = (x == x).sum()
    return s.gather(0, ((count - 1) // 2).clamp(min=0).view(1))[0]


@written("kthvalue")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest value, counted from 1."""
    s, i = input.sort(dim=dim, stable=True)
    values, places = s.select(dim, k - 1), i.select(dim, k - 1)
    if keepdim:
        return values.unsqueeze(dim), places.unsqueeze(dim)
    return values, places


@written("quantile")
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


@written("unique", "_unique2")
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


@written("bucketize")
def bucketize(
    input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Return the count of boundaries below each value, or up to it."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@written("searchsorted")
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


@written("isin")
def isin(elements: Tensor, test_elements: Tensor, *, invert: bool = False) -> Tensor:
    """Return for each element whether it is among the others."""
    hit = (elements.unsqueeze(-1) == test_elements.flatten()).any(-1)
    return ~hit if invert else hit


@written("bincount")
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Return the count, or the sum of weights, of each number below `minlength`."""
    assert minlength > 0, "bincount without `minlength`, whose result has no bound"
    assert bool(((input >= 0) & (input < minlength)).all()), "bincount: not below minlength"
    if weights is None:
        counts = torch.zeros(minlength, dtype=torch.int64)
        return counts.index_add(0, input.long(), torch.ones(input.shape[0], dtype=torch.int64))
    x = weights if weights.dtype == torch.float32 else weights.double()
    return torch.zeros(minlength, dtype=x.dtype).index_add(0, input.long(), x)


@written("diff")
def diff(input: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """The differences of neighbours."""
    assert input.dtype != torch.bool, "diff of bools"
    x = input.movedim(dim, 0)
    for _ in range(n):
        x = x[1:] - x[:-1]
    return x.movedim(0, dim)


def _running(input: Tensor, dim: int, is_max: bool) -> tuple[Tensor, Tensor]:
    """Return the extreme so far and its place, the last of equal ones; NaN from the first on."""
    rows = input.movedim(dim, 0)
    values, places = torch.empty_like(rows), torch.zeros(rows.shape, dtype=torch.int64)
    last = torch.zeros(rows.shape[1:], dtype=rows.dtype)
    at = torch.zeros(rows.shape[1:], dtype=torch.int64)
    for k in range(rows.shape[0]):
        x = rows[k]
        is_new = (x != x) | (x >= last if is_max else x <= last) | (at + k == 0)
        last, at = torch.where(is_new, x, last), torch.where(is_new, k, at)
        values[k] = last
        places[k] = at
    return values.movedim(0, dim), places.movedim(0, dim)


@written("cummax")
def cummax(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest value so far and its place."""
    return _running(input, dim, True)


@written("cummin")
def cummin(input: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The least value so far and its place."""
    return _running(input, dim, False)


@written("histc")
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


@written("index_put", "index_put_")
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
        assert bool(((index >= -size) & (index < size)).all()), "an index out of range"
        place = place * size + torch.where(index < 0, index + size, index)
    shape = list(place.shape) + list(input.shape[n:])
    flat = input.contiguous().view(-1, rest)
    rows = values.expand(shape).reshape(-1, rest)
    return flat.index_add(0, place.view(-1), rows).view(input.shape)


@written("index_copy", "index_copy_")
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """The tensor with rows of another one."""
    size = input.shape[dim]
    assert bool(((index >= 0) & (index < size)).all()), "index_copy: an index out of range"
    rows = input.movedim(dim, 0).clone()
    rows[index] = source.movedim(dim, 0)
    return rows.movedim(0, dim)


@written("scatter_reduce", "scatter_reduce_")
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """The sums, means, largest or least of what goes to the same place."""
    assert reduce != "prod", "scatter_reduce of products"
    n = input.dim()
    place = torch.zeros((), dtype=torch.int64)
    rows = src
    for d in range(n):
        at = torch.arange(index.shape[d]).view([-1 if k == d else 1 for k in range(n)])
        rows = rows.narrow(d, 0, index.shape[d])
        place = place * input.shape[d] + (index if d == dim % n else at)
    size = input.shape[dim]
    assert bool(((index >= 0) & (index < size)).all()), "scatter_reduce: an index out of range"
    place, values, old = place.reshape(-1), rows.reshape(-1), input.reshape(-1)
    ones = torch.ones(values.shape[0], dtype=torch.int64)
    counts = torch.zeros(old.shape[0], dtype=torch.int64).index_add(0, place, ones)
    if reduce == "sum" or reduce == "mean":
        first = old if include_self else torch.where(counts > 0, torch.zeros_like(old), old)
        made = first.index_add(0, place, values)
        if reduce == "mean":
            assert input.dtype.is_floating_point, "scatter_reduce of means of ints"
            counts = counts + 1 if include_self else counts
            made = made / counts.clamp(min=1).to(made.dtype)
        return made.view(input.shape)
    is_float = input.dtype.is_floating_point
    if reduce == "amin":
        values, old = (-values, -old) if is_float else (-1 - values, -1 - old)
    s, order = values.sort(stable=True)
    best = old.clone()
    best[place[order]] = s  # in order: the largest comes last
    if include_self:
        best = torch.maximum(best, old)
    if reduce == "amin":
        best = -best if is_float else -1 - best
    return best.view(input.shape)


@written("embedding_bag")
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


# ---- small matrices ----------------------------------------------------------------------------


@written("logcumsumexp")
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithms of running sums of exponentials."""
    rows = input.movedim(dim, 0)
    made = torch.empty_like(rows)
    last = torch.full(rows.shape[1:], -math.inf, dtype=rows.dtype)
    for k in range(rows.shape[0]):
        last = torch.logaddexp(last, rows[k])
        made[k] = last
    return made.movedim(0, dim)


@written("solve", "linalg_solve")
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


@written("inv", "inverse", "linalg_inv")
def inverse(A: Tensor) -> Tensor:
    """The inverse of a matrix."""
    return solve(A, torch.eye(A.shape[0], dtype=A.dtype))


@written("cholesky", "linalg_cholesky")
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
