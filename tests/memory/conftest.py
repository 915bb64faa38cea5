"""Peaks are measured here, so memory that PyTorch frees is unmapped at once.

Before the first test of the process: holes that earlier tests had left in the heap would be taken
again, and stay resident. Those that other folders' tests leave later are taken before each test.
"""

from __future__ import annotations

import gc

import pytest

from lowtide.runtime import libc, ours
from lowtide.runtime.mapped import Mapped

_mapped = Mapped()
_mapped.on()
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
    if _mapped.is_on:
        libc.trim()
        _mapped._take_free()
