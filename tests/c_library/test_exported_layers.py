"""Layers that PyTorch's library does are exported: their kernels give what eager PyTorch gives, and
the C library what these kernels give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.layers(x, src_key_padding_mask=hidden)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(self.lstm(x)[0].transpose(0, 1))[0] + x.cumsum(1).sum(-1).t()[..., None]


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


class Rescaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.shuffle = nn.ConvTranspose2d(4, 3, 4, 2, 1), nn.PixelShuffle(2)
        self.nearest = nn.Upsample(scale_factor=2.0)
        self.linear = nn.Upsample(scale_factor=2.0, mode="bilinear")

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) + self.shuffle(x) + (self.nearest(x) * self.linear(x)).sum(1, True)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "encoder": (Encoder, (torch.rand(2, 40, 16), torch.arange(40).expand(2, 40) > 30)),
    "tagger": (Tagger, (torch.rand(2, 40, 6),)),
    "rescaled": (Rescaled, (torch.rand(1, 4, 40, 6),)),
    "images": (images, (torch.rand(2, 3, 24, 24),)),
}


@pytest.mark.parametrize("name", MODELS)
def test_layers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, args = MODELS[name]
    model = make().eval()
    found = lt.export_c(lt.script(model), tmp_path, args)
    assert "largest difference" in found.selftest()
    with torch.no_grad():
        expected = model(*args)
    recorded = bytearray((tmp_path / "model_selftest.bin").read_bytes()[-expected.nbytes :])
    got = torch.frombuffer(recorded, dtype=torch.float32).view(expected.shape)
    torch.testing.assert_close(got, expected)
