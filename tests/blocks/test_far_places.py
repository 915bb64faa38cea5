"""Places are counted in 64 bits where 32 do not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernel import reach
from lowtide.runtime import block_kernels
from lowtide.runtime.block_kernels import LARGE, BlockKernel, Form
from lowtide.texpr.index import Axis, Index, Size, as_index
from lowtide.texpr.index_ranges import clamp, floordiv, mod
from lowtide.texpr.sizes import evaluate
from tests.blocks.programs import CASES
from tests.blocks.test_values import backward, leaves, results

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


@pytest.mark.parametrize("name", ["kernel-sum", "places", "strided", "looked-up", "conv", "lstm"])
def test_values_counted_in_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place, whatever its size; of loops, all steps in one launch among them."""
    forms: set[bool] = set()
    real = BlockKernel.launch

    def launch(self: BlockKernel, programs: int, form: Form, handed: list[Any]) -> None:
        forms.add(form.wide)
        real(self, programs, form, handed)

    monkeypatch.setattr(block_kernels, "LARGE", 0)
    monkeypatch.setattr(BlockKernel, "launch", launch)
    case = CASES[name]
    given, same = leaves(case), leaves(case)
    got, want = results(lt.script(case.fn)(*given)), results(case.fn(*same))
    near = {"rtol": 10 * case.tolerance, "atol": 10 * case.tolerance}
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, **near)
    if case.grad:
        backward(got)
        backward(want)
        for g, w in zip(given, same, strict=True):
            if isinstance(w, Tensor) and w.grad is not None:
                torch.testing.assert_close(g.grad, w.grad, **near)
    assert forms == {True}
