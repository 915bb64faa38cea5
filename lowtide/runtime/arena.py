"""The arena: reuses mapped memory for outputs and work memory, on huge pages.

In: shape, dtype, strides. Out: an uninitialised CPU tensor, of PyTorch's own kind.
Large tensors have blocks of anonymous memory, 2 MiB-aligned and on huge pages if the system has
them. When a tensor dies, its block returns to the pool, and the next tensor of about that size
takes it. A new block of 256 MB costs 150 ms of page faults, a reused one nothing.

    t = empty((4096, 4096), torch.float32)      # a miss: 64 MiB mapped
    del t                                       # stats().cached_bytes == 64 MiB
    u = empty((4000, 4000), torch.float32)      # a hit: the same block

The work memory of a running kernel has blocks of its own. Any block that is large enough is used,
and a larger one replaces a free one, so all kernels together hold the memory of one.

Unlike with torch.empty, the storage of a large tensor cannot grow, as with tensors from numpy.
`resize_` to more elements, or `out=` with too small a tensor, raises. Views, `set_`,
`share_memory_`, pickling and copies work.
Invariant: a tensor's block has at most a quarter more bytes than requested. Free blocks together
have at most `Config.arena_cap_bytes`; those freed longest ago are unmapped first. A tensor may
outlive the pool.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch

from lowtide import config
from lowtide.torch_private.tensors import storage_of

# Below this size, malloc reuses memory as well, and torch.empty costs the same time.
SMALL_BYTES = 1 << 20
SMALL_SCRATCH_BYTES = 1 << 16
_HUGE_PAGE_BYTES = 2 << 20
_PAGE_BYTES = mmap.PAGESIZE
_CAN_MAP = hasattr(mmap, "MAP_ANONYMOUS") and hasattr(mmap, "MAP_PRIVATE")
_HUGE_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaStats:
    """Bytes and counts of the pool at one moment.

    `in_use_bytes`: requested for tensors that are alive; `peak_in_use_bytes`: its maximum since
    `reset_peak`; `reserved_bytes`: mapped, in use or not; `cached_bytes`: free but still mapped.
    """

    reserved_bytes: int
    in_use_bytes: int
    peak_in_use_bytes: int
    cached_bytes: int
    cap_bytes: int
    hits: int
    misses: int
    trims: int = 0  # free blocks that were unmapped, to keep to the cap or by `empty_cache`

    def __str__(self) -> str:
        """Return a text with one figure a line."""
        lines = [f"{name:<18}{getattr(self, name):>16,}" for name in self.__slots__]
        return "\n".join(lines)


class _Block:
    """A piece of mapped memory. It is unmapped when the last reference to it dies."""

    __slots__ = (
        "address",
        "block_bytes",
        "freed",
        "is_for_work",
        "is_pooled",
        "mapping",
        "new_lease",
        "requested_bytes",
    )

    def __init__(self, block_bytes: int) -> None:
        """Map the memory. Raises OSError if there is none."""
        is_huge = block_bytes >= _HUGE_PAGE_BYTES and _HUGE_ADVICE is not None
        # The bytes that alignment skips cost address space only, since nothing touches them.
        slack_bytes = _HUGE_PAGE_BYTES if is_huge else 0
        self.mapping = _map_pages(block_bytes + slack_bytes)
        probe = ctypes.c_char.from_buffer(self.mapping)
        begin = ctypes.addressof(probe)
        del probe
        skipped_bytes = -begin % _HUGE_PAGE_BYTES if is_huge else 0
        self.address = begin + skipped_bytes
        self.block_bytes = block_bytes
        self.requested_bytes = 0
        self.freed = 0  # number of blocks freed before it, to find the oldest
        self.is_pooled = True
        self.is_for_work = False
        self.new_lease: Callable[[], Any] | None = None  # made for the first tensor
        if is_huge and _HUGE_ADVICE is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self.mapping.madvise(_HUGE_ADVICE, skipped_bytes, block_bytes)


def _map_pages(nbytes: int) -> mmap.mmap:
    if not _CAN_MAP:  # Windows
        return mmap.mmap(-1, nbytes)
    # Private, not shared as Python's default: after a fork, the child has its own copy.
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def class_bytes(requested_bytes: int) -> int:
    """Return the size of the block for a request: at most a quarter more, in whole pages.

    There are four sizes from each power of two to the next, so that a request of a slightly other
    size finds the block of the one before.
    """
    step_bytes = max((1 << (requested_bytes - 1).bit_length()) >> 3, _PAGE_BYTES)
    return -(-requested_bytes // step_bytes) * step_bytes


class _Pool:
    """The free blocks by size class, and the counts of all blocks (the account).

    A finalizer may run at any line of Python, also inside `take` on the same thread. So it never
    waits: it puts its block into `_returned`, an atomic deque. The thread that has the account
    books the block, at the latest when it leaves the account. A thread may enter the lock twice;
    then `_busy` is set, and the inner call, such as a finalizer's, does not use the account.
    """

    def __init__(self) -> None:
        self._cap_bytes = -1  # unknown until the first use: an import reads no settings
        self._lock = threading.RLock()
        self._busy = False
        self._returned: deque[_Block] = deque()
        self._free: dict[int, deque[_Block]] = {}
        self._free_for_work: deque[_Block] = deque()
        self._give_backs = 0
        self._reserved_bytes = 0
        self._in_use_bytes = 0
        self._peak_in_use_bytes = 0
        self._cached_bytes = 0
        self._hits = 0
        self._misses = 0
        self._trims = 0
        self.observer: Callable[[int, int], None] | None = None
        self.is_tight = False  # see `keep_tight`
        self.storages: dict[int, int] = {}  # of live tensors, by the address of the block
        self._held_for_fork = False
        self._is_failing = False  # whether free blocks are unmapped at once: see `fail`

    def take(self, requested_bytes: int, is_for_work: bool = False) -> _Block:
        """Return a block of at least `requested_bytes` > 0. Raises OSError if memory is short."""
        block_bytes = class_bytes(requested_bytes)
        block = None
        with self._lock:
            if not self._busy:
                self._busy = True
                try:
                    if self._returned:
                        self._book_returned()
                    if is_for_work:
                        block = self._warm_for_work(block_bytes)
                    elif free := self._free.get(block_bytes):
                        block = free.pop()
                    if block is not None:
                        block.requested_bytes = requested_bytes
                        self._cached_bytes -= block.block_bytes
                        self._hits += 1
                        in_use_bytes = self._in_use_bytes = self._in_use_bytes + requested_bytes
                        self._peak_in_use_bytes = max(self._peak_in_use_bytes, in_use_bytes)
                finally:
                    self._busy = False
        if block is None:
            block = self._take_new(block_bytes, requested_bytes)
            block.is_for_work = is_for_work
        if self._returned:
            self._settle()
        if (observer := self.observer) is not None:
            observer(block.address, requested_bytes)
        return block

    def give_back(self, block: _Block) -> None:
        """Free a block. Safe anywhere: in finalizers, on any thread, at exit."""
        if (observer := self.observer) is not None:
            observer(block.address, -block.requested_bytes)
        self.storages.pop(block.address, None)
        if block.is_pooled:
            self._returned.append(block)
            if not self._busy:
                self._settle()

    def shrink(self, limit_bytes: int) -> None:
        """Unmap free blocks, those freed longest ago first, until `limit_bytes` are left."""
        with self._account() as is_outermost:
            if is_outermost:
                self._shrink(limit_bytes)

    def fail(self) -> None:
        """Unmap all free blocks, since the system has no memory. Until a block is mapped again,
        freed ones are unmapped at once, such as those of the call that fails."""
        self._is_failing = True
        self.shrink(0)

    def set_cap(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self.shrink(cap_bytes)

    def reset_peak(self) -> None:
        with self._account() as is_outermost:
            if is_outermost:
                self._peak_in_use_bytes = self._in_use_bytes

    def stats(self) -> ArenaStats:
        self._read_cap()
        with self._account():
            return ArenaStats(
                reserved_bytes=self._reserved_bytes,
                in_use_bytes=self._in_use_bytes,
                peak_in_use_bytes=self._peak_in_use_bytes,
                cached_bytes=self._cached_bytes,
                cap_bytes=self._cap_bytes,
                hits=self._hits,
                misses=self._misses,
                trims=self._trims,
            )

    @contextlib.contextmanager
    def _account(self) -> Generator[bool, None, None]:
        """Enter the account, and bring it up to date. Yields False, and does nothing, if an outer
        call of this thread has the account."""
        with self._lock:
            is_outermost = not self._busy
            if is_outermost:
                self._busy = True
                try:
                    self._book_returned()
                    yield True
                finally:
                    self._busy = False
            else:
                yield False
        self._settle()

    def _take_new(self, block_bytes: int, requested_bytes: int) -> _Block:
        self._read_cap()
        if self.is_tight:
            self.shrink(max(self._peak_in_use_bytes - self._in_use_bytes - block_bytes, 0))
        block = self._map(block_bytes)
        self._is_failing = False
        block.requested_bytes = requested_bytes
        with self._account() as is_outermost:
            block.is_pooled = is_outermost
            if is_outermost:
                self._misses += 1
                self._reserved_bytes += block_bytes
                self._in_use_bytes += requested_bytes
                self._peak_in_use_bytes = max(self._peak_in_use_bytes, self._in_use_bytes)
        return block

    def _map(self, block_bytes: int) -> _Block:
        try:
            return _Block(block_bytes)
        except (OSError, OverflowError, ValueError):
            self.fail()  # unmapping free blocks may make room
        try:
            return _Block(block_bytes)
        except (OverflowError, ValueError) as fault:
            raise OSError(f"{block_bytes} bytes cannot be mapped") from fault

    def _read_cap(self) -> None:
        if self._cap_bytes < 0:
            self._cap_bytes = config.current().arena_cap_bytes

    def _settle(self) -> None:
        """Book returned blocks, unless a thread has the account: it does so on leaving."""
        while self._returned and self._lock.acquire(blocking=False):
            if self._busy:  # an outer call of this thread has the account
                self._lock.release()
                return
            try:
                self._busy = True
                self._book_returned()
            finally:
                self._busy = False
                self._lock.release()

    # The caller of these has the account: the lock, and `_busy` set.

    def _book_returned(self) -> None:
        """Move returned blocks to the free ones, and unmap what exceeds the cap."""
        self._read_cap()
        while self._returned:
            block = self._returned.popleft()
            self._in_use_bytes -= block.requested_bytes
            self._cached_bytes += block.block_bytes
            free = self._free_for_work
            if not block.is_for_work:
                free = self._free.get(block.block_bytes)
                if free is None:
                    free = self._free[block.block_bytes] = deque()
            free.append(block)
            self._give_backs += 1
            block.freed = self._give_backs
        limit_bytes = 0 if self._is_failing else self._cap_bytes
        if self._cached_bytes > limit_bytes:
            self._shrink(limit_bytes)

    def _shrink(self, limit_bytes: int) -> None:
        while self._cached_bytes > limit_bytes:
            all_free = filter(None, (*self._free.values(), self._free_for_work))
            self._unmap(min(all_free, key=lambda free: free[0].freed).popleft())

    def _unmap(self, block: _Block) -> None:
        """Unmap a block that has been removed from the free ones."""
        self._cached_bytes -= block.block_bytes
        self._reserved_bytes -= block.block_bytes
        self._trims += 1
        block.mapping.close()

    def _warm_for_work(self, least_bytes: int) -> _Block | None:
        """Return the smallest free block that is large enough. If there is none, unmap the largest,
        which the new block replaces."""
        free = self._free_for_work
        fits = [block for block in free if block.block_bytes >= least_bytes]
        if not free:
            return None
        block = (min if fits else max)(fits or free, key=lambda block: block.block_bytes)
        free.remove(block)
        if fits:
            return block
        self._unmap(block)
        return None

    def before_fork(self) -> None:
        """Wait until no thread has the account, so that the child's copy is consistent."""
        self._held_for_fork = self._lock.acquire(timeout=1.0)

    def after_fork_in_parent(self) -> None:
        if self._held_for_fork:
            self._held_for_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._busy = False
        self._held_for_fork = False
        self.shrink(0)  # a write to a free block would first copy the parent's bytes


_pool = _Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_pool.before_fork,
        after_in_parent=_pool.after_fork_in_parent,
        after_in_child=_pool.after_fork_in_child,
    )


class _Lease:
    """Mixed into a ctypes array over one block, which PyTorch holds as the owner of the memory."""

    __slots__ = ()
    block: _Block

    # A default argument, since at exit the names of this file may die before the last tensor.
    def __del__(self, give_back: Callable[[_Block], None] = _pool.give_back) -> None:
        give_back(self.block)


def _lease_maker(block: _Block) -> Callable[[], Any]:
    """Return the maker of a block's leases. Each block has a type, so leases need no fields."""
    array: Any = ctypes.c_char * block.block_bytes
    lease: Any = type("Lease", (_Lease, array), {"__slots__": (), "block": block})
    return functools.partial(lease.from_address, block.address)


class Scratch:
    """Uninitialised work memory at `address`, aligned to a page, which this object owns."""

    __slots__ = ("_block", "_spare", "address", "nbytes")

    def __init__(self, nbytes: int) -> None:
        """Take the memory. Raises the error of torch.empty if there is none."""
        self._block = None
        self.nbytes = nbytes
        try:
            self._block = _pool.take(max(nbytes, 1), is_for_work=True)
            self.address = self._block.address
        except OSError:  # the heap of the C library may still have memory
            self._spare = _torch_empty((nbytes + _PAGE_BYTES,), torch.uint8, None)
            self.address = -(-self._spare.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES

    def data_ptr(self) -> int:
        """Return the address, as tensors do."""
        return self.address

    def __del__(self, give_back: Callable[[_Block], None] = _pool.give_back) -> None:
        if self._block is not None:
            give_back(self._block)


class SmallScratch(threading.local):
    """Work memory of SMALL_SCRATCH_BYTES at `address`, aligned to a page. Each thread keeps its own
    for good, since finding a block takes longer than a kernel on a few elements."""

    def __init__(self) -> None:
        self._memory = ctypes.create_string_buffer(SMALL_SCRATCH_BYTES + _PAGE_BYTES)
        self.address = -(-ctypes.addressof(self._memory) // _PAGE_BYTES) * _PAGE_BYTES


def empty(
    shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None = None
) -> torch.Tensor:
    """Return an uninitialised CPU tensor of `shape`; `strides` in elements, row-major if None.

    From `SMALL_BYTES` on, the arena owns its memory, aligned to 2 MiB; it cannot be resized to
    more. Raises the errors of torch.empty, also if there is no memory.
    """
    elements = math.prod(shape) if strides is None else _span(shape, strides)
    nbytes = elements * dtype.itemsize
    if nbytes < SMALL_BYTES or not _CAN_MAP:
        return _torch_empty(shape, dtype, strides)
    try:
        block = _pool.take(nbytes)
    except OSError:
        return _torch_empty(shape, dtype, strides)  # which raises PyTorch's own error
    if block.new_lease is None:
        block.new_lease = _lease_maker(block)
    made = _tensor_over(block.new_lease(), elements, shape, dtype, strides)
    _pool.storages[block.address] = storage_of(made)
    return made


def _tensor_over(
    lease: Any,
    elements: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    strides: tuple[int, ...] | None,
) -> torch.Tensor:
    numpy_dtype = _numpy_dtypes.get(dtype)
    if numpy_dtype is None:  # bfloat16 and the like
        flat = torch.frombuffer(lease, dtype=dtype, count=elements)
        shaped = flat.view(shape) if strides is None else flat.as_strided(shape, strides)
        return shaped.data  # no view for autograd
    if strides is None:
        return _torch.from_numpy(_ndarray(shape, numpy_dtype, lease))
    steps = tuple(stride * dtype.itemsize for stride in strides)
    return _torch.from_numpy(_ndarray(shape, numpy_dtype, lease, 0, steps))


def has_made(x: torch.Tensor) -> bool:
    """Return whether `empty` made the storage of a tensor. The address alone does not show it: a
    tensor made by way of numpy has the address, too."""
    return _pool.storages.get(x.data_ptr()) == storage_of(x)


def scratch(nbytes: int) -> Scratch:
    """Return work memory of at least `nbytes`; keep the object while a kernel uses its address.
    Raises the error of torch.empty if there is no memory."""
    return Scratch(nbytes)


def empty_cache() -> None:
    """Return all free blocks to the system."""
    _pool.shrink(0)


def fail() -> None:
    """Return all free blocks to the system, since another allocation failed. Until the next new
    block, freed blocks are returned at once, too."""
    _pool.fail()


def stats() -> ArenaStats:
    """Return the counts of the arena, without tensors under `SMALL_BYTES`."""
    return _pool.stats()


def memory_stats() -> ArenaStats:
    """Return the arena's counts, for all compiled programs: bytes mapped, in use, free, the peak in
    use and the cap. Also how often a block was reused, mapped and unmapped."""
    return _pool.stats()


def set_observer(observer: Callable[[int, int], None] | None) -> None:
    """Call `observer(address, nbytes)` for each block that is taken, and with minus its bytes when
    it is freed, on any thread, in finalizers too; None ends this."""
    _pool.observer = observer


def reset_peak() -> None:
    """Set `peak_in_use_bytes` to the bytes in use now."""
    _pool.reset_peak()


def set_cap_bytes(cap_bytes: int) -> None:
    """Set the maximum of free bytes, first `Config.arena_cap_bytes`; unmap what exceeds it."""
    _pool.set_cap(cap_bytes)


def keep_tight() -> None:
    """From now on, unmap free blocks before mapping a new one, so that no more is mapped than the
    peak in use. Plans under a budget call it."""
    _pool.is_tight = True


def _span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last of a strided tensor, inclusive."""
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def _torch_empty(
    shape: tuple[int, ...], dtype: torch.dtype, strides: tuple[int, ...] | None
) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=_CPU)
    return torch.empty_strided(shape, strides, dtype=dtype, device=_CPU)


# numpy makes a tensor with its shape in 2 µs; frombuffer and view take 4.5 µs.
_numpy_dtypes: dict[torch.dtype, Any] = {}
_ndarray: Any = None
# `from_numpy` is looked up at each call, since dispose scopes replace it to see tensors.
_torch: Any = torch


def _find_numpy() -> None:
    global _ndarray
    try:
        numpy: Any = importlib.import_module("numpy")
        _torch.from_numpy(numpy.empty(1))  # raises if torch was built for another numpy
    except (ImportError, RuntimeError):
        return
    _ndarray = numpy.ndarray
    names = ("float16 float32 float64 complex64 complex128 bool "
             "int8 int16 int32 int64 uint8 uint16 uint32 uint64")  # fmt: skip
    _numpy_dtypes.update({getattr(torch, name): numpy.dtype(name) for name in names.split()})


_find_numpy()
