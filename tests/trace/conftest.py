"""Tracing tests see internal faults, and run on the reference evaluator (as tests/pipeline)."""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.execute import backend

_PATH = Path(__file__).parent.parent / "pipeline" / "standin.py"
_SPEC = importlib.util.spec_from_file_location("trace_standin", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
standin = importlib.util.module_from_spec(_SPEC)
sys.modules["trace_standin"] = standin
_SPEC.loader.exec_module(standin)


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    if os.environ.get("LOWTIDE_TEST_BACKEND") != "c":
        backend.use(standin.compile_program)
    with faults.strict(), warnings.catch_warnings():
        warnings.simplefilter("error", lt.TracerWarning)
        yield
    backend.use(None)
