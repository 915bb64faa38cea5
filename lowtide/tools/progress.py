"""A line on the terminal about what takes more than two seconds.

In: what is done. Out: on stderr, if that is a terminal: `lowtide try: timing, 5 s`, which is erased
at the end. Otherwise nothing.

    with progress("lowtide try"):
        say("timing")
        settle()               # before an answer is printed
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
    ended: threading.Event | None = None
    thread: threading.Thread | None = None


def say(doing: str) -> None:
    """Say what is done from here on, for a progress line around it."""
    _Line.doing = doing


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
    block."""
    if not sys.stderr.isatty():
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def show() -> None:
        wait, is_shown = _PATIENCE_S, False
        while not ended.wait(wait):
            wait, is_shown = _EACH_S, True
            what = ", ".join(filter(None, [_Line.doing, f"{time.monotonic() - begun:.0f} s"]))
            sys.stderr.write(f"{_ERASE}{f'{name}: {what}'[:_WIDTH]}")
            sys.stderr.flush()
        if is_shown:
            sys.stderr.write(_ERASE)
            sys.stderr.flush()

    _Line.doing, _Line.ended = "", ended
    _Line.thread = threading.Thread(target=show, name="lowtide progress", daemon=True)
    _Line.thread.start()
    try:
        yield
    finally:
        settle()
