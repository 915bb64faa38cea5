"""The heap of the C library, out of which PyTorch's tensors on the CPU come.

glibc keeps what was freed in pieces under 32 MiB: its pages stay resident, in holes that the next
tensor may not fit into. A `Trimmer` gives such pages back before they make a call hold more than it
may. Of other C libraries no holes are known, and there it does nothing.

    with trimming(Trimmer(most_bytes=512 << 20, growth_bytes=16 << 20)):
        ...        check() before each op: if what is resident might pass the limit, pages go back
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from lowtide.runtime import arena

_RESIDENT = 1  # of the numbers in /proc/self/statm, in pages


class Trimmer:
    """Of one call, and of the backward passes of its results. `most_bytes`: what may be resident
    beyond what is when this is made; `growth_bytes`: what one op adds at most."""

    __slots__ = ("_limit_bytes", "_most_bytes", "_start_bytes")

    def __init__(self, *, most_bytes: int, growth_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._limit_bytes = most_bytes - growth_bytes
        self._start_bytes = resident_bytes()

    def check(self) -> None:
        """Before an op: gives free pages back if it might need more than is left beside them, those
        of the arena first, which come back for less."""
        now_bytes = resident_bytes()
        if now_bytes and now_bytes - self._start_bytes <= self._limit_bytes:
            return
        arena.empty_cache()
        trim = _malloc_trim()
        if trim is None or resident_bytes() - self._start_bytes <= self._limit_bytes:
            return
        trim(0)
        now_bytes = resident_bytes()
        if now_bytes - self._start_bytes > self._most_bytes:
            # neither of this call nor free: it would be looked for before each op
            self._start_bytes = now_bytes - self._limit_bytes

    def follow(self, operands: Iterable[Any], results: Iterable[Any]) -> None:
        """Checks before the backward pass of an op, too. What hands on an operand is none."""
        given = [x.grad_fn for x in operands if isinstance(x, torch.Tensor)]
        for x in results:
            node = x.grad_fn if isinstance(x, torch.Tensor) else None
            if node is not None and not any(node is other for other in given):
                node.register_prehook(self._before_node)

    def _before_node(self, *_: object) -> None:
        self.check()


class _Now(threading.local):
    trimmer: Trimmer | None = None


_now = _Now()


def trimmer() -> Trimmer | None:
    """That of the call which this thread is in."""
    return _now.trimmer


@contextlib.contextmanager
def trimming(made: Trimmer | None) -> Generator[None]:
    """Inside, this thread runs the trimmer's call."""
    before, _now.trimmer = _now.trimmer, made
    try:
        yield
    finally:
        _now.trimmer = before


def resident_bytes() -> int:
    """What the process holds in memory; 0 where the system does not say."""
    fd = _statm(os.getpid())
    return 0 if fd is None else int(os.pread(fd, 128, 0).split()[_RESIDENT]) * _page_bytes()


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


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    """glibc's own; None where there is none."""
    try:
        library: Any = ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows has no library without a name
        return None
    return getattr(library, "malloc_trim", None)
