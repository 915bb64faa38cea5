"""Peaks are measured here, so memory that PyTorch frees is unmapped at once.

Before the first test of the process: holes that earlier tests had left in the heap would be taken
again, and stay resident.
"""

from __future__ import annotations

import ctypes
import sys

_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of mallopt

if sys.platform == "linux":
    ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 16)
