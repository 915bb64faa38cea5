"""Reads parts of arguments and writes parts of results, whatever holds them.

In: a tensor, a NumPy array or memory map, or anything with `shape`, `dtype` and `[…]`, such as an
array of Zarr, HDF5 or Dask. Out: a `Source`, which gives contiguous tensors, or a `Sink`.

    source_of(zarr_array).part((slice(0, 4096), slice(None)))        [4096, 3], read from disk
    sink_of(memmap, form).write((slice(0, 4096),), part)

Nothing is loaded whole that is read in parts. No library of arrays is imported here.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
import torch

from lowtide.errors import LowtideError

Tensor = torch.Tensor
Slices = tuple[slice, ...]
_WRITTEN_BYTES: Final = 1 << 25  # at most, but for one chunk of a store
_RESIDENT: Final = ("r", "r+", "readonly", "readwrite", "write")


def is_array(value: object) -> bool:
    """Return whether the value is a tensor, or an array of which parts can be read."""
    if isinstance(value, Tensor | np.ndarray):
        return True
    has = all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__", "ndim"))
    return has and not isinstance(value, np.generic)


@dataclass(frozen=True, slots=True)
class Source:
    """An argument that is read in parts. `like`: a meta tensor of its form. `is_loaded`: parts take
    memory of their own, since the array is on disk or elsewhere. `chunks`: sizes in which it is
    stored, 1 where it is not in chunks."""

    array: Any
    like: Tensor
    is_loaded: bool
    chunks: tuple[int, ...]

    def part(self, where: Slices) -> Tensor:
        """Return a part as a contiguous tensor: a view if the array is in memory and allows it."""
        if isinstance(self.array, Tensor):
            return self.array.detach()[where].contiguous()
        found = np.asarray(self.array[where])
        if self.is_loaded:
            part = torch.from_numpy(np.array(found, order="C", copy=True))
            forget_pages(self.array)
        else:
            part = torch.from_numpy(_writable(np.ascontiguousarray(found)))
        if part.dtype != self.like.dtype:
            raise LowtideError(f"a part of an array has dtype {part.dtype}, not {self.like.dtype}")
        return part

    def part_bytes(self, shape: Sequence[int]) -> int:
        """Return the memory that a part of this shape takes besides the array's own."""
        count = 1
        for n in shape:
            count *= n
        is_view = not self.is_loaded and _is_contiguous(self.array, shape)
        return 0 if is_view else count * self.like.element_size()


def source_of(array: Any) -> Source:
    """Return the source of an array. Raises LowtideError."""
    if isinstance(array, Tensor):
        if array.device.type not in ("cpu", "meta") or array.layout is not torch.strided:
            raise LowtideError(
                f"chunks are of dense tensors on the CPU, not {array.layout} on {array.device}"
            )
        like = torch.empty(array.shape, dtype=array.dtype, device="meta")
        return Source(array, like, False, (1,) * array.dim())
    dtype = torch_dtype(array.dtype)
    shape = tuple(int(n) for n in array.shape)
    like = torch.empty(shape, dtype=dtype, device="meta")
    in_memory = isinstance(array, np.ndarray) and mapping_of(array) is None
    return Source(array, like, not in_memory, _stored_chunks(array))


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return PyTorch's dtype for one of NumPy's. Raises LowtideError."""
    try:
        return torch.from_numpy(np.empty(0, dtype=np.dtype(dtype))).dtype
    except (TypeError, ValueError) as fault:
        raise LowtideError(
            f"PyTorch has no dtype {dtype}; write instead: an array of another dtype, or of the "
            "machine's byte order"
        ) from fault


def _stored_chunks(array: Any) -> tuple[int, ...]:
    chunks = getattr(array, "chunksize", None) or getattr(array, "chunks", None)
    shape = tuple(array.shape)
    if not isinstance(chunks, tuple) or len(cast("tuple[Any, ...]", chunks)) != len(shape):
        return (1,) * len(shape)
    sizes = cast("tuple[Any, ...]", chunks)
    return tuple(max(n, 1) if isinstance(n, int) else 1 for n in sizes)


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return the file mapping under a NumPy array."""
    while isinstance(array, np.ndarray):
        array = cast("Any", array).base
    return array if isinstance(array, mmap.mmap) else None


def forget_pages(array: Any) -> None:
    """Let go of pages of a memory map that have been read: they stay in the system's cache."""
    mode = getattr(array, "mode", "")
    found = mapping_of(array)
    if found is not None and mode in ("r", "r+", "w+") and hasattr(mmap, "MADV_DONTNEED"):
        found.madvise(mmap.MADV_DONTNEED)


def _writable(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the array; a copy if it may not be written, which PyTorch's tensors cannot know."""
    return array if array.flags.writeable else array.copy()


def _is_contiguous(array: Any, shape: Sequence[int]) -> bool:
    """Return whether a part of this shape of an array in memory is contiguous: of the first dim
    that is longer than 1, and whole in all later ones."""
    whole = tuple(array.shape)
    if isinstance(array, Tensor):
        is_plain = array.is_contiguous()
    else:
        is_plain = bool(array.flags.c_contiguous and array.flags.writeable)
    first = next((k for k, n in enumerate(shape) if n != 1), len(shape))
    return is_plain and tuple(shape[first + 1 :]) == whole[first + 1 :]


def checksum(part: Tensor) -> int:
    """Return a number that differs for other values, but for one case in 4 billion."""
    return zlib.crc32(cast("Any", part.contiguous().reshape(-1).view(torch.uint8).numpy()))


class Sink:
    """A place for one result. `array`: what the caller gave."""

    def __init__(self, array: Any, form: Tensor) -> None:
        """Raises LowtideError if the array does not have the result's shape and dtype, or is not
        written to in place."""
        self.array = array
        if not hasattr(array, "__setitem__") or hasattr(array, "__dask_graph__"):
            raise LowtideError(
                f"out: a {type(array).__name__} is not written in place; write instead: an array "
                "of Zarr or HDF5, a NumPy array or memory map, or a tensor"
            )
        dtype = array.dtype if isinstance(array, Tensor) else torch_dtype(array.dtype)
        if tuple(array.shape) != tuple(form.shape) or dtype != form.dtype:
            raise LowtideError(
                f"out has shape {tuple(array.shape)} and dtype {dtype}; the result has shape "
                f"{tuple(form.shape)} and dtype {form.dtype}"
            )
        if not self._is_writable():
            raise LowtideError("out is read-only; write instead: a store opened for writing")
        _reserve(array)

    def _is_writable(self) -> bool:
        if isinstance(self.array, Tensor):
            return not (self.array.requires_grad and self.array.is_leaf)
        if isinstance(self.array, np.ndarray):
            return bool(cast("Any", self.array).flags.writeable)
        return not getattr(self.array, "read_only", False)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The sizes in which the array is stored."""
        return (
            (1,) * self.array.dim()
            if isinstance(self.array, Tensor)
            else _stored_chunks(self.array)
        )

    def write(self, where: Slices, part: Tensor) -> None:
        """Write a part."""
        if isinstance(self.array, Tensor):
            with torch.no_grad():
                self.array[where].copy_(part)
            return
        values = part.detach().numpy()
        if isinstance(self.array, np.ndarray) or not where:
            self.array[where if where else ...] = values
            forget_pages(self.array)
            return
        whole = [slice(None)] * (values.ndim - len(where))
        shape = self.array.shape
        spans = [w.indices(n)[:2] for w, n in zip([*where, *whole], shape, strict=True)]
        for piece in _pieces(spans, self.chunks, values.itemsize):
            inside = (slice(a - s, b - s) for (a, b), (s, _) in zip(piece, spans, strict=True))
            self.array[tuple(slice(a, b) for a, b in piece)] = values[tuple(inside)]

    def read(self, where: Slices) -> Tensor:
        """Return a part that has been written."""
        return source_of(self.array).part(where)


def _reserve(array: Any) -> None:
    """Allocate the file of a memory map on disk. Raises OSError if the disk is full, at which a
    later write into the map would end the process."""
    found, name = mapping_of(array), getattr(array, "filename", None)
    if found is None or name is None or not hasattr(os, "posix_fallocate"):
        return
    try:
        with open(name, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, found.size())
    except OSError as fault:
        if fault.errno == errno.ENOSPC:
            raise OSError(fault.errno, fault.strerror, str(name)) from fault


def flush_store(array: Any) -> None:
    """Write to disk what HDF5 holds in memory. Raises OSError, such as of a full disk."""
    file = getattr(array, "file", None)
    if hasattr(file, "flush"):
        cast("Any", file).flush()


def refuse_overlaps(places: Sequence[Any], args: Sequence[Any]) -> None:
    """Raise LowtideError if a place for results is an argument too, which later tasks read."""
    for place in places:
        if any(is_array(x) and _overlap(place, x) for x in args):
            raise LowtideError(
                "out shares memory with an argument, which later tasks still read; write instead: "
                "another array"
            )


def _overlap(a: Any, b: Any) -> bool:
    first, second = _in_memory(a), _in_memory(b)
    if first is None or second is None:
        return a is b or (type(a) is type(b) and not hasattr(a, "__dask_graph__") and bool(a == b))
    name = getattr(a, "filename", None)
    if name is not None and name == getattr(b, "filename", None):
        return True
    return bool(np.may_share_memory(first, second))


def _in_memory(array: Any) -> np.ndarray[Any, Any] | None:
    """Return the bytes of a tensor, or a NumPy array or memory map; None for another array."""
    if isinstance(array, Tensor) and array.device.type == "cpu" and array.numel():
        offsets = sum((n - 1) * k for n, k in zip(array.shape, array.stride(), strict=True))
        count = (1 + offsets) * array.element_size()
        begin = array.storage_offset() * array.element_size()
        with torch.no_grad():
            flat = torch.tensor((), dtype=torch.uint8).set_(array.detach().untyped_storage())
        return flat[begin : begin + count].numpy()
    return cast("Any", array) if isinstance(array, np.ndarray) else None


def _pieces(
    spans: Sequence[tuple[int, int]], chunks: Sequence[int], itemsize: int
) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield the parts in which a part of an array is written: whole chunks of the store, as many as
    are `_WRITTEN_BYTES`, since a store copies what it is given."""
    steps = list(chunks)
    for d in reversed(range(len(steps))):
        steps[d] *= max(_WRITTEN_BYTES // max(math.prod(steps) * itemsize, 1), 1)
        if steps[d] < spans[d][1] - spans[d][0]:
            break
    cuts = [
        [begin, *range((begin // step + 1) * step, end, step), end]
        for (begin, end), step in zip(spans, steps, strict=True)
    ]
    yield from itertools.product(*map(itertools.pairwise, cuts))
