"""Attention and reductions that PyTorch runs on CUDA: its kernels, and what they take inside."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import lowtide as lt
from lowtide.memory import attention_cuda
from lowtide.memory.cudnn import Places
from lowtide.memory.ledger import Ledger
from lowtide.memory.like_cuda import LikeCuda
from lowtide.memory.reductions_cuda import extremes, sums, variances
from tests.memory.cuda_calls import ON_CUDA, requested

aten = torch.ops.aten
HALF = torch.float16


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# On an H100, by PyTorch 2.11's own launches.
SUMMED = [
    (sums, aten.sum.dim_IntList, (8192, 384), [0], HALF, 25_166_604),
    (sums, aten.sum.dim_IntList, (1024, 8, 384), [0, 1], torch.float32, 25_166_604),
    (sums, aten.mean.dim, (8192, 384), [0], torch.float64, 50_333_184),
    (extremes, aten.amax.default, (8192, 384), [0], HALF, 12_583_692),
    (variances, aten.var.correction, (8192, 384), [0], HALF, 100_664_076),
    (sums, aten.sum.dim_IntList, (384, 8192), [1], torch.float32, 0),
    (sums, aten.sum.dim_IntList, (100, 384), [0], torch.float32, 0),
]


@pytest.mark.parametrize(("bound", "op", "shape", "dims", "dtype", "measured"), SUMMED)
def test_parts_of_columns(
    bound: Any, op: Any, shape: Any, dims: Any, dtype: torch.dtype, measured: int
) -> None:
    x = meta(*shape, dtype=dtype)
    assert measured <= bound((x, dims), op(x, dims)) <= 1.001 * measured + 4096


def planned(q: Tensor, **options: Any) -> tuple[int, int]:
    """Bytes kept by the forward pass, and at the peak of the backward pass."""
    q.requires_grad_()
    ledger = Ledger(of_host=False)
    ledger.given([q])
    with ledger, LikeCuda(torch.device("cuda:0"), Places(), ledger.notes):
        y = F.scaled_dot_product_attention(q, q, q, **options)
        kept = ledger.live_bytes
        torch.autograd.grad(y, q, torch.ones_like(y))
    return kept, ledger.peak_bytes


@pytest.mark.parametrize("kernel", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION"])
def test_one_kernel_keeps_no_scores(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cuda, "_choice", lambda *_: getattr(SDPBackend, kernel))
    q = meta(2, 4, 1024, 64, dtype=HALF)
    kept, peak = planned(q)
    assert q.nbytes <= kept <= 1.1 * q.nbytes
    assert peak < 14 * q.nbytes


def test_in_parts_dropout_keeps_a_mask_of_bools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cuda, "_choice", lambda *_: SDPBackend.MATH)
    q = meta(2, 4, 512, 64)
    scores = 2 * 4 * 512 * 512 * 4
    kept, _ = planned(q, dropout_p=0.1)
    assert 2.25 * scores <= kept <= 2.25 * scores + 4 * q.nbytes


class Attended(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


KERNELS = {
    "flash": ([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION], HALF),
    "efficient": ([SDPBackend.EFFICIENT_ATTENTION], torch.float32),
    "parts": ([SDPBackend.MATH], torch.float32),
    "parts of halves": ([SDPBackend.MATH], HALF),
}


@ON_CUDA
@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", KERNELS)
def test_cuda_takes_what_was_predicted(name: str, requires_grad: bool) -> None:
    kernels, dtype = KERNELS[name]
    with sdpa_kernel(kernels), torch.set_grad_enabled(requires_grad):
        module = Attended(dtype).cuda()
        x = torch.rand(1, 32, 64, device="cuda").to(dtype).requires_grad_(requires_grad)
        compiled = lt.script(module)
        predicted = compiled.memory(x).peak_bytes
        taken = requested(compiled, module, x)
    assert taken <= predicted <= 1.1 * taken + 65_536
