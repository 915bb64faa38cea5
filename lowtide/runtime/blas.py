"""Matrix products by the BLAS inside PyTorch's library, in one foreign call without views.

In:  addresses, sizes and strides of two operands and a result, in float32 or float64.
Out: 0 if the product is done; 1 if this BLAS cannot do it, then `torch.matmul` has to.

    f32 = blas("f32")              x: [64, 16], w: [16, 32], y: [64, 32], row-major, no batch
    f32.run(packer(0)(f32.one, f32.batch, x, w, y, 64, 32, 16, 16, 1, 32, 1, 32, 1, 0))

`torch.matmul` calls the same functions of MKL. Its Python call with three views takes 30 to 60 µs
where the product before has evicted the code from the caches; this call takes 3. A batch is a list
of addresses, so its dims may have any strides: `torch.bmm` copies an operand first.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from lowtide.errors import BackendError
from lowtide.runtime import abi, cache, launch

# The slots of a call: addresses of two functions and three matrices, three sizes, six strides (of
# rows and columns), the number of batch dims, and for each an extent and three strides.
_POINTERS: Final = 5
_NUMBERS: Final = 10
_NUMBERS_PER_DIM: Final = 4
_HEAD = (
    abi.C_DECLARATIONS
    + """
#define LT_MOST 256 /* products of one call of the library */
typedef struct { int64_t ld; char is_by_columns, is_legal; } lt_form;

/* How BLAS sees rows x columns with these strides. */
static lt_form lt_form_of(int64_t rows, int64_t columns, int64_t down, int64_t along) {
  lt_form f = {0, 0, 1};
  if ((along == 1 || columns == 1) && (down >= columns || rows == 1)) {
    f.ld = rows == 1 ? columns : down;
  } else if ((down == 1 || rows == 1) && (along >= rows || columns == 1)) {
    f.is_by_columns = 1;
    f.ld = columns == 1 ? rows : along;
  } else {
    f.is_legal = 0;
  }
  f.is_legal &= f.ld <= 0x7fffffff;
  return f;
}
"""
)
# BLAS has columns first: it computes the transposed result, of the operands in the other order.
_FUNCTION = """
typedef void (*NAME_gemm)(const char *, const char *, const int32_t *, const int32_t *,
                          const int32_t *, const TYPE *, const TYPE *, const int32_t *,
                          const TYPE *, const int32_t *, const TYPE *, TYPE *, const int32_t *);
typedef void (*NAME_batch)(int32_t, const int32_t *, const int32_t *, const int32_t *,
                           const int32_t *, const int32_t *, const TYPE *, const TYPE **,
                           const int32_t *, const TYPE **, const int32_t *, const TYPE *, TYPE **,
                           const int32_t *, int32_t, const int32_t *);

LT_EXPORT int64_t lt_product_NAME(const void *args) {
  const lt_slot *s = args, *dims = s + 15;
  const TYPE *x = s[2].p, *w = s[3].p, one = 1, zero = 0;
  TYPE *y = s[4].p;
  int64_t rows = s[5].q, columns = s[6].q, terms = s[7].q, rank = s[14].q, count = 1;
  if (rows < 1 || columns < 1 || terms < 1) return 1;
  if (rows > 0x7fffffff || columns > 0x7fffffff || terms > 0x7fffffff) return 1;
  lt_form fx = lt_form_of(rows, terms, s[8].q, s[9].q);
  lt_form fw = lt_form_of(terms, columns, s[10].q, s[11].q);
  lt_form fy = lt_form_of(rows, columns, s[12].q, s[13].q);
  if (!fx.is_legal || !fw.is_legal || !fy.is_legal || fy.is_by_columns) return 1;
  /* Intel's machines store the low half first: a BLAS with ints of 64 bits finds them, too. */
  const int32_t *m = (int32_t *)&columns, *n = (int32_t *)&rows, *k = (int32_t *)&terms;
  const int32_t *ldx = (int32_t *)&fx.ld, *ldw = (int32_t *)&fw.ld, *ldy = (int32_t *)&fy.ld;
  for (int64_t d = 0; d < rank; d++) count *= dims[4 * d].q;
  if (count == 1) {
    char tw = fw.is_by_columns ? 'T' : 'N', tx = fx.is_by_columns ? 'T' : 'N';
    ((NAME_gemm)s[0].p)(&tw, &tx, m, n, k, &one, w, ldw, x, ldx, &zero, y, ldy);
    return 0;
  }
  int32_t tw = fw.is_by_columns ? 112 : 111, tx = fx.is_by_columns ? 112 : 111;
  const TYPE *xs[LT_MOST], *ws[LT_MOST];
  TYPE *ys[LT_MOST];
  int64_t pending = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t left = i, ox = 0, ow = 0, oy = 0;
    for (int64_t d = rank - 1; d >= 0; d--) {
      const lt_slot *dim = dims + 4 * d;
      int64_t at = left % dim[0].q;
      left /= dim[0].q;
      ox += at * dim[1].q;
      ow += at * dim[2].q;
      oy += at * dim[3].q;
    }
    xs[pending] = x + ox;
    ws[pending] = w + ow;
    ys[pending++] = y + oy;
    if (pending == LT_MOST || i == count - 1) {
      ((NAME_batch)s[1].p)(102, &tw, &tx, m, n, k, &one, ws, ldw, xs, ldx, &zero, ys, ldy, 1,
                           (int32_t *)&pending);
      pending = 0;
    }
  }
  return 0;
}
"""
_TYPES: Final = {"f32": ("float", "s"), "f64": ("double", "d")}


DTYPES: Final = tuple(_TYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blas:
    """The functions of one dtype. `run` takes packed slots, `one` and `batch` are the first two."""

    run: Callable[[bytes], int]
    one: int = 0
    batch: int = 0


_NONE: Final = Blas(run=lambda slots: 1)


@functools.cache
def blas(dtype: str) -> Blas:
    """Return the products of a dtype. They refuse all calls if PyTorch does not export MKL's."""
    kind, letter = _TYPES[dtype]
    found = [launch.torch_function(n) for n in (f"{letter}gemm_", f"cblas_{letter}gemm_batch")]
    if 0 in found or not torch.backends.mkl.is_available():
        return _NONE
    text = _HEAD + _FUNCTION.replace("NAME", dtype).replace("TYPE", kind)
    try:
        run: Any = cache.load_library(text, "blas")[f"lt_product_{dtype}"]
    except BackendError:
        return _NONE
    run.argtypes, run.restype = (ctypes.c_char_p,), ctypes.c_int64
    made = Blas(run=run, one=found[0], batch=found[1])
    return made if _is_right(made, kind) else _NONE


@functools.cache
def packer(rank: int) -> Callable[..., bytes]:
    """Return what packs the slots of a product with so many batch dims."""
    return struct.Struct(f"@{_POINTERS}P{_NUMBERS + _NUMBERS_PER_DIM * rank}q").pack


def _is_right(made: Blas, kind: str) -> bool:
    """Return whether both functions compute a product of four and a batch of two."""
    array: Any = (ctypes.c_float if kind == "float" else ctypes.c_double) * 8
    x, w, y = array(1, 2, 3, 4, 5, 6, 7, 8), array(1, 0, 2, 1, 1, 1, 0, 1), array()
    places = [ctypes.addressof(part) for part in (x, w, y)]
    head = (made.one, made.batch, *places, 2, 2, 2, 2, 1, 2, 1, 2, 1)
    made.run(packer(0)(*head, 0))
    if list(y) != [5, 2, 11, 4, 0, 0, 0, 0]:
        return False
    made.run(packer(1)(*head, 1, 2, 4, 4, 4))
    return list(y) == [5, 2, 11, 4, 5, 11, 7, 15]
