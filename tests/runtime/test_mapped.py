"""Memory that lies in no heap, for as long as an op runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from lowtide.runtime import libc
from lowtide.runtime.mapped import Mapped

MB = 1 << 20


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    if not libc.keeps_holes():
        pytest.skip("needs glibc")
    command = [sys.executable, "-m", "tests.runtime.mapped_alone"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed)


def test_what_is_mapped_by_itself_leaves_nothing_in_the_heap(alone: dict[str, Any]) -> None:
    """Nor in what the heap had free before, or has since."""
    for state in ("before", "after"):
        left_bytes, is_mapped = alone[state]
        assert left_bytes > 8 * MB
        assert not is_mapped
    for state in ("on", "again"):
        left_bytes, is_mapped = alone[state]
        assert left_bytes < MB
        assert is_mapped


def test_all_is_as_before_afterwards(alone: dict[str, Any]) -> None:
    """Whatever the end was."""
    assert abs(alone["lost"]) < MB
    assert not alone["forked"]
    assert not alone["gone"]
    for state in ("backward", "failed backward", "call", "failed call"):
        assert alone[state] == [True, False], state


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "70000", 70000),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=0x10000", 65536),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1:glibc.malloc.mmap_threshold=5", 5),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=", 0),
        ("MALLOC_MMAP_THRESHOLD_", "lots", 0),
    ],
)
def test_what_the_user_asked_glibc_for(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, found: int
) -> None:
    monkeypatch.setenv(name, value)
    assert libc.asked_threshold.__wrapped__() == found


def test_where_the_heap_leaves_no_holes_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libc, "leaves_holes", lambda: False)
    monkeypatch.setattr(libc, "function", pytest.fail)
    mapped = Mapped()
    mapped.on()
    assert not mapped.is_on
    mapped.off()
