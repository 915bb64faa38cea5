"""The properties of a GPU, as plain numbers.

In:  the index of a device. Out: `Properties`; a number that this PyTorch does not report is 0.

    properties(0)      Properties(name="NVIDIA H200", capability=90, sms=132, …)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """`capability`: 90 for 9.0."""

    name: str
    capability: int
    sms: int
    shared_sm_bytes: int
    threads: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int


def properties(index: int) -> Properties | None:
    """Return the properties of a device, None if this machine has no device of that index."""
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    found = cast("object", torch.cuda.get_device_properties(index))
    return Properties(
        name=torch.cuda.get_device_name(index),
        capability=10 * _number(found, "major") + _number(found, "minor"),
        sms=_number(found, "multi_processor_count"),
        shared_sm_bytes=_number(found, "shared_memory_per_multiprocessor"),
        threads=_number(found, "max_threads_per_multi_processor"),
        clock_khz=_number(found, "clock_rate"),
        memory_clock_khz=_number(found, "memory_clock_rate"),
        memory_bus_bits=_number(found, "memory_bus_width"),
    )


def _number(found: object, name: str) -> int:
    return getattr(found, name, 0)
