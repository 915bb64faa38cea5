"""Rows that are -inf throughout: sums that follow a running maximum are NaN where PyTorch's are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt


def total(x: Tensor) -> Tensor:
    return (x - x.max(-1, keepdim=True)[0]).exp().sum(-1)


def weighted(x: Tensor) -> Tensor:
    return ((x - x.amax(-1, keepdim=True)).exp() * torch.sigmoid(x)).sum(-1)


def attention(x: Tensor) -> Tensor:
    return torch.softmax(x @ torch.ones(x.shape[1], 500), -1) @ torch.ones(500, 3)


def logsumexp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1)


@pytest.mark.parametrize("fn", [total, weighted, attention, logsumexp])
@pytest.mark.parametrize("rows", [3, 9, 40])
@pytest.mark.parametrize("columns", [8, 300])
def test_as_in_pytorch(fn: Callable[[Tensor], Tensor], rows: int, columns: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, columns)
    x[0, : columns // 2], x[1], x[2, 1] = -math.inf, -math.inf, math.inf
    torch.testing.assert_close(lt.script(fn)(x), fn(x), equal_nan=True)


def scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("fn", [scores, masked])
def test_long_rows_are_swept(fn: Callable[..., Tensor]) -> None:
    """Many rows and many columns: both are swept tile by tile, and the maximum is followed."""
    torch.manual_seed(0)
    given = [torch.randn(1, 2, 700, 40) for _ in range(3)]
    stages = dict(lt.script(fn).stages(*given))
    assert "_scale = " in stages["tile program"]
    torch.testing.assert_close(lt.script(fn)(*given), fn(*given), rtol=1e-4, atol=1e-5)


def test_no_columns() -> None:
    def weights(x: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(x @ v.t(), -1) @ v

    compiled = lt.script(weights)
    for n in (600, 0):
        x, v = torch.randn(40, 8), torch.randn(n, 8)
        torch.testing.assert_close(compiled(x, v), weights(x, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [128, 300])
def test_a_sum_in_tiles_of_its_own_waits_for_the_maximum(length: int) -> None:
    """The scores are stored; the weighted sum has tiles of columns around its sweep."""
    torch.manual_seed(0)
    given = [torch.randn(2, 4, length, 64) for _ in range(3)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    torch.testing.assert_close(lt.script(attend)(*given), attend(*given), rtol=1e-4, atol=1e-5)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("rows", [34, 300])
def test_nothing_is_staged_of_a_maximum_that_has_not_begun(rows: int, width: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 3, rows, width, requires_grad=True) for _ in range(3)]
    results = [(y, *torch.autograd.grad(y.sin().sum(), given)) for y in
               (f(*given) for f in (lt.script(causal), causal))]  # fmt: skip
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
