"""Writes a GRU denoiser that takes one frame a call as C: `python export.py FOLDER`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import lowtide as lt

FRAME = 160  # 10 ms at 16 kHz


class Denoiser(nn.Module):
    """A gain for each of 32 bands of a frame, from all frames so far; random weights."""

    hidden: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bands, self.back = nn.Linear(FRAME, 32), nn.Linear(32, FRAME)
        self.cell, self.gain = nn.GRUCell(32, 48), nn.Linear(48, 32)
        self.register_buffer("hidden", torch.zeros(1, 48))

    def forward(self, frame: Tensor) -> Tensor:
        bands = self.bands(frame[None])
        self.hidden = self.cell(bands.abs().log1p(), self.hidden)
        return self.back(bands * self.gain(self.hidden).sigmoid())[0]


def model() -> Denoiser:
    torch.manual_seed(0)
    return Denoiser().eval()


if __name__ == "__main__":
    compiled = lt.script(model())
    frame = (torch.rand(FRAME),)
    fixed = {"frame.shape[0]": FRAME}
    print(lt.export_c(compiled, sys.argv[1], frame, name="denoise", sizes=fixed))
