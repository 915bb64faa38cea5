"""The gradient of a bias that attention adds to its scores: no scores are stored for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak


def written_out(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    return (scores.softmax(-1) @ v).square().mean()


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).sin().mean()


def gradients(fn: Any, args: list[Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(fn(*args), args)


def given(batch: int, n: int, m: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(n)
    shapes = (batch, n, 16), (batch, m, 16), (batch, m, 16), (n, m)
    return [torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("fn", [written_out, fused])
def test_scores_are_not_stored(fn: Any) -> None:
    args = given(8, 700, 700)  # scores of 16 MB
    compiled: Any = lt.script(fn)
    gradients(compiled, args)
    peak = measure_peak(lambda: gradients(compiled, args))[0].peak_bytes
    results = sum(x.nbytes for x in args)
    assert peak - results < 6 << 20
    assert compiled.memory(*args).peak_bytes - results < 6 << 20


@pytest.mark.parametrize("fn", [written_out, fused])
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_gradients(fn: Any, batch: int) -> None:
    for n, m in ((5, 3), (130, 67)):
        args = given(batch, n, m, torch.float64)
        torch.testing.assert_close(gradients(lt.script(fn), args), gradients(fn, args))


def test_rows_that_see_nothing_and_nan() -> None:
    for bad in (-math.inf, math.nan):
        args = given(4, 70, 65, torch.float64)
        with torch.no_grad():
            args[3][3] = bad
            args[3][7, 2] = bad
        torch.testing.assert_close(
            gradients(lt.script(written_out), args), gradients(written_out, args), equal_nan=True
        )
