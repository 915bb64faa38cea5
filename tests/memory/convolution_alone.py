"""What a step of one convolution takes, beside what is predicted.

`python -m tests.memory.convolution_alone 8 8 3 2 1` prints the measured peak, in bytes, of a
process that has done nothing else. In: channels, channels made, kernel, stride, whether the input
wants a gradient.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.quickly import compile_quickly


def peaks(channels: int, made: int, kernel: int, stride: int, wants_input: bool) -> tuple[int, int]:
    """Measured, the lesser of two, and predicted."""
    conv = torch.nn.Conv2d(channels, made, kernel, stride, padding=kernel // 3)
    x = torch.rand(4, channels, 112, 112, requires_grad=wants_input)
    compiled: Any = lt.script(conv)

    def step() -> None:
        compiled(x).sum().backward()
        conv.zero_grad()
        x.grad = None

    step()
    measured = min(measure_peak(step, release=lt.empty_cache)[0].peak_bytes for _ in range(2))
    return measured, compiled.memory(x).peak_bytes


def measured_alone(*which: int) -> int:
    """What a new process measures."""
    command = [sys.executable, "-m", "tests.memory.convolution_alone", *map(str, map(int, which))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    import tests.memory.conftest  # noqa: F401  (what is freed is unmapped at once)

    compile_quickly()
    *sizes, wants = map(int, sys.argv[1:])
    print(peaks(*sizes, bool(wants))[0])
