"""The GPU for which kernels are compiled.

In:  the name of a machine (`codegen/machines`), such as "cuda:1".
Out: a `Gpu` for the planner (`tile/gpu`).
"""

from __future__ import annotations

import functools

from lowtide.runtime.gpus import properties
from lowtide.tile.gpu import USUAL, Gpu, gpu_of


@functools.cache
def gpu(machine: str) -> Gpu:
    """Return the machine's GPU; a usual one for the interpreter, or if there is no such device."""
    _, _, index = machine.partition(":")
    found = properties(int(index)) if index else None
    if found is None:
        return USUAL
    return gpu_of(
        found.name,
        found.capability,
        sms=found.sms,
        shared_sm_bytes=found.shared_sm_bytes,
        threads=found.threads,
        clock_khz=found.clock_khz,
        memory_clock_khz=found.memory_clock_khz,
        memory_bus_bits=found.memory_bus_bits,
    )
