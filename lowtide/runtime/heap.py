"""The heap of the C library, out of which PyTorch's tensors on the CPU come.

glibc keeps what was freed in pieces under 32 MiB: its pages stay resident, in holes that the next
tensor may not fit into. `unmap_at_once` ends that, at the price of fresh pages for each tensor. Of
other C libraries, and where a user has set the threshold himself, no holes are known.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any, Final

_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD of mallopt
_SETTING: Final = "MALLOC_MMAP_THRESHOLD_"


def keeps_holes() -> bool:
    """Whether pages of what is freed stay resident; the same however often it was ended since, so
    that plans do not depend on other plans."""
    return _mallopt() is not None and _SETTING not in os.environ


def unmap_at_once(least_bytes: int) -> None:
    """From now on what was allocated in so many bytes or more goes back to the system as soon as it
    is freed, in the whole process."""
    mallopt = _mallopt()
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, least_bytes)


@functools.cache
def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's own; None where there is none."""
    try:
        library: Any = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no library without a name
        return None
    is_glibc = hasattr(library, "gnu_get_libc_version")
    return library.mallopt if is_glibc else None
