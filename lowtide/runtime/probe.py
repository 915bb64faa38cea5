"""Tests a C compiler with four functions that some compilers get wrong.

In: a library that the compiler made of `TEXT`, with the flags that kernels get.
Out: `faults(path)`, a line for each function that computed something else; () for a sound compiler.
Always: each function is valid C under those flags, and has gone wrong in some compiler without one.

    faults("probe.so")    ('it leaves out calls of functions that write to scratch memory',)
"""

from __future__ import annotations

import ctypes

from lowtide.runtime import abi

_FLOATS = 8192
_RAN = 1 << 8  # that it ran at all

# (what is wrong with a compiler that fails, in the order of the bits of the result)
_FAULTS = (
    "it leaves out calls of functions that write to scratch memory",
    "it takes the overflow of an int for impossible",
    "it takes an int and a float for never being at one address",
    "it rounds a*b+c once",
)

# `weighted` is the reduced form of a kernel that was split into functions: sums over rows with two
# strides, read and written in one piece of scratch memory. gcc 12 writes its address as an offset
# from null, ends the function there, and takes it for one without effect.
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

LT_EXPORT int64_t lowtide_probe(void *scratch, int64_t rows, int64_t columns, int32_t highest,
                                float next) {
  float *numbers = scratch;
  int64_t faults = 256;
  weighted(scratch, rows, columns);
  faults |= numbers[4096] != 2;
  faults |= is_exceeded(highest) << 1;
  faults |= (rewritten(numbers, scratch) != 2) << 2;
  faults |= (product_and_sum(next, next, 1 - 2 * next) != 0) << 3;
  return faults;
}
"""
)


def faults(path: str) -> tuple[str, ...]:
    """What the library at `path`, made of `TEXT`, computes wrongly. Raises OSError where the system
    does not load it."""
    probe = ctypes.CDLL(path).lowtide_probe
    probe.restype = ctypes.c_int64
    integers = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int32)
    probe.argtypes = (ctypes.c_void_p, *integers, ctypes.c_float)
    scratch = (ctypes.c_float * _FLOATS)(*[1.0] * _FLOATS)
    # (1 + 2^-12)^2 is half a unit above 1 + 2^-11: rounded, it is that; unrounded, it is more.
    found = probe(ctypes.addressof(scratch), 10, 2, 2**31 - 1, 1 + 2.0**-12)
    if not found & _RAN:
        return ("its functions return nothing",)
    return tuple(text for k, text in enumerate(_FAULTS) if found >> k & 1)
