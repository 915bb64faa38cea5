"""Sums over channels that lie side by side: one axis for all of them, and values as they lie.

Every program is compared with eager, channels first and last, with its gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.grad.eager_gradients import same

Program = Callable[..., Any]


def group_norm(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    y = x.view(n, 4, c // 4, h, w)
    mean = y.mean((2, 3, 4), keepdim=True)
    var = ((y - mean) ** 2).mean((2, 3, 4), keepdim=True)
    return torch.relu(((y - mean) * torch.rsqrt(var + 1e-5)).view(n, c, h, w))


def of_groups(x: Tensor) -> Tensor:
    return x.unflatten(1, (4, -1)).sum((2, 3, 4))


def of_members(x: Tensor) -> Tensor:
    """The outer of the two is summed over, the inner stays."""
    return x.unflatten(1, (-1, 4)).sum((1, 3, 4))


def of_both(x: Tensor) -> Tensor:
    return x.unflatten(1, (4, -1)).square().sum((1, 2, 3, 4))


def of_neither(x: Tensor) -> Tensor:
    """Both are axes of the result, in their order and in the other one."""
    y = x.unflatten(1, (4, -1)).sum((3, 4))
    return y + y.amax(2, keepdim=True) + y.transpose(1, 2).sum(1, keepdim=True).mT


def turned_about(x: Tensor) -> Tensor:
    return x.unflatten(1, (4, -1)).transpose(1, 2).sum((3, 4)) * 2


def extremes(x: Tensor) -> Tensor:
    y = x.unflatten(1, (4, -1))
    return y.amax((2, 3, 4)) - y.amin((2, 3, 4))


def of_two_that_lie_otherwise(x: Tensor) -> Tensor:
    return (x * x.contiguous()).unflatten(1, (4, -1)).sum((2, 3, 4))


def read_twice(x: Tensor) -> Tensor:
    """A value that is stored: it is summed up before it is used."""
    y = torch.exp(x.unflatten(1, (4, -1)) * 0.1)
    return (y / y.sum((2, 3, 4), keepdim=True)).flatten(1, 2)


PROGRAMS: list[Program] = [
    group_norm, of_groups, of_members, of_both, of_neither, turned_about, extremes,
    of_two_that_lie_otherwise, read_twice,
]  # fmt: skip


def images(n: int, c: int, h: int, w: int, last: bool) -> Tensor:
    x = torch.randn(n, c, h, w, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x.to(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_like_eager(fn: Program, last: bool) -> None:
    for n, c, h, w in ((2, 16, 9, 8), (5, 8, 34, 33), (1, 12, 40, 3), (3, 64, 33, 34)):
        same(fn, images(n, c, h, w, last))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("fn", [of_groups, of_members, of_both], ids=lambda f: f.__name__)
def test_dtypes(fn: Program, dtype: torch.dtype) -> None:
    x = (images(3, 16, 20, 33, True) * 8).to(dtype)
    with faults.strict():
        got = lt.script(fn)(x)
    wide = fn(x.double() if x.is_floating_point() else x)
    rtol = 1e-2 if dtype is torch.bfloat16 else 1e-4
    torch.testing.assert_close(got.double(), wide.double(), rtol=rtol, atol=rtol * 10)
    assert got.dtype is fn(x).dtype


def test_vectors_go_along_channels() -> None:
    """One pass over memory as it lies: the sum's vectors are of channels, not of places."""
    x = images(4, 16, 64, 64, True).float()
    text = next(t for name, t in lt.script(of_groups).stages(x) if name == "tile program")
    assert "_whole = sum" in text
    first = images(4, 16, 64, 64, False).float()
    text = next(t for name, t in lt.script(of_groups).stages(first) if name == "tile program")
    assert "_whole = sum" not in text


@pytest.mark.parametrize("groups", [1, 2, 4, 16])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_norm_of_groups_in_training(groups: int, last: bool) -> None:
    """Batches of up to four, which short sums once were written out for, and of five."""
    weight, bias = torch.randn(2, 16, dtype=torch.float64)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.relu(F.group_norm(x, groups, weight, bias))

    for n in (1, 2, 4, 5):
        same(norm, images(n, 16, 12, 11, last), weight, bias)


def test_what_others_add_to_stays() -> None:
    """On a GPU a gradient by places is a definition that another one adds to."""

    def looked_up(x: Tensor, i: Tensor) -> Tensor:
        return of_groups(x) * x[:, i].sum((1, 2, 3))[:, None]

    same(looked_up, images(3, 16, 20, 33, True), torch.tensor([1, 1, 15]))
