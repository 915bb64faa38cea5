"""Pipeline tests see internal faults, and run on the reference evaluator.

LOWTIDE_TEST_BACKEND=c runs them on compiled kernels instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import standin

from lowtide.diagnostics import faults
from lowtide.execute import backend


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    if os.environ.get("LOWTIDE_TEST_BACKEND") != "c":
        backend.use(standin.compile_program)
    with faults.strict():
        yield
    backend.use(None)
