"""The source of a Python module with Triton kernels: imports, helper functions, kernels.

In:  texts of functions. Out: the source of a module. `runtime/block_kernels` defines `jit` and
     `lib` in it: compiled for a GPU, or interpreted.

Triton's reductions return int32 for shorter integers. `lt_sum` and its like cast back to the dtype,
in which later operations wrap around.
"""

from __future__ import annotations

from collections.abc import Iterable

PRELUDE = """\
import triton.language as tl

lt_range = tl.range


@jit
def lt_wide(x, dtype: tl.constexpr):
    return tl.full((), 0, dtype) + tl.cast(x, dtype)


@jit
def lt_flag(x):
    return x


@jit
def lt_like(x, y):
    return tl.full((), x, y.dtype)


@jit
def lt_row(k, t, first, origin, stride, shift, rows):
    row = ((t + shift) % rows).to(tl.int64)
    return tl.where(k == 0, first, origin + row * stride)


@jit
def lt_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)


@jit
def lt_f16(x):
    return x.to(tl.float16).to(tl.float32)


@jit
def lt_floordiv(a, b):
    q = a // b
    return q - (q * b > a)


@jit
def lt_mod(a, b):
    return a - lt_floordiv(a, b) * b


@jit
def lt_clamp(a, n):
    return tl.maximum(tl.minimum(a, n - 1), 0)


@jit
def lt_mod_any(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@jit
def lt_floordiv_any(a, b):
    q = a // b
    return tl.where((a - q * b != 0) & ((a < 0) != (b < 0)), q - 1, q)


@jit
def lt_trunc_divide(a, b):
    return a // b


@jit
def lt_power(a, b):
    found = a * 0 + 1
    for _ in tl.static_range(0, 63):
        found = tl.where((b & 1) != 0, found * a, found)
        a = a * a
        b = b >> 1
    return found


@jit
def lt_fma(x, y, z):
    x, y = tl.broadcast(x, y)
    x, z = tl.broadcast(x, z)
    y, z = tl.broadcast(y, z)
    return tl.fma(x, y, z)


@jit
def lt_quotient(a, b):
    if a.dtype == tl.float32:  # whose quotient by "/" may be two units in the last place off
        found = tl.div_rn(a, b)
    else:
        found = a / b
    return found


@jit
def lt_number(a, b, found):
    return tl.where(b != b, a, tl.where(a != a, b, found))


@jit
def lt_sigmoid(x):
    one = lt_like(1, x)
    return lt_quotient(one, one + lib.exp(-x))


@jit
def lt_remainder(a, b):
    r = lib.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


@jit
def lt_floor_divide(a, b):
    r = lib.fmod(a, b)
    q = lt_quotient(a - r, b)
    q = tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)
    whole = lib.floor(q)
    whole = tl.where(q - whole > 0.5, whole + 1, whole)
    plain = lt_quotient(a, b)
    whole = tl.where(q == 0, lib.copysign(q, plain), whole)
    return tl.where(b == 0, plain, whole)


@jit
def lt_dot(a, b, c, precision: tl.constexpr):
    return tl.dot(a, b, c, input_precision=precision, out_dtype=c.dtype)


@jit
def lt_times(a, b):
    return a * b


@jit
def lt_sum(x, axis: tl.constexpr):
    return tl.sum(x, axis).to(x.dtype)


@jit
def lt_prod(x, axis: tl.constexpr):
    return tl.reduce(x, axis, lt_times)


@jit
def lt_greatest(x, axis: tl.constexpr):
    return tl.max(x, axis).to(x.dtype)


@jit
def lt_least(x, axis: tl.constexpr):
    return tl.min(x, axis).to(x.dtype)


@jit
def lt_best(x, axis: tl.constexpr, least: tl.constexpr):
    found = lt_least(x, axis) if least else lt_greatest(x, axis)
    if x.dtype.is_floating():
        nan = lt_greatest((x != x).to(tl.int32), axis) != 0
        found = tl.where(nan, lt_like(float("nan"), x), found)
    return found


@jit
def lt_any(x, axis: tl.constexpr):
    return lt_greatest(x.to(tl.int32), axis) != 0


@jit
def lt_all(x, axis: tl.constexpr):
    return lt_least(x.to(tl.int32), axis) != 0


@jit
def lt_better(x, best, least: tl.constexpr):
    found = (x < best) if least else (x > best)
    if x.dtype.is_floating():
        found = found | ((x != x) & (best == best))
    return found


@jit
def lt_where_best(x, best, at, axis: tl.constexpr):
    best = tl.expand_dims(best, axis)
    hit = (x == best) | ((x != x) & (best != best))
    return lt_least(tl.where(hit, at, 0x7FFFFFFFFFFFFFFF), axis)
"""


def module_text(texts: Iterable[str]) -> str:
    """Return the source of a module with these functions."""
    return "\n\n".join([PRELUDE, *texts])
