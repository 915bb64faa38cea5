"""Memory that lies in no heap, for as long as an op runs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from lowtide.runtime import libc
from lowtide.runtime.mapped import Mapped

MB = 1 << 20


@pytest.mark.skipif(not libc.keeps_holes(), reason="needs glibc")
def test_what_is_mapped_by_itself_leaves_nothing_in_the_heap() -> None:
    """Nor in what the heap had free before, or has since."""
    command = [sys.executable, "-m", "tests.runtime.mapped_alone"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = json.loads(printed)
    assert found["before"] > 8 * MB
    assert found["on"] < MB
    assert found["again"] < MB
    assert found["after"] > 8 * MB


def test_where_the_heap_leaves_no_holes_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "leaves_holes", lambda: False)
    monkeypatch.setattr(libc, "function", pytest.fail)
    mapped = Mapped()
    mapped.on()
    assert not mapped.is_on
    mapped.off()
