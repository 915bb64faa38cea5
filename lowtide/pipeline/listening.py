"""Who is told of the graphs that this thread calls: a rehearsal, `explain_compiled`, a promise.

with listening.by(hear):
    compiled(x)             hear(graph, inputs) for each captured graph; what it gives is the
                            graph's result, unless that is `RUN`
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

Listener = Callable[[Any, tuple[Any, ...]], Any]


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.asking = 0  # of these: those whose own the call is
        self.plays: Callable[[Any, Any, Any], Any] | None = None  # scripted functions, in its stead


of_thread: Final = _OfThread()
RUN: Final = object()  # the graph is to be run


@contextlib.contextmanager
def by(listener: Listener) -> Generator[None]:
    """Inside, it is told of the calls that it makes itself."""
    of_thread.asking += 1
    try:
        with along(listener):
            yield
    finally:
        of_thread.asking -= 1


@contextlib.contextmanager
def along(listener: Listener) -> Generator[None]:
    """Inside, it is told of a call of the user's."""
    of_thread.listeners.append(listener)
    try:
        yield
    finally:
        of_thread.listeners.remove(listener)


@contextlib.contextmanager
def playing(play: Callable[[Any, Any, Any], Any]) -> Generator[None]:
    """Inside, it is asked for what a scripted function gives, with the arguments of a call that a
    mode keeps from being compiled."""
    before, of_thread.plays = of_thread.plays, play
    try:
        yield
    finally:
        of_thread.plays = before


def is_asked() -> bool:
    """Whether the calls of this thread are none of the user's."""
    return of_thread.asking > 0


def hear(graph: Any, args: tuple[Any, ...]) -> Any:
    """Tells them of a call; `RUN`, or its result."""
    found: Any = RUN
    for listener in list(of_thread.listeners):
        given = listener(graph, args)
        found = given if given is not RUN else found
    return found
