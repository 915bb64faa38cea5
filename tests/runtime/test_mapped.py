"""Memory that lies in no heap, for as long as an op runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from lowtide.runtime import libc
from lowtide.runtime.mapped import Mapped


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    if not libc.keeps_holes():
        pytest.skip("needs glibc")
    # What the environment asks of malloc is not what is tested.
    usual = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-m", "tests.runtime.mapped_alone"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=usual)
    return json.loads(done.stdout)


def test_what_is_large_is_mapped_by_itself_while_it_is_on(alone: dict[str, Any]) -> None:
    assert not alone["before"]
    assert alone["on"]
    assert alone["again"]
    assert not alone["after"]


def test_all_is_as_before_afterwards(alone: dict[str, Any]) -> None:
    """Whatever the end was."""
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
