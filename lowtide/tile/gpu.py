"""The planner's model of a GPU, in plain numbers.

In:  the compute capability, and PyTorch's properties of a device. Out: a `Gpu`.

Numbers that PyTorch does not tell are in a table by compute capability. Sources:

    shared memory, resident threads and      NVIDIA's CUDA C++ Programming Guide, "Technical
    programs, registers                      Specifications per Compute Capability"
    f32, f64: fused multiply-adds per        the same, "Throughput of Native Arithmetic
    clock of a multiprocessor                Instructions"
    halves: the same of units for            NVIDIA's white papers on its architectures: Turing,
    products, added up in float32; clock,    A100, GA102, Ada, H100, Blackwell, RTX Blackwell
    bandwidth of a usual device
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`capability`: 90 for 9.0. Of one multiprocessor: `shared_sm_bytes`, of which one program may
    have `shared_bytes`; `threads` and `programs` that are resident at most; fused multiply-adds per
    clock in `f32`, `f64`, and of the units for products in `halves`; `groups`: these read both
    sides from shared memory, for four warps together."""

    name: str
    capability: int
    sms: int
    clock_ghz: float
    gigabytes_per_second: float
    shared_sm_bytes: int
    shared_bytes: int
    threads: int
    programs: int
    f32: int
    f64: int
    halves: int
    groups: bool = False
    registers: int = 1 << 16


def _row(
    name: str,
    capability: int,
    *,
    sms: int,
    ghz: float,
    rate: float,
    shared: tuple[int, int],
    resident: tuple[int, int],
    fmas: tuple[int, int],
    halves: int,
) -> Gpu:
    return Gpu(
        name=name,
        capability=capability,
        sms=sms,
        clock_ghz=ghz,
        gigabytes_per_second=rate,
        shared_sm_bytes=shared[0] << 10,
        shared_bytes=shared[1] << 10,
        threads=resident[0],
        programs=resident[1],
        f32=fmas[0],
        f64=fmas[1],
        halves=halves,
        groups=capability in (90, 100),
    )


# A usual device of each compute capability.
GPUS: Mapping[int, Gpu] = {
    row.capability: row
    for row in (
        _row("RTX 2080 Ti", 75, sms=68, ghz=1.55, rate=616, shared=(64, 64),
             resident=(1024, 16), fmas=(64, 2), halves=256),
        _row("A100", 80, sms=108, ghz=1.41, rate=1555, shared=(164, 163),
             resident=(2048, 32), fmas=(64, 32), halves=1024),
        _row("RTX 3090", 86, sms=82, ghz=1.70, rate=936, shared=(100, 99),
             resident=(1536, 16), fmas=(128, 2), halves=256),
        _row("RTX 4090", 89, sms=128, ghz=2.52, rate=1008, shared=(100, 99),
             resident=(1536, 24), fmas=(128, 2), halves=256),
        _row("H100", 90, sms=132, ghz=1.83, rate=3350, shared=(228, 227),
             resident=(2048, 32), fmas=(128, 64), halves=2048),
        _row("B200", 100, sms=148, ghz=1.85, rate=8000, shared=(228, 227),
             resident=(2048, 32), fmas=(128, 64), halves=4096),
        _row("RTX 5090", 120, sms=170, ghz=2.41, rate=1792, shared=(100, 99),
             resident=(1536, 24), fmas=(128, 2), halves=256),
    )
}  # fmt: skip
USUAL = GPUS[90]  # where no device is at hand: kernels are printed and interpreted for it


def gpu_like(capability: int) -> Gpu:
    """Return a usual device of a compute capability, or of the nearest one before it in the
    table."""
    before = [row for known, row in GPUS.items() if known <= capability]
    found = max(before, key=lambda row: row.capability) if before else GPUS[min(GPUS)]
    return replace(found, capability=capability)


def gpu_of(
    name: str,
    capability: int,
    *,
    sms: int,
    shared_sm_bytes: int,
    threads: int,
    clock_khz: int,
    memory_clock_khz: int,
    memory_bus_bits: int,
) -> Gpu:
    """Return a device by the facts that it reports; 0 stands for one that is missing."""
    found = gpu_like(capability)
    given = {
        "sms": sms,
        "threads": threads,
        "clock_ghz": clock_khz / 1e6,
        # twice per clock
        "gigabytes_per_second": 2 * memory_clock_khz * memory_bus_bits / 8 / 1e6,
    }
    found = replace(found, name=name, **{key: x for key, x in given.items() if x})
    if shared_sm_bytes:
        kept = found.shared_sm_bytes - found.shared_bytes  # what the system keeps of it
        shared = shared_sm_bytes - kept
        found = replace(found, shared_sm_bytes=shared_sm_bytes, shared_bytes=shared)
    return found
