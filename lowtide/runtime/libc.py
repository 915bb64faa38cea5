"""What glibc says of its heap, and the system of this process. Elsewhere nothing is known.

resident_bytes()      120_000_000
trim()                True: free pages have gone back
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from collections.abc import Callable
from typing import Any, Final

_SMALL_BYTES: Final = 1 << 20
_RESIDENT = 1  # of the numbers in /proc/self/statm, in pages


def function(name: str) -> Any:
    """One of glibc's; None where there is none."""
    return getattr(_library(), name, None)


def trim() -> bool:
    """Gives free pages back; whether the library can."""
    trimmed = function("malloc_trim")
    if trimmed is None:
        return False
    trimmed(0)
    return True


def resident_bytes() -> int:
    """What the process holds in memory; 0 where the system does not say."""
    fd = _statm(os.getpid())
    return 0 if fd is None else int(os.pread(fd, 128, 0).split()[_RESIDENT]) * _page_bytes()


def used_bytes() -> int:
    """What is in use of the C library's heap; 0 where it does not say."""
    count = _mallinfo()
    if count is None:
        return 0
    counted = count()
    return counted.of_pieces + counted.mapped


def free_bytes() -> int:
    """What the C library's heap has free; 0 where it does not say."""
    count = _mallinfo()
    return 0 if count is None else count().free


def keeps_holes() -> bool:
    """Whether the C library is known to keep pages, and gives them back when asked."""
    return function("malloc_trim") is not None and resident_bytes() > 0


def leaves_holes() -> bool:
    """Whether what large tensors leave free stays resident: not where the user has glibc map each
    of them by itself."""
    return keeps_holes() and not 0 < asked_threshold() <= _SMALL_BYTES


@functools.cache
def asked_threshold() -> int:
    """From how many bytes on glibc maps each piece of memory by itself, where the user has said so;
    else 0."""
    try:
        return int(_said("mmap_threshold"), 0)
    except ValueError:
        return 0


@functools.cache
def asks_for_trimming() -> bool:
    """Whether the user has said how much the heap may have free at its end."""
    return bool(_said("trim_threshold"))


def _said(name: str) -> str:
    """What the environment tells glibc of one of its limits."""
    found = re.search(rf"glibc\.malloc\.{name}=(\w+)", os.environ.get("GLIBC_TUNABLES", ""))
    return found[1] if found else os.environ.get(f"MALLOC_{name.upper()}_", "")


@functools.lru_cache(maxsize=1)
def _statm(_process: int) -> int | None:
    """A process that was forked off has one of its own."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


@functools.cache
def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


class _Counted(ctypes.Structure):
    """glibc's `mallinfo2`."""

    _fields_ = (
        ("heaps", ctypes.c_size_t),
        ("free_pieces", ctypes.c_size_t),
        ("free_small", ctypes.c_size_t),
        ("maps", ctypes.c_size_t),
        ("mapped", ctypes.c_size_t),
        ("unused", ctypes.c_size_t),
        ("of_small", ctypes.c_size_t),
        ("of_pieces", ctypes.c_size_t),
        ("free", ctypes.c_size_t),
        ("at_end", ctypes.c_size_t),
    )


@functools.cache
def _mallinfo() -> Callable[[], Any] | None:
    """From glibc 2.33 on."""
    found = function("mallinfo2")
    if found is not None:
        found.restype = _Counted
    return found


@functools.cache
def _library() -> Any:
    """glibc, whatever `malloc` another library has put before it."""
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:
        return None
