"""A profile of CUDA tensors: the bytes are those of PyTorch's own statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Recurrent(nn.Module):
    """Its state is let go of between two operators, by Python."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.GRU(32, 64, batch_first=True), nn.Linear(64, 500)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[0])


def freed_by_python(x: Tensor) -> Tensor:
    large = torch.cat([x, x, x])
    small = large.sum()
    del large
    return torch.cat([x, x]) * small


def trained(x: Tensor) -> Tensor:
    layer = nn.Linear(32, 400, device="cuda")
    for _ in range(3):
        layer.zero_grad()
        layer(x).exp().sum().backward()
    return x


@pytest.mark.parametrize("call", [Recurrent, freed_by_python, trained])
def test_cuda_peaks_are_pytorchs(call: Callable[..., object]) -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 20, 32, device="cuda")
    made = call().cuda() if isinstance(call, type) else call
    with torch.backends.cudnn.flags(enabled=False):
        for _ in range(2):
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            with lt.profile() as prof:
                result = made(x)
            peak = torch.cuda.max_memory_allocated() - before
            del result
    assert prof.peaks["cuda:0"] == peak


def test_cuda_what_is_freed_between_operators_is_not_live() -> None:
    x = torch.rand(1000, device="cuda")
    with lt.profile() as prof:
        freed_by_python(x)
        torch.ones(5000, device="cuda")
    assert [one.nbytes for one in prof.live_at_peak()] == [20_480]
