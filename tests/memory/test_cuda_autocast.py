"""Autocast on CUDA: what is cast is counted, once where PyTorch keeps it, and is all that is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import lowtide as lt
from lowtide.memory.casts import Casts
from tests.memory.cuda_calls import ON_CUDA


@pytest.fixture
def default_device() -> Iterator[Callable[[str], None]]:
    yield torch.set_default_device
    torch.set_default_device(None)


def test_casts_of_weights_are_kept_without_gradients() -> None:
    """As PyTorch keeps them, with a gradient, for which it computes a product otherwise."""
    op, x = torch.ops.aten.mm.default, torch.empty(8, 8, device="meta")
    weight, other = torch.empty_like(x, requires_grad=True), torch.empty_like(x)
    casts = Casts("cpu")
    with casts.on(), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        (_, first), _ = casts.given(op, (x, weight), {})[1]
        (_, second), _ = casts.given(op, (x, weight), {})[1]
        (_, third), _ = casts.given(op, (x, other), {})[1]
        (_, fourth), _ = casts.given(op, (x, other), {})[1]
    assert first is second
    assert first.requires_grad
    assert third is not fourth


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_a_default_device_is_seen(device: str, default_device: Callable[[str], None]) -> None:
    """It is a mode of functions, under which PyTorch leaves its fast path for encoders."""
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).to(device)
    module = nn.TransformerEncoder(layer, 2).eval()
    x = torch.rand(8, 128, 64, device=device)
    with torch.no_grad():
        torch.backends.mha.set_fastpath_enabled(False)
        slow = lt.script(module).memory(x).peak_bytes
        torch.backends.mha.set_fastpath_enabled(True)
        fast = lt.script(module).memory(x).peak_bytes
        default_device(device)
        assert fast != slow == lt.script(module).memory(x).peak_bytes
