"""Tensors whose memory ends, or begins, at a page that may not be touched.

    x = guarded(torch.rand(33, 5), Guard.AFTER)     reading one element too far kills the process
    with guarded_memory(): f(x)                     the same for what kernels write and work in
    with guarded_calls(Guard.AFTER): f(x)           for all that any kernel gets, backward too

A kernel that reads or writes outside of a tensor is seen at once, by a segmentation fault: run it
in a process of its own. Between two elements of a strided tensor lies memory of that tensor.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import mmap
from collections.abc import Iterator
from typing import Any

import torch

from lowtide.codegen import executable, kernels
from lowtide.codegen.c import driver

_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_READ_WRITE, _NONE = 3, 0
_PRIVATE_ANONYMOUS = 0x22
_ALIGN = 64  # what kernels may assume of work memory
_CANARY = 0xA5


class Guard(enum.Enum):
    """On which side of the memory the forbidden page lies close by."""

    AFTER = "after"
    BEFORE = "before"


class Region:
    """`nbytes` between two forbidden pages, touching one of them (but for the alignment)."""

    def __init__(self, nbytes: int, guard: Guard, align: int = 1) -> None:
        pages = -(-max(nbytes, 1) // _PAGE)
        self._length = (pages + 2) * _PAGE
        flags = _PRIVATE_ANONYMOUS
        self._base = int(_libc.mmap(None, self._length, _READ_WRITE, flags, -1, 0))
        assert self._base > 0
        self.nbytes = nbytes
        inside = pages * _PAGE
        start = 0 if guard is Guard.BEFORE else (inside - nbytes) // align * align
        self.address = self._base + _PAGE + start
        self._slack = inside - start - nbytes
        ctypes.memset(self._base + _PAGE, _CANARY, inside)
        for page in (self._base, self._base + _PAGE + inside):
            assert _libc.mprotect(page, _PAGE, _NONE) == 0

    def intact(self) -> bool:
        """Are the bytes after the end, up to the forbidden page, as they were?"""
        after = ctypes.string_at(self.address + self.nbytes, self._slack)
        before = ctypes.string_at(self._base + _PAGE, self.address - self._base - _PAGE)
        return not after.strip(bytes([_CANARY])) and not before.strip(bytes([_CANARY]))

    def __del__(self) -> None:
        _libc.munmap(self._base, self._length)


def guarded(x: torch.Tensor, guard: Guard, offset: int = 0) -> torch.Tensor:
    """An equal tensor of the same strides; `offset` elements lie before its first (of AFTER)."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    if x.numel() == 0:
        return x.clone() if x.is_contiguous() else x
    region = Region((span + offset) * x.itemsize, guard)
    flat = _tensor(region, x.dtype, span + offset)
    result = flat.as_strided(x.shape, x.stride(), offset)
    source = x.as_strided((span,), (1,), x.storage_offset())
    flat[offset:].copy_(source)
    result.region = region  # type: ignore[attr-defined]
    return result


def _tensor(region: Region, dtype: torch.dtype, count: int) -> torch.Tensor:
    kind: Any = ctypes.c_char * region.nbytes
    memory = kind.from_address(region.address)
    memory.region = region
    return torch.frombuffer(memory, dtype=dtype, count=count)


class Memory:
    """What kernels got while `guarded_memory` was on."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.guard = Guard.AFTER

    def check(self) -> None:
        """Raises AssertionError if anything was written beside what it should be; forgets all."""
        regions, self.regions = self.regions, []
        for region in regions:
            assert region.intact(), f"a kernel wrote beside its {region.nbytes} bytes"

    def empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Stands in for `arena.empty`."""
        assert strides is None
        like = torch.empty(shape, dtype=dtype, device="meta")
        if not like.numel():
            return torch.empty(shape, dtype=dtype)
        region = Region(like.numel() * dtype.itemsize, self.guard, _ALIGN)
        self.regions.append(region)
        storage = _tensor(region, dtype, like.numel()).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, 0, shape, like.stride())  # is no view

    def scratch(self, nbytes: int) -> Region:
        """Stands in for `arena.scratch`."""
        region = Region(max(nbytes, 1), self.guard, _ALIGN)
        self.regions.append(region)
        return region


@contextlib.contextmanager
def guarded_memory() -> Iterator[Memory]:
    """Kernels first called within the block write to, and work in, guarded memory for ever.

    PyTorch's matrix product takes no part: which one runs is measured, so bits would change."""
    memory = Memory()

    class _Arena:
        empty = staticmethod(memory.empty)
        scratch = staticmethod(memory.scratch)

    with (
        _replaced(driver, "arena", _Arena),
        _replaced(kernels, "as_matmul", _none),
        _replaced(driver, "small_shape", _none),
    ):
        yield memory


@contextlib.contextmanager
def guarded_calls(guard: Guard) -> Iterator[None]:
    """As `guarded_memory`, and every kernel first called within the block reads copies of its
    tensors that are guarded on that side. What was written is checked after each call."""
    real = executable.Executable.__call__

    def call(self: Any, tensors: Any, sizes: Any, numbers: Any) -> Any:
        found = real(self, [guarded(x.detach(), guard) for x in tensors], sizes, numbers)
        memory.check()
        return found

    with guarded_memory() as memory:
        memory.guard = guard
        with _replaced(executable.Executable, "__call__", call):
            yield


def _none(*_: object, **__: object) -> None:
    return None


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
