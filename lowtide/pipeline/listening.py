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


of_thread: Final = _OfThread()
RUN: Final = object()  # the graph is to be run


@contextlib.contextmanager
def by(listener: Listener) -> Generator[None]:
    """Inside, it is told."""
    of_thread.listeners.append(listener)
    try:
        yield
    finally:
        of_thread.listeners.remove(listener)


@contextlib.contextmanager
def by_nobody() -> Generator[None]:
    """Inside, nobody is."""
    before, of_thread.listeners = of_thread.listeners, []
    try:
        yield
    finally:
        of_thread.listeners = before


def is_on() -> bool:
    """Whether somebody is."""
    return bool(of_thread.listeners)


def hear(graph: Any, args: tuple[Any, ...]) -> Any:
    """Tells them of a call; `RUN`, or its result."""
    found: Any = RUN
    for listener in list(of_thread.listeners):
        given = listener(graph, args)
        found = given if given is not RUN else found
    return found
