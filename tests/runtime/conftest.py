"""A cache folder for one test, with no compiler and no warning known from the tests before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lowtide import config
from lowtide.runtime import cache, folder, toolchain


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh cache folder, in force within the test."""
    monkeypatch.setattr(folder, "_warned", set())
    monkeypatch.setattr(cache, "_loaded", {})
    toolchain._compiler.cache_clear()
    with config.override(cache_dir=str(tmp_path / "cache"), compiler=""):
        yield tmp_path / "cache"
    toolchain._compiler.cache_clear()
