"""The line about what takes long: on a terminal only, erased before an answer."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest
import torch

import lowtide as lt
from lowtide.budget import search
from lowtide.diagnostics import progress
from lowtide.diagnostics.progress import say, settle


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


def test_a_block_within_another_has_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(progress, "_EACH_S", 0.001)
    with progress.progress("lowtide try"):
        say("timing")
        with progress.progress("a plan"):
            say("3 tried")
            wait_for("lowtide try: a plan: 3 tried, 0 s", out)
        out.truncate(0)
        wait_for("lowtide try: timing, 0 s", out)


def test_a_long_line_keeps_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "_PATIENCE_S", 0.001)
    with progress.progress("lowtide try"):
        say("x" * 200)
        wait_for(", 0 s", out)
    assert max(len(line) for line in out.getvalue().split("\r\x1b[K")) == 79


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_program_without_stderr(monkeypatch: pytest.MonkeyPatch, stream: str | None) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stream else None)
    with progress.progress("lowtide try"):
        say("timing")


def ranked(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x, -1).values.cumsum(1)


def test_the_search_for_a_plan_says_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    monkeypatch.setattr(search, "say", said.append)
    with pytest.raises(lt.BudgetError):
        lt.script(ranked, budget="1kB")(torch.rand(60, 50))
    assert re.fullmatch(r"1 tried, the best has [\d.]+ KiB", said[0])
    assert len(said) > 1
