"""What PyTorch's reductions keep of their parts on GPUs.

In: an op that reduces, its arguments and result. Out: bytes, an upper bound. Where few columns are
long, several blocks of threads share each, and every thread leaves its part in memory, to be summed
at last:

    x.sum(0)    x: [8192, 384]    128 blocks for each of the columns, of 32 × 4: 25 MB

A reduction along what lies side by side leaves a number for each block, which is little. The rules
are those by which PyTorch 2.11 divides such a launch, checked by what its allocator was asked for
on the simulated GPU of `tests/simulated`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

import torch

Tensor = torch.Tensor

_MOST_THREADS: Final = 512  # of a block, for all numbers that one of them writes together
_WARP: Final = 32
_FEWEST: Final = 16  # numbers for each thread, before columns are shared
_ENOUGH: Final = 256  # numbers for each thread, from which on they are
_WRITTEN: Final = 4  # numbers at most that a thread writes together
_UNKNOWN: Final = 132, 2048  # multiprocessors and threads of each, where there is no GPU to ask
_SEMAPHORE_BYTES: Final = 4


def sums(args: Sequence[Any], result: Tensor) -> int:
    """Of sums, means, products and norms: halves are summed in single precision."""
    return _parts(args, result, max(result.itemsize, 4))


def extremes(args: Sequence[Any], result: Tensor) -> int:
    """Of the largest and the least: of their own dtype."""
    return _parts(args, result, result.itemsize)


def variances(args: Sequence[Any], result: Any) -> int:
    """Mean, squares and two counts."""
    made = cast("Tensor", result[0] if isinstance(result, tuple) else result)
    return _parts(args, made, 4 * max(made.itemsize, 4))


def _parts(args: Sequence[Any], made: Tensor, part_bytes: int) -> int:
    x: Tensor = args[0]
    if not made.numel() or x.numel() <= made.numel():
        return 0
    rows = x.numel() // made.numel()
    count = made.numel()
    most = max((_shared(n, count, rows, k, t) for n, k, t in _forms(x, args)), default=0)
    blocks = made.numel() if most else 0
    return most * made.numel() * part_bytes + blocks * _SEMAPHORE_BYTES


def _forms(x: Tensor, args: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """How columns may follow each other: their number, how many a thread writes, and threads."""
    reduced = _dims(args)
    kept = [d for d in range(x.dim()) if d not in reduced and x.shape[d] > 1]
    if not kept:
        return
    if not x.is_contiguous():
        sizes = [x.shape[d] for d in kept]
        yield from ((size, 1, _MOST_THREADS) for size in {*sizes, _product(sizes)})
        length = _side_by_side(x, kept)
        together = next(n for n in (_WRITTEN, 2, 1) if length % n == 0)
        yield length, together, _MOST_THREADS // together
        return
    if kept[-1] < max(d for d in reduced if x.shape[d] > 1):
        return  # what is reduced lies side by side
    first = len(kept) - 1
    while first and kept[first - 1] == kept[first] - 1:
        first -= 1
    length = _product(x.shape[d] for d in kept[first:])
    together = next(n for n in (_WRITTEN, 2, 1) if length % n == 0)
    yield length, together, _MOST_THREADS // together
    if first:
        yield length, 1, _MOST_THREADS // together


def _side_by_side(x: Tensor, dims: Sequence[int]) -> int:
    """How many elements of these dims lie one beside the other."""
    length = 1
    for d in sorted(dims, key=x.stride):
        if x.stride(d) != length:
            break
        length *= x.shape[d]
    return length


def _dims(args: Sequence[Any]) -> set[int]:
    """Those that are reduced: all, where none is named."""
    x = args[0]
    listed = (cast("Any", a) for a in args[1:] if isinstance(a, list | tuple | int))
    given = next(listed, None)
    named: list[int] = [given] if isinstance(given, int) else list(given or range(x.dim()))
    return {d % x.dim() for d in named} if x.dim() else set()


def _shared(length: int, columns: int, rows: int, together: int, threads: int) -> int:
    """Parts of each column."""
    wide, high = _power(length // together, threads), _power(rows, threads)
    height = min(high, threads // min(wide, _WARP))
    width = min(wide, threads // height)
    each = -(-rows // height)
    blocks = -(-(columns // together) // width)
    places = _places(width * height)
    if each < _ENOUGH or blocks > places:
        return 0
    shared = max(min(-(-places // blocks), -(-each // _FEWEST)), -(-each // _ENOUGH))
    return shared * width * together if shared > 1 else 0


def _power(count: int, most: int) -> int:
    """The largest power of two that is no more than either."""
    return min(1 << (max(count, 1).bit_length() - 1), most)


def _places(threads: int) -> int:
    """Blocks of so many threads that a GPU holds at a time."""
    processors, each = _UNKNOWN
    if torch.cuda.is_available():
        found = cast("Any", torch.cuda.get_device_properties)(torch.cuda.current_device())
        processors, each = found.multi_processor_count, found.max_threads_per_multi_processor
    return int(processors * (each // threads))


def _product(sizes: Any) -> int:
    return torch.Size(sizes).numel()
