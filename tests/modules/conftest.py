"""Module tests see internal faults, and run on the reference evaluator.

LOWTIDE_TEST_BACKEND=c runs them on compiled kernels instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "pipeline"))
import standin

from lowtide.diagnostics import faults
from lowtide.execute import backend


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    torch.manual_seed(0)
    if os.environ.get("LOWTIDE_TEST_BACKEND") != "c":
        backend.use(standin.compile_program)
    with faults.strict():
        yield
    backend.use(None)
