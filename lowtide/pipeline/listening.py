"""Who is told of the graphs that this thread calls: a rehearsal, `explain_compiled`, a promise.

with listening.by(hear):
    compiled(x)             hear(graph, inputs) for each captured graph; what it gives is the
                            graph's result, unless that is `RUN`

with listening.afterwards(told):
    compiled(x)             told(graph, results); `is_running()` while a graph runs
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
        self.afterwards: list[Callable[[Any, Any], None]] = []  # are told of a graph's results
        self.running = 0  # graphs, one within another
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
def afterwards(listener: Callable[[Any, Any], None]) -> Generator[None]:
    """Inside, it is told of the results of graphs, and `is_running` holds in these."""
    of_thread.afterwards.append(listener)
    try:
        with along(_runs):
            yield
    finally:
        of_thread.afterwards.remove(listener)


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


def is_running() -> bool:
    """Whether this thread runs a graph that somebody was told of."""
    return of_thread.running > 0


def run(graph: Any, args: tuple[Any, ...], call: Callable[..., Any]) -> Any:
    """What the graph gives, by a listener or by its call."""
    found = hear(graph, args)
    if found is not RUN:
        return found
    of_thread.running += 1
    try:
        results = call(*args)
    finally:
        of_thread.running -= 1
    for listener in list(of_thread.afterwards):
        listener(graph, results)
    return results


def hear(graph: Any, args: tuple[Any, ...]) -> Any:
    """Tells them of a call; `RUN`, or its result."""
    found: Any = RUN
    for listener in list(of_thread.listeners):
        given = listener(graph, args)
        found = given if given is not RUN else found
    return found


def _runs(graph: Any, args: tuple[Any, ...]) -> Any:
    """A listener: where there is none, graphs tell nobody."""
    return RUN
