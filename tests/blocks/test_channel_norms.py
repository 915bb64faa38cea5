"""Batch norm in training on a GPU: statistics are in the dtype in which values are held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.codegen.triton.kernels import BlockKernels
from lowtide.runtime.cubins import SHARED_BYTES
from tests.blocks.cubins import kernels_of
from tests.blocks.programs import CASES

pytestmark = pytest.mark.usefixtures("as_on_gpus")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def normed(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(F.batch_norm(x, mean, var, w, b, training=True, momentum=0.3))


def twice(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.tanh(F.batch_norm(x, mean, var, w, b, training=True))
    return F.batch_norm(y, mean, var, w, b, training=True)


def read_afterwards(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.batch_norm(x, mean, var, w, b, training=True)
    return y * mean.sum() + torch.einsum("i->i", var).sum()


def arguments(shape: tuple[int, ...], dtype: torch.dtype, apart: float) -> list[Any]:
    """`apart`: how far the mean is from 0. A square of that is not to be in any sum."""
    torch.manual_seed(0)
    n = shape[1]
    x = (torch.randn(shape, dtype=torch.float64) * 2 + apart).to(dtype).requires_grad_()
    statistics = [torch.zeros(n, dtype=dtype), torch.ones(n, dtype=dtype)]
    parameters = [(torch.rand(n) + 0.5).to(dtype).requires_grad_() for _ in range(2)]
    return [x, *statistics, *parameters]


def flat(given: list[Any], found: Tensor) -> list[Tensor]:
    """The result, running statistics, gradients."""
    x, mean, var, w, b = given
    weights = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).to(found.dtype)
    (found.reshape(-1) * weights).sum().backward()
    return [found, mean, var, x.grad, w.grad, b.grad]


@pytest.mark.parametrize("fn", [normed, twice, read_afterwards])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 5), (4, 3, 9, 7), (3000, 2)])
def test_values(
    fn: Callable[..., Tensor],
    dtype: torch.dtype,
    shape: tuple[int, ...],
    made: list[BlockKernels],
) -> None:
    """Against float64: of sums in float32 there are fewer digits than of PyTorch's on the CPU."""
    near, apart = {
        torch.float32: (2e-3, 30.0), torch.float64: (1e-9, 30.0),
        torch.bfloat16: (1e-1, 1.0), torch.float16: (2e-2, 1.0),
    }[dtype]  # fmt: skip
    given, same = arguments(shape, dtype, apart), arguments(shape, dtype, apart)
    wide = [x.detach().double().requires_grad_(x.requires_grad) for x in same]
    want = flat(wide, fn(*wide))
    for g, w in zip(flat(given, lt.script(fn)(*given)), want, strict=True):
        assert g.dtype is dtype
        scale = float(w.detach().abs().max())
        torch.testing.assert_close(g.double(), w, rtol=near, atol=near * max(scale, 1))
    assert made, "no kernel ran"
    if dtype is not torch.float64:
        sums = "tl.float64" in "".join(e.source for e in made).replace("v_", "")
        assert not sums


@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_kernels_compile(capability: int) -> None:
    kernels = list(kernels_of(CASES["channels"], capability))
    assert kernels
    for kernel in kernels:
        kernel.compiled(capability)
