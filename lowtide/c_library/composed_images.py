"""PyTorch's ops on images that have no kernel, written by other ops; see `composed`.

grid_sample(x, g)                  four gathers and their weights
conv2d(x, w, padding="same")       F.pad(x, …), then conv2d without borders
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lowtide.c_library.written import written


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


@written("grid_sample", "grid_sampler")
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


@written("affine_grid")
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


@written("interpolate")
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


def _same(x: Tensor, weight: Tensor, dilation: Any) -> Tensor:
    """Return the tensor with borders, so that a convolution keeps its size."""
    dims = weight.dim() - 2
    steps: list[int] = [dilation] * dims if isinstance(dilation, int) else list(dilation)
    if len(steps) < dims:
        steps = steps * dims
    borders: list[int] = []
    for d in range(dims):
        k = dims - 1 - d
        whole = steps[k] * (weight.shape[k + 2] - 1)
        borders += [whole // 2, whole - whole // 2]
    return F.pad(x, borders)


@written("conv1d")
def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """With borders of `same`."""
    assert padding == "same", "this convolution"
    x = _same(input, weight, dilation)
    return torch.conv1d(x, weight, bias, stride, 0, dilation, groups)


@written("conv2d")
def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """With borders of `same`."""
    assert padding == "same", "this convolution"
    x = _same(input, weight, dilation)
    return torch.conv2d(x, weight, bias, stride, 0, dilation, groups)
