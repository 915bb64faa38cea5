"""Memory in pages of its own, which go when it does, in place of the C library's heap.

glibc gives out pieces of a heap, whose pages stay when they are free, so that an op of many parts
may leave holes between them that nobody can give back before it ends. While a `Mapped` is on, what
is not small lies in no heap: glibc maps such memory by itself (`M_MMAP_THRESHOLD`), and what the
heap has free is taken, untouched, so that nothing is put there. That costs new pages for each
tensor. It holds for the process, but for the free pieces, which are those of this thread.

    mapped = Mapped()
    mapped.on()        free pages have gone back before: what is taken here must not be resident
    ...                an op
    mapped.off()
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any, Final

from lowtide.runtime import libc

_LEAST_BYTES: Final = 1 << 16  # of what is mapped by itself
_USUAL_BYTES: Final = 1 << 25  # what glibc comes to by itself, at most
_THRESHOLD = -3  # of `mallopt`
_IS_MAPPED = 2  # a bit of the word before what `malloc` gives

_lock = threading.Lock()
_on = 0  # how many are


class Mapped:
    """See the module's text. Of one thread."""

    __slots__ = ("_pieces", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._pieces: list[int] = []

    def on(self) -> None:
        """From now on, in this thread; a second time takes what has become free since."""
        if not libc.leaves_holes():
            return
        if not self.is_on:
            self.is_on = True
            _count(1)
        self._take_free()

    def off(self) -> None:
        """The end of it, if it is on."""
        if not self.is_on:
            return
        self.is_on = False
        _count(-1)
        free = _free()
        while self._pieces:
            free(self._pieces.pop())

    def __del__(self) -> None:
        self.off()  # a backward pass that fails has no end

    def _take_free(self) -> None:
        """The pieces of the heap that are free, large ones first."""
        malloc, free = _malloc(), _free()
        nbytes, left_bytes = _USUAL_BYTES, libc.free_bytes()
        while nbytes >= _LEAST_BYTES and left_bytes > 0:
            piece = malloc(nbytes)
            if piece and not _is_mapped(piece):
                self._pieces.append(piece)
                left_bytes -= nbytes
                continue
            free(piece)
            nbytes //= 2


def _count(more: int) -> None:
    global _on
    with _lock:
        _on += more
        usual_bytes = libc.asked_threshold() or _USUAL_BYTES
        libc.function("mallopt")(_THRESHOLD, _LEAST_BYTES if _on else usual_bytes)


def _is_mapped(piece: int) -> bool:
    return bool(
        ctypes.c_size_t.from_address(piece - ctypes.sizeof(ctypes.c_size_t)).value & _IS_MAPPED
    )


@functools.cache
def _malloc() -> Any:
    found = libc.function("malloc")
    found.argtypes, found.restype = (ctypes.c_size_t,), ctypes.c_void_p
    return found


@functools.cache
def _free() -> Any:
    found = libc.function("free")
    found.argtypes, found.restype = (ctypes.c_void_p,), None
    return found
