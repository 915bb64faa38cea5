"""Predictions are compared with what is asked of the allocators, whatever malloc does with it."""

from __future__ import annotations

import gc

import pytest

from lowtide.runtime import ownership


@pytest.fixture
def small_ones_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is small is written over too."""
    monkeypatch.setattr(ownership, "LEAST_BYTES", 0)


@pytest.fixture(autouse=True)
def heap_of_earlier_tests() -> None:
    """A measure collects several times: it looks at what its own test has made, no more."""
    gc.collect()
    gc.freeze()
