"""The steps of a loop in one foreign call: kernels, and how their slots change from step to step.

In:  launches, in the order in which each step makes them, and moves: slots that differ by step.
Out: nothing; the kernels have run. The GIL is released once for all steps.

    k0(pool, threads, work, h, x, y, t)      first step    h = h0
                                             step t        h = y + row * (t - 1), y = y + row * t
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowtide.runtime import abi, cache

_SOURCE = (
    abi.C_DECLARATIONS
    + """
typedef int64_t (*lt_kernel)(const void *);
typedef struct { lt_slot *slot; int64_t first, base, stride, shift, rows; } lt_move;

LT_EXPORT int64_t lt_steps(int64_t trips, int64_t reverse, int64_t count, lt_kernel *kernels,
                           void **slots, int64_t changes, const lt_move *moves) {
  for (int64_t k = 0; k < trips; k++) {
    int64_t t = reverse ? trips - 1 - k : k;
    for (int64_t i = 0; i < changes; i++) {
      const lt_move *m = &moves[i];
      m->slot->q = k == 0 ? m->first : m->base + m->stride * ((t + m->shift + m->rows) % m->rows);
    }
    for (int64_t i = 0; i < count; i++) {
      int64_t fault = kernels[i](slots[i]);
      if (fault) return fault;
    }
  }
  return 0;
}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """A slot that is `first` at the first step that runs, `base + stride * ((t + shift) % rows)` at
    any other step t: a row of a stack, or the step itself."""

    first: int
    base: int
    stride: int
    shift: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel's function, the layout of all its slots, and what they hold."""

    function: Any
    layout: str
    slots: Sequence[int | float | Moving]


def run_steps(launches: Sequence[Launch], trips: int, reverse: bool) -> None:
    """Runs each launch once for every step, from 0 to `trips` or from the last one back."""
    buffers: list[Any] = []
    moves: list[int] = []
    for launch in launches:
        values = [x.first if isinstance(x, Moving) else x for x in launch.slots]
        buffer = ctypes.create_string_buffer(struct.pack(launch.layout, *values))
        buffers.append(buffer)
        for k, x in enumerate(launch.slots):
            if isinstance(x, Moving):
                slot = ctypes.addressof(buffer) + k * abi.SLOT_BYTES
                moves += [slot, x.first, x.base, x.stride, x.shift, x.rows]
    count = len(launches)
    kernels = (ctypes.c_void_p * count)(
        *(ctypes.cast(launch.function, ctypes.c_void_p).value for launch in launches)
    )
    slots = (ctypes.c_void_p * count)(*(ctypes.addressof(b) for b in buffers))
    table = (ctypes.c_int64 * max(len(moves), 1))(*moves)
    _function()(trips, int(reverse), count, kernels, slots, len(moves) // 6, table)


@functools.cache
def _function() -> Any:
    function = cache.load_library(_SOURCE, "steps").lt_steps
    function.argtypes = (
        *(ctypes.c_int64,) * 3,
        *(ctypes.c_void_p,) * 2,
        ctypes.c_int64,
        ctypes.c_void_p,
    )
    function.restype = ctypes.c_int64
    return function
