"""Every test starts without an open scope and with counts at zero."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import lowtide as lt


@pytest.fixture(autouse=True)
def stats() -> Iterator[lt.ScopeStatistics]:
    """The thread's statistics, reset; no scope may be left open."""
    assert lt.current_dispose_scope() is None
    found = lt.scope_statistics()
    found.reset()
    yield found
    found.stop()
    assert lt.current_dispose_scope() is None
