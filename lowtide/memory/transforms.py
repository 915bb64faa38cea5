"""What Fourier transforms allocate inside, for one line of the longest dim: an upper bound.

In: the arguments of an ATen op and its result. Out: bytes beyond the result. Found by measuring
MKL; `n` is the length of a line, in complex numbers of 8 or 16 bytes:

    fft(z)       1.1 n                     if all factors of n are small
    rfft(x)      1.6 n                     the same; factors of an odd n must be smaller
    both, else   2.5 m + 2 n, and 256 KiB  by a convolution: m is a power of two, from 2 n - 1 on

What is small is less for one thread than for several, and hangs on how often 2 is a factor.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten
_LARGEST_FACTOR: Final = 5003
_LARGEST_ODD_FACTOR: Final = 31  # of odd lengths, of real numbers
_ALONE_LARGEST: Final = 149  # for one thread, of lengths that are even often enough:
_ALONE_LARGEST_ODD: Final = 47  # … of others


def _complex_lines(args: Sequence[Any], _: torch.Tensor) -> int:
    x, dims = args[0], args[1]
    return max((_line(x.shape[d], x.itemsize, False) for d in dims), default=0)


def _from_real(args: Sequence[Any], result: torch.Tensor) -> int:
    x, dims = args[0], args[1]
    rows = (_line(x.shape[d], result.itemsize, d == dims[-1]) for d in dims)
    return max(rows, default=0)


def _to_real(args: Sequence[Any], _: torch.Tensor) -> int:
    """All dims but the last are done before, in complex numbers."""
    x, dims, length = args[0], args[1], args[3]
    rows = [_line(x.shape[d], x.itemsize, False) for d in dims[:-1]]
    whole = x.numel() * x.itemsize if rows else 0
    return whole + max([*rows, _line(length, x.itemsize, True)])


def _line(length: int, itemsize: int, is_real: bool) -> int:
    """Bytes for one line; `itemsize`: of a complex number."""
    if _largest_factor(length) <= _largest_small_factor(length, is_real):
        return (16 if is_real else 11) * length * itemsize // 10
    convolved = 1 << (2 * length - 2).bit_length()
    return (5 * convolved // 2 + 2 * length) * itemsize + (1 << 18)


def _largest_small_factor(length: int, is_real: bool) -> int:
    """Up to which factors are small."""
    if torch.get_num_threads() > 1:
        return _LARGEST_ODD_FACTOR if is_real and length % 2 else _LARGEST_FACTOR
    return _ALONE_LARGEST if length % (8 if is_real else 4) == 0 else _ALONE_LARGEST_ODD


@functools.lru_cache(maxsize=1024)
def _largest_factor(n: int) -> int:
    found, factor = 1, 2
    while factor * factor <= n:
        if n % factor:
            factor += 1
        else:
            n //= factor
            found = factor
    return max(found, n)


BOUNDS: Mapping[Any, Any] = {
    aten._fft_c2c.default: _complex_lines,
    aten._fft_r2c.default: _from_real,
    aten._fft_c2r.default: _to_real,
}
