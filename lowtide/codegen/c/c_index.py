"""Prints index polynomials as C expressions of type int64_t.

In: an `Index`, the names of axes and gathered values. Out: C text; `HELPERS` are its functions.

    (i + 1) // 2      →      (((b_i + l_i) + 1) / (2)), or lt_floordiv(…) if it may be negative
"""

from __future__ import annotations

from collections.abc import Callable

from lowtide.codegen.index_text import index_text
from lowtide.texpr.index import Axis, Gather, Index

HELPERS = """\
LT_INLINE int64_t lt_floordiv(int64_t a, int64_t b) { int64_t q = a / b; return q - (q * b > a); }
LT_INLINE int64_t lt_mod(int64_t a, int64_t b) { return a - lt_floordiv(a, b) * b; }
LT_INLINE int64_t lt_clamp(int64_t a, int64_t n) { return a < 0 || n < 1 ? 0 : a < n ? a : n - 1; }
/* a - start, clamped to [-1, 64]: no vector has more than 64 lanes */
LT_INLINE int32_t lt_lane(int64_t a, int64_t start) {
  uint64_t d = (uint64_t)a - (uint64_t)start;
  return a < start ? -1 : d < 64 ? (int32_t)d : 64;
}
LT_INLINE int64_t lt_min(int64_t a, int64_t b) { return a < b ? a : b; }
LT_INLINE int64_t lt_max(int64_t a, int64_t b) { return a > b ? a : b; }
"""


def c_index(
    index: Index,
    coordinate: Callable[[Axis], str] | None = None,
    gathered: Callable[[Gather], str] | None = None,
) -> str:
    """Return the polynomial as C; a size is the variable `z_name`."""
    return index_text(index, "/", coordinate, gathered)
