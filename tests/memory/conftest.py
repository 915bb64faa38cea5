"""Peaks are measured here, so memory that PyTorch frees is unmapped at once.

Before the first test of the process: holes that earlier tests had left in the heap would be taken
again, and stay resident.
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest

from lowtide.runtime import libc, ours

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of mallopt

if sys.platform == "linux":
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)
    libc.leaves_holes = lambda: False


@pytest.fixture
def small_ones_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small is written over too, as within a budget."""
    monkeypatch.setattr(ours, "LEAST_BYTES", 0)
    monkeypatch.setattr(ours, "_FREE", ours.Rules(takes_heap=True))


@pytest.fixture(autouse=True)
def heap_of_earlier_tests() -> None:
    """A measure collects several times: it looks at what its own test has made, no more."""
    gc.collect()
    gc.freeze()
