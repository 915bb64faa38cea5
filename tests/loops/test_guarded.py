"""No kernel of a loop or a window touches memory that is not its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lowtide as lt
from tests.loops.windows import gradient_of_input

ROOT = Path(__file__).parents[2]
LONG = [["branches"], ["scans"], ["empties"], ["windows", "0", "15"], ["windows", "100", "3"]]


@pytest.mark.parametrize(
    "kind",
    [["lifted"], ["kept"], *(pytest.param(k, marks=pytest.mark.long) for k in LONG)],
    ids=lambda k: "-".join(k[:2]),
)
def test_memory_is_left_alone(kind: list[str]) -> None:
    command = [sys.executable, "-m", "tests.loops.under_guard", *kind]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"{last}\n{done.stderr}"


def test_work_memory_of_windows_is_bounded() -> None:
    """Tiles of axes whose size is constant are no larger than these."""
    f = lt.script(gradient_of_input)
    x, w = torch.randn(3, 16, 5, 40), torch.randn(1, 16, 7, 7)
    assert f.memory(x, w, 7, 2, 1, 2).peak_bytes < 16 << 20
