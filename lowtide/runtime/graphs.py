"""Records sequences of launches as CUDA graphs, and replays them.

In:  a key of everything that the launches depend on, and a function that makes them. Out: they are
     launched.

    the steps of an LSTM, 300 x 3 kernels    1st call   launched from Python
    in the same memory at each call          2nd        recorded, and launched as a graph
                                             later      launched as that graph

PyTorch's allocator usually gives calls of the same sizes the same memory; otherwise nothing is
recorded. A graph has launches only: nothing is allocated during recording. CUDA's driver needs some
KB for each launch in a graph, outside of PyTorch's allocator. So their number is limited, and the
graphs that were launched longest ago are freed.
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

FEWEST, MOST = 8, 1 << 13  # launches: the fewest for a graph, and the most in all graphs
REMEMBERED = 64  # number of keys


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
        """Call `launch`, or replay the graph of an earlier call with an equal key. `launch` makes
        at most `launches` launches, and does nothing else, on the current stream."""
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
        """Free all graphs."""
        with self._lock:
            self._seen.clear()

    def _recorded(self, device: torch.device, launch: Callable[[], None]) -> Any:
        """Return a graph, None if recording fails; then nothing is recorded any more."""
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
        except Exception:  # a launch without recording raises it again, if it matters
            self._refused = True
            return None
        return graph

    def _remember(self, key: Hashable, seen: _Seen) -> None:
        """Note the launches as the latest; forget the oldest ones beyond the limits."""
        with self._lock:
            self._seen[key] = seen
            self._seen.move_to_end(key)
            keys, launches = REMEMBERED, MOST
            for other, x in reversed([*self._seen.items()]):
                keys -= 1
                launches -= x.launches if x.graph is not None else 0
                if keys < 0 or launches < 0:
                    del self._seen[other]


GRAPHS = Graphs()


def _is_capturing(device: torch.device) -> bool:
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


@contextmanager
def _other_generator(device: torch.device) -> Generator[None]:
    """A context in which the device's generator has a copy of its state. After a failed recording,
    PyTorch's generator would refuse to draw, since it waits for the recording to end."""
    generators: tuple[Any, ...] = torch.cuda.default_generators
    generator = next((g for g in generators if g.device == device), None)
    if generator is None:  # a device of a test
        yield
        return
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)


def _is_alone() -> bool:
    """Return whether no other thread may draw random numbers, which PyTorch refuses on a GPU while
    a graph is recorded. (The threads of autograd's engine are not counted: the main thread waits
    for them, and draws none.)"""
    main = threading.main_thread()
    return all(t is main or t.daemon for t in threading.enumerate())
