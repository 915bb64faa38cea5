"""The resident memory of a call at its peak, for comparisons with what has an allocator of its own.

In: a callable without arguments. Out: bytes resident beyond what was before, by the kernel's own
high-water mark; on a GPU, and where there is no /proc, what `measure_peak` counts.

glibc keeps freed pages, so each measure is made in a process of its own, or after `malloc_trim`.
"""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from lowtide.memory.measure import measure_peak
from lowtide.runtime import arena

T = TypeVar("T")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")
_RESET_HIGH_WATER_MARK = "5"


def resident_peak(call: Callable[[], T], device: torch.device | None = None) -> tuple[int, T, str]:
    """Bytes at the peak of one call, its result, and how that was seen."""
    gc.collect()
    arena.empty_cache()
    if (device is not None and device.type == "cuda") or not _CLEAR_REFS.exists():
        peak, result = measure_peak(call, device=device)
        return peak.peak_bytes, result, peak.method
    ctypes.CDLL(None).malloc_trim(0)
    _CLEAR_REFS.write_text(_RESET_HIGH_WATER_MARK)
    before_bytes = _high_water_bytes()
    result = call()
    return max(_high_water_bytes() - before_bytes, 0), result, "resident"


def _high_water_bytes() -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
