"""Places are counted in 64 bits where 32 do not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernel import reach
from lowtide.runtime.blocks import LARGE, BlockKernel
from lowtide.texpr.index import Axis, Index, Size, as_index, clamp, floordiv, mod
from lowtide.texpr.sizes import evaluate

N, M = (as_index(Size(name, 33)) for name in "NM")


def largest(index: Index, n: int, m: int) -> int:
    return max(evaluate(bound, {"N": n, "M": m}) for bound in reach(index))


def test_reach() -> None:
    i, k = as_index(Axis("i", N)), as_index(Axis("k", N * M))
    assert largest(M * i - 3, 5, 7) == 38
    assert largest(floordiv(k, M), 5, 7) == 35  # what is divided, too
    assert largest(2 * mod(k * 4, M), 5, 7) == 140
    assert largest(clamp(i - M, as_index(3)), 5, 7) == 12
    assert largest(floordiv(i, M), 5, 0) == 5  # and nothing is divided by 0


def pairs(x: Tensor, y: Tensor) -> Tensor:
    return (x[:, None] - y[None]).abs()


def least(x: Tensor, y: Tensor) -> Tensor:
    return pairs(x, y).argmin()


def of_seven(x: Tensor, y: Tensor) -> Tensor:
    return pairs(x, y).reshape(-1, 7).amax(0)


@pytest.mark.parametrize("fn", [least, of_seven])
@pytest.mark.parametrize("n", [70, 70_000])
def test_what_no_tensor_has(
    fn: Callable[..., Any], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def call(self: BlockKernel, programs: int, reach: int, *_: object, **__: int) -> None:
        found.append(reach)

    monkeypatch.setattr(BlockKernel, "__call__", call)
    lt.script(fn)(torch.zeros(n), torch.zeros(n - 9))
    assert (max(found) >= LARGE) == (n > 70)
