"""Programs whose slices may be empty: a formula that is dropped everywhere must read nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def joined(x, y, n: int):
    return torch.cat([x[:n], x]) * 2


def written(x, y, n: int):
    out = torch.zeros(x.shape[0], x.shape[1])
    out[n : n + x[:n].shape[0]] = x[:n] + 1
    return out


def written_rows(x, y, n: int):
    out = torch.zeros(x.shape[0], x.shape[1])
    out[5 : 5 + y.shape[0]] = y
    return out + x


def added_to(x, y, n: int):
    out = x * 1
    out[:, y.shape[0] :] += 3
    out[y.shape[0] :, 2] = 7
    return out


def added_in_a_loop(x, y, n: int):
    out = torch.zeros(x.shape[0] * 3, x.shape[1])
    for i in range(x.shape[0]):
        out[3 * i : 3 * i + n // 20] += 1
    return out


PROGRAMS: list[Callable[..., Any]] = [joined, written, written_rows, added_to, added_in_a_loop]
