"""Every language program runs compiled as it does in plain Python; see `support.py`.

`known_failures.txt` holds the names that are known to fail. They are strict expected failures: one
that starts to pass must leave the list (`python -m tests.language --write-known`).
"""

from __future__ import annotations

import pytest

from tests.language.support import FOLDER, PROGRAMS, check, load, run_plain, topics

KNOWN = FOLDER / "known_failures.txt"


def _cases() -> list[object]:
    known = set(KNOWN.read_text().split()) if KNOWN.exists() else set()
    fails = pytest.mark.xfail(strict=True, reason="listed in known_failures.txt")
    return [
        pytest.param(p.full_name, id=p.full_name, marks=[fails] if p.full_name in known else [])
        for p in load()
    ]


@pytest.mark.parametrize("name", _cases())
def test_compiled_equals_plain(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.parametrize("topic", topics())
def test_programs_are_plain_python(topic: str) -> None:
    for p in PROGRAMS.values():
        if p.topic == topic and not p.refused:
            run_plain(p)


def test_known_failures_exist() -> None:
    assert set(KNOWN.read_text().split()) <= set(PROGRAMS)
