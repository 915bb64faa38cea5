"""Indices that all lanes of a vector share are plain ints."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt


def messages(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return torch.zeros_like(h).index_add(0, target, h[source] * 2)


def rows(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return h[torch.where(source > target, source - target, 1)].exp()


def narrow(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return h[source.int()] + h[target.int() - 1]


def computed(h: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return h[torch.maximum(source, target)].exp()  # not read, compared or added up


@pytest.mark.parametrize(
    ("fn", "is_plain"), [(messages, True), (rows, True), (narrow, True), (computed, False)]
)
def test_rows_at_indices(fn: Callable[..., Tensor], is_plain: bool) -> None:
    gen = torch.Generator().manual_seed(0)
    h = torch.randn(30, 70, generator=gen)
    source, target = (torch.randint(-30, 30, (90,), generator=gen) for _ in range(2))
    target = target.abs().clamp(0, 29)
    compiled = lt.script(fn)
    last = compiled.stages(h, source, target)[-1][1].split("kernel_task")[-1]
    assert bool(re.search(r"lt_clamp\(r\d+,", last)) == is_plain
    torch.testing.assert_close(compiled(h, source, target), fn(h, source, target))
    wrong = source.clone()
    wrong[3] = 30
    with pytest.raises(IndexError):
        compiled(h, wrong, target.clamp(max=0))
