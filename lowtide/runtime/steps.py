"""Runs all steps of a loop in one foreign call: the kernels, and the changes of their slots.

In:  the launches of a step, in order; `Moving` slots differ from step to step.
Out: the number of steps that ran. The GIL is released once for all steps.

    k0(pool, threads, work, h, x, y, t)      first step    h = h0
                                             step t        h = y + row * (t - 1), y = y + row * t

An inner loop is a launch, too. The outer loop's moves also apply to the slots and moves of the
inner loop.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lowtide.runtime import abi, cache

_SOURCE = (
    abi.C_DECLARATIONS
    + """
typedef int64_t (*lt_kernel)(const void *);
typedef struct { lt_slot *slot; int64_t first, base, stride, shift, rows; } lt_move;
typedef struct {
  int64_t trips, reverse, count;
  lt_kernel *kernels;
  void **slots;
  int64_t changes;
  const lt_move *moves;
  const char *until;
  int64_t done;
} lt_loop;

LT_EXPORT int64_t lt_steps(const void *steps) {
  lt_loop *l = (lt_loop *)steps;
  l->done = l->trips;
  for (int64_t k = 0; k < l->trips; k++) {
    int64_t t = l->reverse ? l->trips - 1 - k : k;
    for (int64_t i = 0; i < l->changes; i++) {
      const lt_move *m = &l->moves[i];
      int64_t row = t + m->shift;
      if ((unsigned long long)row >= (unsigned long long)m->rows)
        row = (row + m->rows) % m->rows;
      m->slot->q = k == 0 ? m->first : m->base + m->stride * row;
    }
    for (int64_t i = 0; i < l->count; i++) {
      int64_t fault = l->kernels[i](l->slots[i]);
      if (fault) return fault;
    }
    if (l->until && !*l->until) {
      l->done = k + 1;
      break;
    }
  }
  return 0;
}
"""
)
_LOOP_LAYOUT = "@qqqPPqPPq"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moving:
    """A slot that changes with the steps of a loop: a row of a stack, or the step itself. It is
    `first` in the first step that runs, and `base + stride * ((t + shift) % rows)` in any other
    step t. `level`: number of loops around the loop; `first` and `base` may move with their
    steps."""

    first: Slot
    base: Slot
    stride: int
    shift: int
    rows: int
    level: int = 0

    def by(self, distance: int) -> Moving:
        """Return the slot with `distance` added to its values."""
        first, base = behind(self.first, distance), behind(self.base, distance)
        return replace(self, first=first, base=base)


Slot = int | Moving


def behind(slot: Slot, distance: int) -> Slot:
    """Return the slot with `distance` added to its values."""
    return slot.by(distance) if isinstance(slot, Moving) else slot + distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A kernel's function, the layout of its slots, and their values. `keeps`: an object that must
    live as long as the launch."""

    function: Any
    layout: str
    slots: Sequence[float | Slot]
    keeps: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A loop: `trips` steps run the launches, with `reverse` from the last step to step 0. It ends
    after a step that writes 0 to the byte at address `until`, if `until` is not 0."""

    launches: Sequence[Launch | Steps]
    trips: int
    reverse: bool
    level: int = 0
    until: Slot = 0


def run_steps(steps: Steps) -> int:
    """Run all steps; return how many ran."""
    made = _Table()
    address = made.loop(steps)
    _function()(address)
    return ctypes.c_int64.from_address(address + _DONE).value


class _Table:
    """Slots in memory, and the addresses of those that move. It lives while the steps run."""

    def __init__(self) -> None:
        self.buffers: list[Any] = []
        self.moves: dict[int, list[tuple[int, Moving]]] = {}

    def loop(self, steps: Steps) -> int:
        """Return the address of a loop's own slots."""
        functions: list[int | None] = []
        slots: list[int] = []
        for launch in steps.launches:
            if isinstance(launch, Steps):
                functions.append(_address(_function()))
                slots.append(self.loop(launch))
            else:
                functions.append(_address(launch.function))
                slots.append(self._slots(launch.layout, launch.slots))
        count = len(functions)
        kernels, starts = (ctypes.c_void_p * count)(*functions), (ctypes.c_void_p * count)(*slots)
        own = (ctypes.addressof(kernels), ctypes.addressof(starts))
        head = (steps.trips, int(steps.reverse), count, *own)
        loop = self._slots(_LOOP_LAYOUT, (*head, 0, 0, steps.until, 0))
        moves = self.moves.pop(steps.level, [])
        table = (ctypes.c_int64 * max(_MOVE * len(moves), 1))()
        for k, (slot, x) in enumerate(moves):
            place = ctypes.addressof(table) + k * _MOVE * abi.SLOT_BYTES
            fields = (slot, *self._known((x.first, x.base), place + abi.SLOT_BYTES))
            table[k * _MOVE : (k + 1) * _MOVE] = [*fields, x.stride, x.shift, x.rows]
        self.buffers += [table, kernels, starts]
        changes = (ctypes.c_int64 * 2).from_address(loop + len(head) * abi.SLOT_BYTES)
        changes[:] = [len(moves), ctypes.addressof(table)]
        return loop

    def _slots(self, layout: str, values: Sequence[float | Slot]) -> int:
        buffer = ctypes.create_string_buffer(struct.calcsize(layout))
        self.buffers.append(buffer)
        address = ctypes.addressof(buffer)
        struct.pack_into(layout, buffer, 0, *self._known(values, address))
        return address

    def _known(self, values: Sequence[float | Slot], address: int) -> list[int | float]:
        """Return the values of slots, 0 for a slot that moves; note the addresses of those."""
        found: list[int | float] = []
        for k, x in enumerate(values):
            if isinstance(x, Moving):
                self.moves.setdefault(x.level, []).append((address + k * abi.SLOT_BYTES, x))
            found.append(0 if isinstance(x, Moving) else x)
        return found


_MOVE = 6  # fields of a move
_DONE = 8 * abi.SLOT_BYTES  # offset of `lt_loop.done`


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


@functools.cache
def _function() -> Any:
    function = cache.load_library(_SOURCE, "steps").lt_steps
    function.argtypes = (ctypes.c_void_p,)
    function.restype = ctypes.c_int64
    return function
