"""The rounding of long float sums over several axes, some of them short."""

from __future__ import annotations

import torch
from torch import Tensor

import lowtide as lt


def over_three(x: Tensor) -> Tensor:
    return (x * 1).sum((0, 1, 2))


def test_short_axes_count_as_terms() -> None:
    x = torch.rand(300, 4, 7, 19, generator=torch.Generator().manual_seed(0))
    truth = over_three(x.double())
    got = (lt.script(over_three)(x) - truth).abs()
    eager = (over_three(x) - truth).abs().max()
    assert (got <= 4 * eager + 4 * torch.finfo(torch.float32).eps * truth).all()
