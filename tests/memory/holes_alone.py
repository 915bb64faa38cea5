"""What a step of a network takes on the heap as it comes, in a process that has done nothing else.

`python -m tests.memory.holes_alone` prints the predicted peak and the largest of three measured
ones, in bytes. Nothing is said to the C library about what it keeps of freed memory.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.quickly import compile_quickly


def network() -> nn.Module:
    """Convolutions of many sizes, with norms between: their backward passes leave holes."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 5, padding=2, bias=False),
        nn.Dropout(0.1),
        nn.Conv2d(32, 32, 1),
        nn.GroupNorm(8, 32),
        nn.LeakyReLU(0.1),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.GroupNorm(8, 32),
        nn.GELU(),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.Conv2d(32, 32, 3, padding=1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    net, x = network(), torch.rand(8, 4, 64, 64, requires_grad=True)
    compiled: Any = lt.script(net)

    def step() -> None:
        compiled(x).sum().backward()

    measured: list[int] = []
    for k in range(4):
        net.zero_grad()
        x.grad = None
        peak = measure_peak(step, release=lt.empty_cache)[0].peak_bytes
        if k:  # the first call compiles
            measured.append(peak)
    net.zero_grad()
    x.grad = None
    predicted = compiled.memory(x).peak_bytes
    print(json.dumps({"predicted": predicted, "measured": max(measured)}))


if __name__ == "__main__":
    compile_quickly()
    main()
