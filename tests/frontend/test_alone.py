"""What works in a process that has scripted nothing else: tables are filled by imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ALONE = """
import warnings
import torch
import lowtide as lt

def careful(x: torch.Tensor):
    if not x.is_floating_point():
        warnings.warn("an integer tensor")
    return x + 1

with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    assert lt.script(careful)(torch.arange(3)).tolist() == [1, 2, 3]
assert [str(w.message) for w in seen] == ["an integer tensor"]
"""


def test_a_warning_in_a_function(tmp_path: Path) -> None:
    file = tmp_path / "alone.py"
    file.write_text(ALONE)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
