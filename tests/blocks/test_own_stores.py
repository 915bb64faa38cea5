"""No thread of a program on a GPU reads from memory what another one has just written there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels


def moments(x: Tensor) -> tuple[Tensor, ...]:
    mean = x.mean()
    variance = ((x - mean) ** 2).mean()
    return mean, variance, variance.sqrt(), variance > 1


def one_column(x: Tensor) -> tuple[Tensor, ...]:
    y = x[:, 0].sum(0, keepdim=True)
    return y, y - y.amax(0), torch.logical_xor(y, y.amax(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [moments, one_column])
def test_values_are_held(
    fn: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype, made: list[BlockKernels]
) -> None:
    x = torch.randn(5, 40).to(dtype)
    for found, want in zip(lt.script(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(found, want)
    for text in (t.text for executable in made for t in executable.texts):
        stored, loaded = (set(re.findall(rf"tl\.{w}\((p_\w+) ", text)) for w in ("store", "load"))
        assert stored.isdisjoint(loaded), text
