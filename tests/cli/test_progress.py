"""The line about what takes long: on a terminal only, erased before an answer."""

from __future__ import annotations

import io
import sys
import time

import pytest

from lowtide.tools import progress
from lowtide.tools.progress import say, settle


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wait_for(text: str, out: io.StringIO) -> None:
    for _ in range(1000):
        if text in out.getvalue():
            return
        time.sleep(0.005)
    raise AssertionError(out.getvalue())


def test_a_terminal_shows_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(progress, "_EACH_S", 0.001)
    with progress.progress("lowtide try"):
        say("timing")
        wait_for("lowtide try: timing, 0 s", out)
        settle()
        assert out.getvalue().endswith("\r\x1b[K")
        shown = out.getvalue()
    assert out.getvalue() == shown


def test_nothing_is_shown_of_what_is_quick_or_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    with progress.progress("lowtide try"):
        say("timing")
    assert out.getvalue() == ""
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.0)
    with progress.progress("lowtide try"):
        time.sleep(0.01)
    assert piped.getvalue() == ""
