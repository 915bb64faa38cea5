"""Decides whether kernels that were planned for small sizes must be replanned for large ones.

In: the memory of two plans at the current sizes. Out: whether to split the signature, and where.

    planned at 64 x 50, called at 8000 x 6000:    199 MB, a plan for these sizes takes 19 MB
    planned for 40 columns, called with 2000:     more shared memory than the GPU has
    planned for sums of 64, called with 20,000:   float32 totals of many tiles (`tile/carried`)

A plan for small sizes may store a value of pairs, which is too large at other sizes. A GPU kernel
may hold a full axis, which may be too long at other sizes. The bytes of inputs and outputs (`io`)
measure how large a call is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lowtide.execute.gradient import Gradient
from lowtide.texpr.expr import Program
from lowtide.texpr.index import Index, as_index, product
from lowtide.texpr.sizes import evaluate

OUTGROWN: Final = "sizes have outgrown the kernels planned for smaller ones"
TOO_WIDE: Final = "a size has outgrown what kernels planned for a smaller one can hold"
# Another plan is considered only above both of these multiples of io bytes:
GROWN: Final = 4  # of those for which the present plan was made or confirmed
GROWN_AGAIN: Final = 1.25  # of those at which `may_be_outgrown` was last false
_SPARE_BYTES: Final = 4 << 20  # beyond inputs and outputs: less is not worth a compilation
_WORTH: Final = 0.75  # another plan must need at most this share of memory or time


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Kernels of a region. `io_bytes`: of inputs and outputs, as a polynomial in sizes.
    `planned_io_bytes`: its value at the sizes for which the kernels were planned."""

    io_bytes: Index
    executable: Any
    gradient: Gradient | None
    planned_io_bytes: int

    def peak_bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the peak bytes of the forward or the backward pass, with saved values."""
        g = self.gradient
        forward = self.executable.memory(sizes).peak_bytes
        if g is None:
            return forward
        kept = sum(evaluate(s.nbytes, sizes) for s in g.saved if s.output < 0)
        return max([forward, *(kept + e.memory(sizes).peak_bytes for e in g.executables)])

    def too_wide(self, sizes: Mapping[str, int]) -> Index | None:
        """Return a polynomial that is >= 0 at sizes where a kernel cannot hold an axis; None if all
        kernels fit at these sizes."""
        made = [self.executable, *(self.gradient.executables if self.gradient is not None else ())]
        found = (x.too_wide(sizes) for x in made)
        return next((index for index in found if index is not None), None)

    def may_be_outgrown(self, sizes: Mapping[str, int]) -> bool:
        """Return whether another plan may be better. This one needs much more memory than inputs
        and outputs, or has a model of its time, by which larger blocks may be faster."""
        is_large = self.peak_bytes(sizes) > evaluate(self.io_bytes, sizes) + _SPARE_BYTES
        return is_large or self.executable.time_ns(sizes) > 0

    def is_outgrown(self, fresh: Plan, sizes: Mapping[str, int]) -> bool:
        """Return whether `fresh`, a plan for these sizes, needs much less memory or time."""
        g = self.gradient
        if g is not None and fresh.gradient is not None and g.executables:
            fresh.gradient.whole(sizes)
        if fresh.peak_bytes(sizes) < _WORTH * self.peak_bytes(sizes):
            return True
        fresh_ns, own_ns = (x.executable.time_ns(sizes) for x in (fresh, self))
        return fresh_ns < _WORTH * own_ns and fresh.peak_bytes(sizes) <= self.peak_bytes(sizes)

    def threshold(self, sizes: Mapping[str, int]) -> Index:
        """Return a polynomial that is >= 0 where `io_bytes` is nearer to its value at these sizes
        than to the planned one, by their geometric mean."""
        return self.io_bytes - math.isqrt(self.planned_io_bytes * evaluate(self.io_bytes, sizes))


def input_output_bytes(program: Program) -> Index:
    """Return the bytes of inputs and outputs."""
    inputs = [product(i.shape) * i.dtype.itemsize for i in program.inputs.values()]
    made = [program.defs[n] for n in program.results if n in program.defs]
    return sum([*inputs, *(product(d.shape) * d.dtype.itemsize for d in made)], as_index(0))
