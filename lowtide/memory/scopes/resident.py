"""Memory back to the system, not only to malloc: resident size falls when a scope ends.

In: the end of an outermost scope. Out: what malloc holds free goes back to the kernel, if the scope
has grown the process by more than 8 MiB and disposing has not shrunk it again.

glibc keeps freed blocks of up to 32 MiB in its heap, resident. To give them back costs the faults
of touching new pages later, about 0.6 ns a byte, so a loop that takes the same memory at each step
must not pay at each step: after a trim the next one waits three times what it may cost, and twice
as long each time that the memory came back. A loop therefore trims at its first steps and then
keeps its memory in malloc.

Always: /proc/self/statm is read, which takes 3 µs, at most once in half a millisecond: in that time
no process touches 8 MiB of new pages. Nothing on other systems.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Any

_STATM = Path("/proc/self/statm")
_WORTH_BYTES = 8 << 20
_NS_PER_BYTE = 0.6
_FRESH_NS = 500_000
_PATIENCE = 3
_LONGEST_PATIENCE = 256


def _find_trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None) if _STATM.exists() else None
    except (OSError, TypeError):
        return None


class _Trimmer:
    def __init__(self) -> None:
        self.trim = _find_trim()
        self.pid = 0
        self.statm = -1
        self.last_bytes = 0
        self.read_ns = 0
        self.trimmed_ns = 0
        self.patience = _PATIENCE

    def resident_bytes(self) -> int:
        """What is resident, less pages of files, a moment ago; 0 where it cannot be known."""
        if self.trim is None or self.is_fresh():
            return self.last_bytes
        try:
            if self.pid != os.getpid():
                self.statm, self.pid = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC), os.getpid()
            _, resident, shared, *_ = os.pread(self.statm, 256, 0).split()
        except OSError:
            self.trim, self.last_bytes = None, 0
        else:
            self.last_bytes = (int(resident) - int(shared)) * mmap.PAGESIZE
            self.read_ns = time.monotonic_ns()
        return self.last_bytes

    def is_fresh(self) -> bool:
        """Whether what was read last can be taken for true."""
        return time.monotonic_ns() - self.read_ns < _FRESH_NS and self.pid == os.getpid()

    def after_end(self, before_bytes: int) -> None:
        """Trim, if the process has grown since it had `before_bytes`, and not too often."""
        if self.trim is None:
            return
        grown_bytes = self.resident_bytes() - before_bytes
        if grown_bytes < _WORTH_BYTES:
            return
        cost_ns = grown_bytes * _NS_PER_BYTE
        waited_ns = time.monotonic_ns() - self.trimmed_ns
        if self.trimmed_ns and waited_ns < self.patience * cost_ns:
            return
        is_back = self.trimmed_ns and waited_ns < 10 * self.patience * cost_ns
        self.patience = min(2 * self.patience, _LONGEST_PATIENCE) if is_back else _PATIENCE
        self.trim(0)
        self.trimmed_ns = time.monotonic_ns()


_trimmer = _Trimmer()
resident_bytes = _trimmer.resident_bytes
after_end = _trimmer.after_end
