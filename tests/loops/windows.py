"""Programs that slide windows over images, written in the ways that people write them.

Each takes an image x: [N, C, H, W], weights w: [O, C, k, k], and the window's size, stride,
dilation and padding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

Case = tuple[int, int, int, int, int, int, int, int, int]  # n, c, o, k, s, d, p, h, w


def by_unfold(x, w, k, s, d, p):
    columns = F.unfold(x, k, dilation=d, padding=p, stride=s)
    return w.reshape(w.shape[0], -1) @ columns


def by_einsum(x, w, k, s, d, p):
    columns = F.unfold(x, k, dilation=d, padding=p, stride=s)
    return torch.einsum("ok,nkl->nol", w.reshape(w.shape[0], -1), columns)


def by_broadcasting(x, w, k, s, d, p):
    columns = F.unfold(x, k, dilation=d, padding=p, stride=s)
    return (w.reshape(1, w.shape[0], -1, 1) * columns[:, None]).sum(2)


def largest_in_window(x, w, k, s, d, p):
    columns = F.unfold(x, k, dilation=d, padding=p, stride=s)
    return columns.view(x.shape[0], x.shape[1], -1, columns.shape[-1]).amax(2)


def sums_of_columns(x, w, k, s, d, p):
    columns = F.unfold(x, k, dilation=d, padding=p, stride=s)
    return columns.mean(1), columns.sum(-1), columns.sum(0)


def columns_alone(x, w, k, s, d, p):
    return F.unfold(x, k, dilation=d, padding=p, stride=s)


def by_loops(x, w, k, s, d, p):
    """The layer that articles write by hand: two loops that add products into slices."""
    outs = w.shape[0]
    height = ((x.shape[2] + 2 * p - d * (k - 1) - 1) // s) + 1
    width = ((x.shape[3] + 2 * p - d * (k - 1) - 1) // s) + 1
    columns = F.unfold(x, (k, k), padding=(p, p), dilation=(d, d), stride=(s, s))
    windows = columns.transpose(1, 2).contiguous().view((-1, x.shape[1], k * k)).transpose(0, 1)
    weights = w.reshape(outs, x.shape[1], k * k)
    result = torch.zeros([x.shape[0] * outs, height, width], dtype=x.dtype)
    for channel in range(x.shape[1]):
        for i in range(outs):
            xx = torch.matmul(windows[channel], weights[i][channel])
            xx = xx.view((-1, height, width))
            part = slice(i * xx.shape[0], (i + 1) * xx.shape[0])
            result[part] += xx
    return result.view((x.shape[0], outs, height, width))


def by_views(x, w, k, s, d, p):
    padded = F.pad(x, (p, p, p, p))
    windows = padded.unfold(2, k, s).unfold(3, k, s)
    return torch.einsum("nchwij,ocij->nohw", windows, w)


def along_lines(x, w, k, s, d, p):
    return torch.einsum("nclk,ock->nol", x[:, :, 0].unfold(-1, k, s), w[:, :, 0])


def filtered_line(x, w, k, s, d, p):
    return x[0, 0, 0].unfold(0, k, s) @ w[0, 0, 0]


def by_shifts(x, w, k, s, d, p):
    height, width = x.shape[2] - k + 1, x.shape[3] - k + 1
    out = torch.zeros(x.shape[0], w.shape[0], height, width, dtype=x.dtype)
    for i in range(k):
        for j in range(k):
            part = x[:, :, i : i + height, j : j + width]
            out = out + torch.einsum("nchw,oc->nohw", part, w[:, :, i, j])
    return out


def gradient_of_input(x, w, k, s, d, p):
    """x stands for what comes back: a convolution of it, padded, with the weights turned round."""
    padded = F.pad(x, (k - 1, k - 1, k - 1, k - 1))
    windows = padded.unfold(2, k, 1).unfold(3, k, 1)
    return torch.einsum("nchwij,ocij->nohw", windows, w.flip(2, 3))


def gradient_of_weights(x, w, k, s, d, p):
    """The image with itself in the place of what comes back: few results, long sums."""
    height, width = x.shape[2] - k + 1, x.shape[3] - k + 1
    windows = x.unfold(2, k, 1).unfold(3, k, 1)
    return torch.einsum("nchwij,nohw->ocij", windows, x[:, :, :height, :width])


PROGRAMS: list[Callable[..., Any]] = [
    by_unfold, by_einsum, by_broadcasting, largest_in_window, sums_of_columns, columns_alone,
    by_loops, by_views, along_lines, filtered_line, by_shifts, gradient_of_input,
    gradient_of_weights,
]  # fmt: skip


def cases(seed: int, count: int) -> Iterator[Case]:
    """Sizes around the lanes of a vector and the tiles of a kernel, where the windows fit."""
    r = random.Random(seed)
    while count:
        k = r.choice([1, 2, 3, 3, 5, 7])
        s, d, p = r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 3]), r.choice([0, 0, 1, 2, 3])
        n, c = r.choice([1, 2, 3]), r.choice([1, 2, 3, 5, 16, 33])
        o = r.choice([1, 2, 4, 16, 20, 33])
        h, w = (r.choice([1, 3, 5, 8, 16, 17, 31, 33, 40, 64, 100]) for _ in range(2))
        if min(h, w) + 2 * p > d * (k - 1) and min(h, w) >= k:
            count -= 1
            yield n, c, o, k, s, d, p, h, w
