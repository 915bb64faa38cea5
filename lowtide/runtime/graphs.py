"""CUDA graphs: replays a sequence of launches as one.

In:  a key of all that decides the launches, and a function that makes them. Out: they are launched.

    the steps of an LSTM, 300 x 3 kernels    1st call   launched from Python
    in the same memory at each call          2nd        recorded, and launched as a graph
                                             later      launched as that graph

PyTorch's allocator usually gives calls of the same sizes the same memory. Otherwise nothing is
recorded. A graph holds launches only: nothing is allocated during recording. CUDA's driver takes
some KB for each launch in a graph, outside of PyTorch's allocator. So their number is limited, and
the graph that was launched longest ago is freed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lowtide.runtime.block_kernels import RECORDING

FEWEST, MOST = 8, 1 << 13  # launches that are worth a graph, and those in all graphs
REMEMBERED = 64  # keys


@dataclass(slots=True, kw_only=True)
class _Seen:
    launches: int
    graph: Any = None


class Graphs:
    """All graphs of the process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, _Seen] = OrderedDict()
        self._lock = threading.Lock()
        self._refused = False

    def launch(
        self, key: Hashable, device: torch.device, launches: int, launch: Callable[[], None]
    ) -> None:
        """Calls `launch`, or has the GPU do again what it did when it was called with an equal
        key. It makes about so many launches, and nothing else, on the current stream."""
        if not FEWEST <= launches <= MOST or self._refused or _is_capturing(device):
            launch()
            return
        with self._lock:
            seen = self._seen.get(key)
        if seen is None:
            launch()
            self._remember(key, _Seen(launches=launches))
            return
        if seen.graph is None and _is_alone():
            seen.graph = self._recorded(device, launch)
        self._remember(key, seen)
        if seen.graph is None:
            launch()
        else:
            seen.graph.replay()

    def clear(self) -> None:
        """Gives all of them back."""
        with self._lock:
            self._seen.clear()

    def _recorded(self, device: torch.device, launch: Callable[[], None]) -> Any:
        """A graph; None where the driver makes none: then no other is tried."""
        try:
            graph: Any = torch.cuda.CUDAGraph()
            stream = torch.cuda.Stream(device)
            with _other_generator(device), torch.cuda.device(device), torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                RECORDING.on = True
                try:
                    launch()
                finally:
                    RECORDING.on = False
                    graph.capture_end()
        except Exception:  # whatever it was: launched one by one, it is raised again if it matters
            self._refused = True
            return None
        return graph

    def _remember(self, key: Hashable, seen: _Seen) -> None:
        """As the latest; what was launched longest ago is forgotten where there is no room."""
        with self._lock:
            self._seen[key] = seen
            self._seen.move_to_end(key)
            keys, room = REMEMBERED, MOST
            for other, x in reversed([*self._seen.items()]):
                keys -= 1
                room -= x.launches if x.graph is not None else 0
                if keys < 0 or room < 0:
                    del self._seen[other]


GRAPHS = Graphs()


def _is_capturing(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextmanager
def _other_generator(device: torch.device) -> Generator[None]:
    """PyTorch's generator of random numbers waits for a recording that has failed, and refuses to
    draw outside of it: what is recorded here has a copy of its state."""
    generators: tuple[Any, ...] = torch.cuda.default_generators
    generator = next((g for g in generators if g.device == device), None)
    if generator is None:  # of a stand-in
        yield
        return
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


def _is_alone() -> bool:
    """Does no other thread draw random numbers? PyTorch refuses these on a GPU for which a graph is
    recorded. (The engine of backward passes has threads of its own; the one that waits for it draws
    none.)"""
    main = threading.main_thread()
    return all(t is main or t.daemon for t in threading.enumerate())
