"""Plain matrix products on a GPU: the kernel or PyTorch's own, whichever was faster, once known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime import choice
from tests.blocks.stand_in import Gpu

KERNEL, THEIRS = 0, 1
N = 64  # so that there are as many multiplications as a measurement is worth
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def product(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def turned(x: Tensor, y: Tensor) -> Tensor:
    return x.mT @ y.mT


def rounded_twice(x: Tensor, y: Tensor) -> Tensor:
    return (x.float() @ y.float()).to(x.dtype)


def added(x: Tensor, y: Tensor) -> Tensor:
    return x @ y + 1


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ways that win, the last one first to be asked for; each measurement runs both."""
    wins = [KERNEL]

    def run(
        first: Callable[[], object], second: Callable[[], object], settle: Callable[[], object]
    ) -> int:
        first()
        second()
        settle()
        return wins[-1]

    monkeypatch.setattr(choice, "_measured", run)
    return wins


def operands(dtype: torch.dtype, batch: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    shape = (batch, N, N) if batch else (N, N)
    x, y = (torch.randn(shape, dtype=torch.float64).to(dtype) for _ in range(2))
    return x, y


def check(fn: Callable[..., Tensor], found: Tensor, x: Tensor, y: Tensor) -> None:
    want = fn(x.double(), y.double())
    near = {torch.bfloat16: 2e-2, torch.float16: 3e-3}.get(x.dtype, 1e-4)
    assert found.dtype is fn(x, y).dtype
    torch.testing.assert_close(found.double(), want, rtol=near, atol=near)


@pytest.mark.parametrize("winner", [KERNEL, THEIRS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_faster_one_runs(
    winner: int, dtype: torch.dtype, gpu: Gpu, measured: list[int]
) -> None:
    measured[:] = [winner]
    compiled = lt.script(product)
    x, y = operands(dtype)
    check(product, compiled(x, y), x, y)
    assert len(gpu.launched) == 1  # the measurement's
    check(product, compiled(x, y), x, y)
    assert len(gpu.launched) == (2 if winner == KERNEL else 1)
    name = ("kernel", "torch.matmul")[winner]
    assert f"or torch.matmul, by measurement (now {name})" in str(compiled.explain(x, y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", [product, turned])
def test_theirs_of_batches_and_parts(
    fn: Callable[..., Tensor], dtype: torch.dtype, gpu: Gpu, measured: list[int]
) -> None:
    """As matrices of other strides, that begin behind the first element of their memory."""
    measured[:] = [THEIRS]
    compiled = lt.script(fn)
    x, y = (a[1:] for a in operands(dtype, batch=3))
    for _ in range(2):
        check(fn, compiled(x, y), x, y)
    assert len(gpu.launched) == 1


def test_small_ones_are_not_measured(gpu: Gpu, measured: list[int]) -> None:
    measured[:] = [THEIRS]
    compiled = lt.script(product)
    x, y = operands(torch.bfloat16)
    for n in (N - 1, N - 1):
        check(product, compiled(x[:n], y), x[:n], y)
    assert len(gpu.launched) == 2


def test_within_a_users_graph_nothing_is_measured(gpu: Gpu, measured: list[int]) -> None:
    compiled = lt.script(product)
    x, y = operands(torch.bfloat16)
    gpu.capturing = True
    check(product, compiled(x, y), x, y)
    assert not gpu.launched
    gpu.capturing = False
    for _ in range(2):
        check(product, compiled(x, y), x, y)
    assert len(gpu.launched) == 2


@pytest.mark.parametrize("fn", [rounded_twice, added])
def test_what_is_more_than_a_product_is_a_kernel(
    fn: Callable[..., Tensor], gpu: Gpu, made: list[BlockKernels]
) -> None:
    """A program that widens by itself asks for a sum in float32; PyTorch's product of halves may
    have parts of it in less."""
    x, y = operands(torch.bfloat16)
    check(fn, lt.script(fn)(x, y), x, y)
    assert made
    assert not any(e.products for e in made)


def test_a_sum_that_is_wanted_itself(gpu: Gpu, measured: list[int]) -> None:
    """PyTorch's product would give the rounded one only."""

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.float() @ y.float()
        return wide, wide.to(x.dtype)

    measured[:] = [THEIRS]
    compiled = lt.script(both)
    x, y = operands(torch.bfloat16)
    for _ in range(2):
        for found, want in zip(compiled(x, y), both(x, y), strict=True):
            torch.testing.assert_close(found, want, rtol=2e-2, atol=1e-3)
