"""Blocks for few points are small; a signature that is called with many then gets other kernels."""

from __future__ import annotations

import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.execute import replan


def shifted(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(x) @ (y + 1)


def inputs(n: int, m: int, k: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(n, k) * 0.1, torch.randn(k, m)


def near(compiled: lt.ScriptFunction, *given: Tensor) -> None:
    torch.testing.assert_close(compiled(*given), shifted(*given), rtol=1e-3, atol=1e-3)


def test_large_blocks_for_large_sizes(made: list[BlockKernels]) -> None:
    compiled, small, large = lt.script(shifted), inputs(40, 36, 50), inputs(500, 470, 70)
    for given in (small, large, small, inputs(41, 38, 50), inputs(470, 500, 80)):
        near(compiled, *given)
    first, second = dict.fromkeys(made)
    assert first.time_ns({}) > 0
    tiles = [[t.tile or 1 for t in e.plans[0].grid] for e in (first, second)]
    assert tiles[0] < tiles[1]
    assert replan.OUTGROWN in str(compiled.explain(*large))
    assert replan.OUTGROWN not in str(compiled.explain(*small))


def test_blocks_that_suit_stay(made: list[BlockKernels]) -> None:
    """Sizes that are four times as large, and kernels that would be no faster."""
    compiled = lt.script(shifted)
    for n in (300, 1250):
        near(compiled, *inputs(n, 200, 60))
    assert len(dict.fromkeys(made)) == 1
