"""Long causal attention is left to PyTorch's CPU kernel, which skips what the mask hides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True) * 2


def inputs(rows: int, columns: int, width: int = 16) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, 2, n, width, requires_grad=True) for n in (rows, columns, columns)]


def test_from_1024_rows_and_columns_on() -> None:
    compiled = lt.script(attend)
    for rows, columns in ((60, 60), (1024, 1024), (1023, 1100), (1100, 1023), (1500, 1100)):
        given = inputs(rows, columns)
        got = compiled(*given)
        torch.testing.assert_close(got, attend(*given), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(got.sum(), given),
            torch.autograd.grad(attend(*given).sum(), given),
            rtol=1e-3,
            atol=1e-4,
        )
        is_left = "skips the blocks" in str(compiled.explain(*given))
        assert is_left == (min(rows, columns) >= 1024), (rows, columns)


def test_other_ranks_have_no_such_kernel() -> None:
    given = [x[0] for x in inputs(1100, 1100)]
    compiled = lt.script(attend)
    torch.testing.assert_close(compiled(*given), attend(*given), rtol=1e-4, atol=1e-5)
    assert ", 0 ops left" in str(compiled.explain(*given))
