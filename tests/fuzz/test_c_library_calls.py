"""Wrong and unusual calls of exported C, as `python -m tests.fuzz.c_library` tries them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fuzz.c_library import CASES, exported, sets_here, tried


@pytest.mark.parametrize("name", ["picked", pytest.param("parts", marks=pytest.mark.long)])
def test_calls(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    exported(CASES[name], tmp_path)
    found = tried(tmp_path, next(iter(sets_here().values())), seed=1, rounds=500)
    assert found.returncode == 0, found.stderr[-4000:]
    counts = [int(n) for n in found.stdout.split()]
    assert counts[0] > 20, "calls that work"
    assert counts[2] > 5, "short workspaces"
    assert counts[6] > 50, "bad pointers"
