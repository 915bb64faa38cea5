"""The same program gives the same C in every process, whatever the addresses and hashes there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

import lowtide as lt
from lowtide.runtime import cache
from tests.loops import windows
from tests.quickly import compile_quickly


def chamfer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    d = (a[:, None] - b[None]).square().sum(-1)
    return d.amin(1).mean() + d.amin(0).mean()


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v


def recurrence(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[0])
    out: list[torch.Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ w)
        out.append(h)
    return torch.stack(out)


def compile_all() -> int:
    """Compiles the programs of this file with their gradients; gives how many kernels were new."""

    def run(fn: object, *shapes: tuple[int, ...], rest: tuple[int, ...] = ()) -> None:
        xs = [torch.randn(s, requires_grad=True) for s in shapes]
        lt.script(fn)(*xs, *rest).sum().backward()

    run(chamfer, (70, 3), (50, 3))
    run(attention, (2, 40, 8), (2, 50, 8), (2, 50, 8))
    run(recurrence, (5, 4, 6), (6, 6))
    run(windows.by_unfold, (1, 3, 41, 37), (4, 3, 3, 3), rest=(3, 2, 1, 1))
    return cache.stats().compiles


def test_the_same_in_every_process(tmp_path: Path) -> None:
    counts = [
        int(
            subprocess.run(
                [sys.executable, "-m", "tests.emit.test_deterministic"],
                env={
                    **os.environ,
                    "PYTHONHASHSEED": str(seed),
                    "LOWTIDE_CACHE_DIR": str(tmp_path),
                    "LOWTIDE_STRICT": "1",
                },
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in (1, 2)
    ]
    assert counts[0] > 8
    assert counts[1] == 0


if __name__ == "__main__":
    compile_quickly()
    print(compile_all())
