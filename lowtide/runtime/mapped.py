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

Afterwards glibc maps what the user asked for, or what it comes to itself where large memory is
freed, and no longer moves that limit.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from typing import Any, Final

from lowtide.runtime import libc

_LEAST_BYTES: Final = 1 << 16  # of what is mapped by itself
_USUAL_BYTES: Final = 1 << 25  # what glibc comes to by itself, at most
_THRESHOLD = -3  # of `mallopt`
_TRIM_THRESHOLD = -1
_IS_MAPPED = 2  # a bit of the word before what `malloc` gives

_lock = threading.RLock()  # the collector may end a Mapped anywhere
_on: set[int] = set()  # which are, by `id`


class Mapped:
    """See the module's text. Of one thread."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[int] = []

    @property
    def is_on(self) -> bool:
        """Whether it is."""
        return id(self) in _on

    def on(self) -> None:
        """From now on, in this thread; a second time takes what has become free since."""
        if not libc.leaves_holes():
            return
        _on.add(id(self))
        _set_threshold()
        self._take_free()

    def off(self) -> None:
        """The end of it, if it is on."""
        if not (self.is_on or self._pieces):
            return
        _on.discard(id(self))
        _set_threshold()
        free = _free()
        while self._pieces:
            free(self._pieces.pop())

    def __del__(self) -> None:
        self.off()  # a backward pass that fails has no end

    def _take_free(self) -> None:
        """The pieces of the heap that are free, large ones first. An interrupt may lose one: that
        is address space, and no memory."""
        malloc, free = _malloc(), _free()
        nbytes, left_bytes = _USUAL_BYTES, libc.free_bytes()
        while nbytes >= _LEAST_BYTES and left_bytes > 0:
            piece = malloc(nbytes)
            if piece and not is_mapped(piece):
                self._pieces.append(piece)
                left_bytes -= nbytes
                continue
            free(piece)
            nbytes //= 2


def is_mapped(piece: int) -> bool:
    """Whether glibc has mapped what `malloc` gave there."""
    before = ctypes.c_size_t.from_address(piece - ctypes.sizeof(ctypes.c_size_t))
    return bool(before.value & _IS_MAPPED)


def _set_threshold() -> None:
    set_limit = libc.function("mallopt")
    with _lock:
        if _on:
            set_limit(_THRESHOLD, _LEAST_BYTES)
            return
        usual_bytes = libc.asked_threshold() or _USUAL_BYTES
        set_limit(_THRESHOLD, usual_bytes)
        if not libc.asks_for_trimming():
            set_limit(_TRIM_THRESHOLD, 2 * usual_bytes)  # as glibc has it, which moves both


def _after_fork() -> None:
    """In a child whose other threads are gone, with those that would end theirs."""
    global _lock
    _lock = threading.RLock()
    if _on:
        _on.clear()
        _set_threshold()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
