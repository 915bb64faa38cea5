"""Tests a C compiler with functions that some compilers get wrong.

In:  a library that the compiler made from `TEXT`, with the flags of kernels.
Out: `faults(path)`, a line for each function with a wrong result; () for a correct compiler.

    faults("probe.so")    ('it leaves out calls of functions that write to scratch memory',)

Invariant: each function is valid C under these flags, and some compiler gets it wrong without one.
"""

from __future__ import annotations

import ctypes
import math

from lowtide.runtime import abi

_FLOATS = 8192
_RAN = 1 << 8  # the bit that the probe sets if it runs

# The faults of a compiler, in the order of the result's bits.
_FAULTS = (
    "it leaves out calls of functions that write to scratch memory",
    "it takes the overflow of an int for impossible",
    "it takes an int and a float for never being at one address",
    "it rounds a*b+c once",
    "it takes NaN for impossible",
    "it adds floats in another order",
)

# `weighted` is reduced from a kernel that was split into functions: sums over rows with two
# strides, read from and written to one piece of scratch memory. gcc 12 rewrites its address as an
# offset from null, concludes that the function ends there, and removes calls of it.
TEXT = (
    abi.C_DECLARATIONS
    + """
#define LT_APART __attribute__((noinline, unused)) static

LT_APART void weighted(char *scratch, int64_t rows, int64_t columns) {
  const float *x = (const float *)scratch, *weight = (const float *)(scratch + 2048);
  float *sum = (float *)(scratch + 16384);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t r = 0; r < rows; r++)
      sum[r * 8 + c] += x[r * 8 + c] * weight[(r * 4 + c) * 8];
}
LT_APART int is_exceeded(int32_t x) { return x + 1 > x; }
LT_APART float rewritten(float *number, int32_t *bits) {
  *number = 1;
  *bits = 0x40000000;
  return *number;
}
LT_APART float product_and_sum(float a, float b, float c) { return a * b + c; }
LT_APART int is_nan(float x) { return x != x; }
LT_APART float sum_and_difference(float a, float large) { return a + large - large; }

LT_EXPORT int64_t lowtide_probe(void *scratch, int64_t rows, int64_t columns, int32_t highest,
                                float next, float nan) {
  float *numbers = scratch;
  int64_t faults = 256;
  weighted(scratch, rows, columns);
  faults |= numbers[4096] != 2;
  faults |= is_exceeded(highest) << 1;
  faults |= (rewritten(numbers, scratch) != 2) << 2;
  faults |= (product_and_sum(next, next, 1 - 2 * next) != 0) << 3;
  faults |= (int64_t)!is_nan(nan) << 4;
  faults |= (sum_and_difference(next, 1073741824) != 0) << 5;
  return faults;
}
"""
)


def faults(path: str) -> tuple[str, ...]:
    """Return the faults of the library at `path`, compiled from `TEXT`. Raises OSError if the
    system does not load it."""
    probe = ctypes.CDLL(path).lowtide_probe
    probe.restype = ctypes.c_int64
    integers = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    probe.argtypes = (ctypes.c_void_p, *integers, ctypes.c_float, ctypes.c_float)
    scratch = (ctypes.c_float * _FLOATS)(*[1.0] * _FLOATS)
    # (1 + 2^-12)^2 is 1 + 2^-11 and half a unit in the last place, which rounding removes.
    found = probe(ctypes.addressof(scratch), 10, 2, 2**31 - 1, 1 + 2.0**-12, math.nan)
    if not found & _RAN:
        return ("its functions return nothing",)
    return tuple(text for k, text in enumerate(_FAULTS) if found >> k & 1)
