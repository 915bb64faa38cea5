"""What PyTorch tells of a GPU, as plain numbers.

In: the index of a device. Out: `Properties`; 0 for what this PyTorch does not tell.
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
    """Of a device of this machine; None where there is none of that index."""
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return None
    found = cast("object", torch.cuda.get_device_properties(index))
    return Properties(
        name=torch.cuda.get_device_name(index),
        capability=10 * _told(found, "major") + _told(found, "minor"),
        sms=_told(found, "multi_processor_count"),
        shared_sm_bytes=_told(found, "shared_memory_per_multiprocessor"),
        threads=_told(found, "max_threads_per_multi_processor"),
        clock_khz=_told(found, "clock_rate"),
        memory_clock_khz=_told(found, "memory_clock_rate"),
        memory_bus_bits=_told(found, "memory_bus_width"),
    )


def _told(found: object, name: str) -> int:
    return getattr(found, name, 0)
