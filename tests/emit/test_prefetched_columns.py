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


def with_bias(x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.exp(x + b)
    return y, y.sum(0)


def test_what_no_step_moves_is_not_prefetched() -> None:
    x, b = torch.rand(200, 2560), torch.rand(2560)
    c = lt.script(with_bias).stages(x, b)[-1][1]
    far = [line for line in c.splitlines() if "__builtin_prefetch" in line]
    assert far
    assert not any("p_x1" in line or "p_b" in line for line in far)


@pytest.mark.parametrize(("fn", "is_far"), [(columns, True), (rows, False), (inner_columns, False)])
def test_far_steps_are_prefetched(fn: Callable[[Tensor], object], is_far: bool) -> None:
    x = torch.rand(200, 2560)
    compiled = lt.script(fn)
    assert ("__builtin_prefetch" in compiled.stages(x)[-1][1]) == is_far
    torch.testing.assert_close(compiled(x), fn(x))
