"""What `memory()` and budgets promise, and how a test holds a run to it.

    asked = requested_bytes(lambda: compiled(x))
    assert_within_contract(asked, compiled.memory(x).peak_bytes, library_ops=False)

Counted are the bytes that a call asks of an allocator, PyTorch's or Lowtide's arena, at its peak.
They are the same in each run and on each machine. Resident pages are not: they depend on what
malloc keeps of freed memory and on the kernel's sizes of pages.

| what runs | measured, at most | predicted, at most |
| --- | --- | --- |
| kernels and results | what is predicted | 1.25 * measured + 16 MB |
| ops that are left to PyTorch (`library_ops`) | 1.25 * predicted + 16 MB | 2 * measured + 16 MB |

What PyTorch's ops take inside comes from a table of upper bounds (`memory/bounds`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.memory.measure import measure_peak

FACTOR = 1.25
TIMES = 2  # what a bound may be too large by
ROOM_BYTES = 16_000_000


def requested_bytes(call: Callable[[], object]) -> int:
    """The most that `call` holds at once of what it asks both allocators for, its result included.

    `call` runs once; what a first call compiles is not memory of tensors, but constants that it
    makes for good are: run it before.
    """
    return measure_peak(call)[0].peak_bytes


def violation(measured_bytes: int, predicted_bytes: int, *, library_ops: bool) -> str:
    """What is wrong with a prediction, or ""."""
    most_bytes = with_room(predicted_bytes) if library_ops else predicted_bytes
    if measured_bytes > most_bytes:
        return f"{measured_bytes:,} bytes asked for, {predicted_bytes:,} predicted"
    factor = TIMES if library_ops else FACTOR
    if predicted_bytes > factor * measured_bytes + ROOM_BYTES:
        return f"{predicted_bytes:,} bytes predicted, only {measured_bytes:,} asked for"
    return ""


def assert_within_contract(
    measured_bytes: int, predicted_bytes: int, *, library_ops: bool, detail: object = ""
) -> None:
    """Fails, with `detail`, where a call asked for more than was predicted, or much less."""
    wrong = violation(measured_bytes, predicted_bytes, library_ops=library_ops)
    assert not wrong, f"{wrong}\n{detail}"


def assert_budget_kept(measured_bytes: int, budget_bytes: int, *, library_ops: bool) -> None:
    """Fails where a call asked for more than its budget; it may need far less."""
    most_bytes = with_room(budget_bytes) if library_ops else budget_bytes
    assert measured_bytes <= most_bytes, f"{measured_bytes:,} of {budget_bytes:,} bytes"


def with_room(nbytes: int) -> int:
    """The bound of the table above."""
    return int(FACTOR * nbytes) + ROOM_BYTES


def leaves_ops(plan: Any) -> bool:
    """Whether a call leaves ops to PyTorch, as its plan says."""
    return any("is an upper bound" in note for note in plan.notes)
