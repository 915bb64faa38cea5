"""Kernels that walk down columns prefetch later rows; those that walk along rows do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt


def columns(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.exp(x)
    return y, y.sum(0)


def rows(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.exp(x)
    return y, y.sum(1)


def inner_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.exp(x.view(-1, 40, 64))
    return y, y.sum(1)  # 256 bytes a step


@pytest.mark.parametrize(("fn", "is_far"), [(columns, True), (rows, False), (inner_columns, False)])
def test_far_steps_are_prefetched(fn: Callable[[Tensor], object], is_far: bool) -> None:
    x = torch.rand(200, 2560)
    compiled = lt.script(fn)
    assert ("__builtin_prefetch" in compiled.stages(x)[-1][1]) == is_far
    torch.testing.assert_close(compiled(x), fn(x))
