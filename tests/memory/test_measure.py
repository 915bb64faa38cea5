"""Peak memory and times: of calls whose peak is known by construction."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from lowtide.memory.available import available_bytes
from lowtide.memory.measure import measure_peak, tensor_bytes, time_alternating, time_call

MIB = 1 << 20


def three_tensors() -> torch.Tensor:
    """At the peak two of 64 MiB are live; one of 64 MiB is returned."""
    x = torch.ones(16 * MIB)
    return x + 1


def test_peak_is_what_is_asked_for_at_once() -> None:
    for _ in range(2):
        peak, result = measure_peak(three_tensors)
        assert result.shape == (16 * MIB,)
        assert peak.method == "profiler"
        assert peak.peak_bytes == pytest.approx(128 * MIB, abs=64)


def test_what_is_never_touched_counts() -> None:
    peak, _ = measure_peak(lambda: torch.empty(64 * MIB))
    assert peak.peak_bytes == 256 * MIB


def test_an_exception_passes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        measure_peak(lambda: 1 // 0)


def test_turns_alternate() -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timings = time_alternating(calls, repeats=3)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert len(timings["a"].samples_ns) == 3
    assert timings["a"].min_ns <= timings["a"].median_ns


def test_a_slow_call_is_made_once_and_a_fast_one_goes_on() -> None:
    calls = {"slow": lambda: time.sleep(0.02), "fast": lambda: None}
    timings = time_alternating(calls, repeats=5, seconds=0.01)
    assert len(timings["slow"].samples_ns) == 1
    assert timings["slow"].min_ns >= 20e6
    assert len(timings["fast"].samples_ns) == 5


def test_many_calls_fill_one_sample() -> None:
    count = 0

    def call() -> None:
        nonlocal count
        count += 1

    timings = time_alternating({"call": call}, repeats=2, min_sample_ns=1e6)
    assert count > 100
    assert timings["call"].median_ns < 1e5


def test_timing_leaves_garbage_collection_as_it_was() -> None:
    for is_on in (True, False):
        (gc.enable if is_on else gc.disable)()
        try:
            _, seen = time_call(gc.isenabled)
            assert seen is False
            assert gc.isenabled() is is_on
        finally:
            gc.enable()


def test_tensor_bytes_counts_each_storage_once() -> None:
    x = torch.ones(100)
    assert tensor_bytes((x, [x[10:], {"y": torch.ones(5)}], 3, None)) == 400 + 20
    assert tensor_bytes((x.t(), torch.ones(5)), beyond=x) == 20


def test_available_memory_is_plausible() -> None:
    free = available_bytes()
    assert free is None or MIB < free < 1 << 50
