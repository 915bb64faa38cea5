"""A line on the terminal about what takes more than two seconds.

In: what is done. Out: on stderr, if that is a terminal: `lowtide try: timing, 5 s`, which is erased
at the end. Otherwise nothing.

    with progress("lowtide try"):
        say("timing")
        with progress("budget"):      # inside another: `lowtide try: budget: plan 3`
            say("plan 3")
        settle()                      # before an answer is printed
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

_PATIENCE_S: Final = 2.0
_EACH_S: Final = 0.5
_WIDTH: Final = 79
_ERASE: Final = "\r\x1b[K"


class _Line:
    """The line that is shown."""

    doing = ""
    within = ""  # the names of the blocks inside the first one
    ended: threading.Event | None = None
    thread: threading.Thread | None = None


def say(doing: str) -> None:
    """Say what is done from here on, for a progress line around it."""
    _Line.doing = f"{_Line.within}{doing}"


def settle() -> None:
    """End the line, if there is one: an answer follows."""
    thread, ended = _Line.thread, _Line.ended
    _Line.thread = _Line.ended = None
    if thread is not None and ended is not None:
        ended.set()
        thread.join()


@contextmanager
def progress(name: str) -> Generator[None]:
    """Show `name`, what `say` was told last, and the seconds, until `settle` or the end of the
    block. Inside another such block, on any thread, the line is the outer one's."""
    if _Line.thread is not None:
        before = _Line.doing, _Line.within
        _Line.within = f"{_Line.within}{name}: "
        try:
            yield
        finally:
            _Line.doing, _Line.within = before
        return
    if not _is_terminal():
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def show() -> None:
        wait, is_shown = _PATIENCE_S, False
        while not ended.wait(wait):
            wait, is_shown = _EACH_S, True
            seconds = f"{', ' if _Line.doing else ''}{time.monotonic() - begun:.0f} s"
            what = f"{name}: {_Line.doing}"[: _WIDTH - len(seconds)]
            sys.stderr.write(f"{_ERASE}{what}{seconds}")
            sys.stderr.flush()
        if is_shown:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()

    _Line.doing, _Line.within, _Line.ended = "", "", ended
    _Line.thread = threading.Thread(target=show, name="lowtide progress", daemon=True)
    _Line.thread.start()
    try:
        yield
    finally:
        settle()


def _is_terminal() -> bool:
    """Return whether stderr is one; it may be None, or closed."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
