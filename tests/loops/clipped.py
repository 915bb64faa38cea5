"""Loops whose iterations take what lies around a place, where it is there: programs for tests."""

from __future__ import annotations

import torch
from torch import Tensor


def moving_mean(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[max(0, i - 3) : i + 1].mean(0))
    return torch.stack(outs)


def mean_of_earlier(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[max(0, i - 3) : i].mean(0))  # of nothing at first
    return torch.stack(outs)


def moving_largest(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[max(0, i - 3) : i + 2].max(0).values)
    return torch.stack(outs)


def where_largest(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[max(0, i - 3) : i + 2].argmax(0))
    return torch.stack(outs)


def local_attention(x: Tensor) -> Tensor:
    n = x.shape[0]
    outs: list[Tensor] = []
    for i in range(n):
        low, high = max(0, i - 4), min(n, i + 5)
        weights = torch.softmax(x[low:high] @ x[i], 0)
        outs.append(weights @ x[low:high])
    return torch.stack(outs)


def weighted(x: Tensor) -> Tensor:
    n = x.shape[0]
    weights = torch.arange(5, dtype=x.dtype)
    outs: list[Tensor] = []
    for i in range(n):
        low, high = max(0, i - 2), min(n, i + 3)
        outs.append((x[low:high] * weights[low - i + 2 : high - i + 2, None]).sum(0))
    return torch.stack(outs)


def roots(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(torch.sqrt(x[max(0, i - 3) : i + 1].abs()).sum(0))
    return torch.stack(outs)


def first_and_last(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        part = x[max(0, i - 3) : i + 1]
        outs.append(part[0] * 2 + part[-1] * part.shape[0])
    return torch.stack(outs)


def strided_largest(x: Tensor, size: int, step: int) -> Tensor:
    outs: list[Tensor] = [x[0] * 0]
    for i in range(0, x.shape[0] - size + 1, step):
        outs.append(x[i : i + size].max(0).values)
    return torch.stack(outs)


def spread(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[max(0, i - 2) : i + 1] += x[i]
    return out


def neighbours(x: Tensor, far: int) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        total = torch.zeros_like(x[0])
        for j in range(max(0, i - far), min(n, i + far + 1)):
            total = total + x[j] * x[i]
        out[i] = total
    return out


def every_third(x: Tensor) -> Tensor:
    total = x.new_zeros(())
    for i in range(x.shape[0]):
        for j in range(i, x.shape[0], 3):
            total = total + (x[i] * x[j]).sum()
    return total


def back_by_two(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(i, -1, -2):
            out[i] += x[j] * (i + 1)
    return out


def sparse_neighbours(x: Tensor) -> Tensor:
    n = x.shape[0]
    total = x.new_zeros(())
    for i in range(1, n, 2):
        for j in range(max(i - 4, 0), min(i + 5, n), 3):
            total = total + (x[i] * x[j]).sum() / (1 + j)
    return total


def with_borders(x: Tensor) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        for k in range(-2, 3):
            if 0 <= i + k < n:
                out[i] += x[i + k] * (k + 3)
    return out


def without_outside(x: Tensor) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        for k in range(-2, 3):
            outside = i + k < 0 or i + k >= n
            if outside or k == 0:
                continue
            out[i] += x[i + k] * (k + 3)
    return out


def handed_out(x: Tensor, step: int) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        for k in range(-2, 3):
            if 0 <= i + k < n:
                out[i + k] += x[i] * (k + 3)
        for j in range(i, n, step):
            out[j] += x[i] * x[j]
    return out


def nearest_inside(x: Tensor) -> Tensor:
    n = x.shape[0]
    outs: list[Tensor] = []
    for i in range(n):
        outs.append(x[max(i - 2, 0)] * 2 - x[min(i + 1, n - 1)])
    return torch.stack(outs)


# What must not be lifted.


def overwritten_parts(x: Tensor) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        out[max(0, i - 2) : min(n, i + 2)] = x[i]
    return out


def means_of_means(x: Tensor) -> Tensor:
    out = x * 1
    for i in range(x.shape[0]):
        out[i] = out[max(0, i - 3) : i + 1].mean(0)
    return out


def written_at_the_end(x: Tensor) -> Tensor:
    n = x.shape[0]
    out = torch.zeros_like(x)
    for i in range(n):
        out[min(i + 2, n - 1)] = x[i]
    return out


def from_the_end(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[i - 3 : i + 1].sum(0))  # a negative bound counts from the end
    return torch.stack(outs)


def of_many_sizes(x: Tensor) -> Tensor:
    outs: list[Tensor] = []
    for i in range(x.shape[0]):
        outs.append(x[max(0, i - 2) : i + 1])
    return torch.cat(outs)
