"""Measures the peak memory and the time of a call.

In: a callable without arguments. Out: `Peak` (bytes requested from the allocators, beyond those
in use before the call) and `Timing` (nanoseconds of each call).

A peak counts requests to PyTorch's allocator, on any thread, and to Lowtide's arena. These are the
same in every run. Memory that libraries take from malloc, and pages that malloc retains, do not
count.

    peak, result = measure_peak(lambda: torch.rand(1000, 1000) + 1)
    peak.peak_bytes                                     # 8_000_000
    timings = time_alternating({"eager": f, "compiled": g}, repeats=10)
    timings["eager"].median_ns
"""

from __future__ import annotations

import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch

from lowtide.runtime import arena
from lowtide.torch_private.profiler import RecordFunction, quiet_kineto
from lowtide.torch_private.pytree import tensors_in

T = TypeVar("T")

_ARENA = "lowtide.arena "  # an event's prefix; the bytes follow, negative where they are freed


@dataclass(frozen=True, kw_only=True)
class Peak:
    """`peak_bytes` are those beyond the start of the call, its result included. `method`:
    `"profiler"` (requests to PyTorch's allocator and the arena) or `"allocator"` (on a GPU, bytes
    that PyTorch's allocator has in use)."""

    peak_bytes: int
    time_ns: int
    method: str


@dataclass(kw_only=True)
class Timing:
    """Times of single calls, in order."""

    samples_ns: list[float] = field(default_factory=list[float])

    @property
    def min_ns(self) -> float:
        """The fastest call."""
        return min(self.samples_ns)

    @property
    def median_ns(self) -> float:
        """The median of the calls."""
        return statistics.median(self.samples_ns)


def measure_peak(call: Callable[[], T], *, device: torch.device | None = None) -> tuple[Peak, T]:
    """Run `call` once and return its peak memory and its result.

    Warm the call up first: memory that a first call allocates for good counts as well. On a CUDA
    `device`, the peak is that of PyTorch's allocator for the device."""
    gc.collect()
    if device is not None and device.type == "cuda":
        return _allocator_peak(call, device)
    return _profiled_peak(call)


def time_call(call: Callable[[], T]) -> tuple[float, T]:
    """Run `call` once and return its nanoseconds and its result."""
    with quiet_gc():
        _settle()
        start = time.perf_counter_ns()
        result = call()
        _settle()
        return float(time.perf_counter_ns() - start), result


def time_alternating(
    calls: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 10,
    seconds: float = 2.0,
    min_sample_ns: float = 0.0,
    on_round: Callable[[int], None] | None = None,
) -> dict[str, Timing]:
    """Time callables in turns: a, b, a, b, …, so that drift of the machine affects all alike.

    Each callable gets 1 to `repeats` samples, and no further one once its samples have taken
    `seconds`. With `min_sample_ns`, a sample is the mean of as many calls as fill that time: use it
    for calls of microseconds. `on_round(i)` is called before each turn. Warm up first.
    """
    timings = {name: Timing() for name in calls}
    inner = {name: _calls_per_sample(call, min_sample_ns) for name, call in calls.items()}
    spent_ns = dict.fromkeys(calls, 0.0)
    with quiet_gc():
        for turn in range(max(repeats, 1)):
            if on_round is not None:
                on_round(turn)
            due = [name for name in calls if turn == 0 or spent_ns[name] < seconds * 1e9]
            if not due:
                break
            for name in due:
                sample_ns = _time_repeated(calls[name], inner[name])
                spent_ns[name] += sample_ns * inner[name]
                timings[name].samples_ns.append(sample_ns)
    return timings


def tensor_bytes(value: object, *, beyond: object = ()) -> int:
    """Return bytes of the storages of all tensors in a nest of tuples, lists and dicts. Each
    storage counts once; storages of tensors in `beyond` do not count."""
    known = {storage.data_ptr() for storage in _storages(beyond)}
    total = 0
    for storage in _storages(value):
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def _storages(value: object) -> list[torch.UntypedStorage]:
    return [tensor.untyped_storage() for tensor in tensors_in(value)]


def _allocator_peak(call: Callable[[], T], device: torch.device) -> tuple[Peak, T]:
    cuda: Any = torch.cuda
    _settle()
    cuda.reset_peak_memory_stats(device)
    before_bytes = cuda.memory_allocated(device)
    time_ns, result = time_call(call)
    peak_bytes = cuda.max_memory_allocated(device) - before_bytes
    return Peak(peak_bytes=peak_bytes, time_ns=int(time_ns), method="allocator"), result


def _settle() -> None:
    """Waits for the GPUs: their kernels run asynchronously."""
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(device):  # synchronize() would start an unused device
                torch.cuda.synchronize(device)


def _profiled_peak(call: Callable[[], T]) -> tuple[Peak, T]:
    with (
        quiet_kineto(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile,
        _marked_arena(),
    ):
        time_ns, result = time_call(call)
    live_bytes = peak_bytes = 0
    for _, nbytes in sorted(_memory_events(profile), key=lambda event: event[0]):
        live_bytes += nbytes
        peak_bytes = max(peak_bytes, live_bytes)
    return Peak(peak_bytes=peak_bytes, time_ns=int(time_ns), method="profiler"), result


@contextmanager
def _marked_arena() -> Generator[None]:
    """Inside, each request to the arena and each release is an event in PyTorch's recording."""

    def mark(_address: int, nbytes: int) -> None:
        with RecordFunction(f"{_ARENA}{nbytes}"):
            pass

    arena.set_observer(mark)
    try:
        yield
    finally:
        arena.set_observer(None)


def _memory_events(profile: torch.profiler.profile) -> list[tuple[int, int]]:
    """Return (start in ns, bytes allocated or, negative, freed) of each event of the two
    allocators."""
    results: Any = profile.profiler.kineto_results if profile.profiler is not None else None
    events: list[Any] = [] if results is None else results.events()
    found: list[tuple[int, int]] = []
    for event in events:
        name: str = event.name()
        if name == "[memory]":
            found.append((event.start_ns(), event.nbytes()))
        elif name.startswith(_ARENA):
            found.append((event.start_ns(), int(name.removeprefix(_ARENA))))
    return found


def _calls_per_sample(call: Callable[[], object], min_sample_ns: float) -> int:
    count = 1
    while min_sample_ns > 0 and _time_repeated(call, count) * count < min_sample_ns:
        count *= 2
    return count


def _time_repeated(call: Callable[[], object], count: int) -> float:
    """Mean nanoseconds of one of `count` calls, each result dropped before the next."""
    _settle()
    if count == 1:
        # Freeing a large result takes as long as some kernels, so the time excludes it.
        start = time.perf_counter_ns()
        result = call()
        _settle()
        taken = time.perf_counter_ns() - start
        del result
        return float(taken)
    start = time.perf_counter_ns()
    for _ in range(count):
        call()
    _settle()
    return (time.perf_counter_ns() - start) / count


@contextmanager
def same_python_random() -> Generator[None]:
    """Restores the state of Python's and NumPy's random generators at the end."""
    numpy: Any = sys.modules.get("numpy")
    state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(state)
        if numpy:
            numpy.random.set_state(numpy_state)


@contextmanager
def same_random_numbers() -> Generator[None]:
    """Restores the state of PyTorch's random generators at the end, on every device in use. A GPU
    that is first used inside gets its initial seed back."""
    was_used, seed = torch.cuda.is_initialized(), torch.initial_seed()
    devices = range(torch.cuda.device_count()) if was_used else ()
    try:
        with cast("Any", torch.random).fork_rng(devices):
            yield
    finally:
        if torch.cuda.is_initialized() and not was_used:
            torch.cuda.manual_seed_all(seed)


@contextmanager
def quiet_gc(*, collect: bool = True) -> Generator[None]:
    """Turns garbage collection off inside: a collection can take many milliseconds. Existing
    garbage is collected first, unless `collect` is False."""
    was_enabled = gc.isenabled()
    if collect:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
