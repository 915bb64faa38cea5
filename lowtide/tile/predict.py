"""Predicts the time, registers and shared memory of a kernel of blocks on a GPU.

In:  a `Shape`, which is the work of a program; a `Gpu`; warps and stages. Out: a `Prediction`.

    a product of 4096 x 2048 by 1024 in halves, H100    64 x 64: 2048 programs of 8 warps, 90 us
                                                        128 x 128: 512 programs of 8 warps, 60 us

The time is about the largest of three: the arithmetic of a multiprocessor's programs at full rate;
the rounds of resident programs, each waiting for its loads; the traffic to the device's memory.
This is the "roofline" (Williams, Waterman, Patterson 2009) with the occupancy of NVIDIA's
programming guide. Waves of programs are whole numbers, so small tiles win for few points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lowtide.tile.gpu import Gpu

WARP = 32
WORD = 4  # bytes of a register
SPARE = 1.75  # compilers keep so many times the registers of the values that are alive
BASE_REGISTERS = 26  # addresses, counters, masks
FRAGMENTS = 0.25  # the share of a product's operands in registers at once, without tensor cores
LONGEST_STEPS = 32  # a product without tensor cores is unrolled; more steps compile slowly
MOST_REGISTERS = 190  # of a thread, by this model; compilers may spill beyond
REGISTER_STEP = 8  # the GPU allocates multiples of this
SYSTEM_BYTES = 1 << 10  # of shared memory that each program takes besides its own
SHARED_RATE = 128  # bytes per clock that a multiprocessor's shared memory gives
CACHE_RATE = 64  # bytes per clock that a multiprocessor gets from L2
L2_TIMES = 3  # how much faster than memory L2 is
LOAD_CLOCKS = 700  # from a load to its value
VISIT_CLOCKS = 40  # of one step of a sweep: a barrier, a branch, the next addresses
FOLD_CLOCKS = 250  # to fold a block along an axis, through shared memory
BEGIN_CLOCKS = 1500  # to start a program, and to issue its stores
LEAST_WARPS = 4  # one for each scheduler of a multiprocessor
ALL_WARPS = 8  # with so many, no scheduler waits for the result of an instruction
GROUP_WARPS, GROUP_ROWS = 4, 64  # of a product that reads operands in shared memory (`groups`)
SMALL_TIMES = 2  # slowdown of a product with fewer rows than GROUP_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A product of blocks. `dtype`: of both operands. `read_bytes`: blocks that are read from
    memory for them. `made_bytes`: operands that are computed from these."""

    rows: int
    columns: int
    inner: int
    dtype: str
    read_bytes: int
    made_bytes: int

    @property
    def operand_bytes(self) -> int:
        """Return the bytes of both operands in shared memory."""
        itemsize = {"f64": 8, "f32": 4}.get(self.dtype, 2)
        return (self.rows + self.columns) * self.inner * itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a program, run `visits` times. `layers`: the points of computed values, and the
    operations at each. `live_words`: registers of all threads that values take at once.
    `read_bytes`: read by loads. `doubles`: it computes in float64."""

    visits: int
    layers: tuple[tuple[int, float], ...]
    live_words: int
    read_bytes: int
    product: Product | None = None
    doubles: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kernel in some tiles. `held_words`: accumulators of a program; `folds`: how many of them
    are folded; `moved_bytes`: what comes from memory, or goes there, at least once."""

    programs: int
    parts: tuple[Part, ...]
    held_words: int
    folds: int
    moved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`registers` of a thread, `shared_bytes` of a program; `resident` programs of a
    multiprocessor, 0 where a GPU cannot run it."""

    time_ns: float
    registers: int
    shared_bytes: int
    resident: int


def predict(shape: Shape, gpu: Gpu, warps: int, stages: int) -> Prediction:
    """See the module's text."""
    threads = warps * WARP
    registers = _registers(shape, gpu, threads)
    shared = _shared_bytes(shape, gpu, stages)
    resident = _resident(gpu, threads, registers, shared)
    resident = 0 if _is_written_out(shape, gpu) else resident
    time_ns = _time_ns(shape, gpu, warps, stages, resident) if resident else math.inf
    return Prediction(time_ns=time_ns, registers=registers, shared_bytes=shared, resident=resident)


def is_by_units(product: Product, gpu: Gpu) -> bool:
    """Return whether tensor cores compute the product. Products of float32 do not: IEEE
    rounding."""
    return product.dtype == "f16" or (product.dtype == "bf16" and gpu.capability >= 80)


# ---- what it needs ------------------------------------------------------------------------------


def _registers(shape: Shape, gpu: Gpu, threads: int) -> int:
    live = SPARE * max((p.live_words for p in shape.parts), default=0) + shape.held_words
    read = sum(_fragments(p.product, gpu, threads) for p in shape.parts if p.product is not None)
    return BASE_REGISTERS + math.ceil(live / threads + read)


def _fragments(p: Product, gpu: Gpu, threads: int) -> float:
    """Return the registers of a thread for the operands of a product without tensor cores."""
    if is_by_units(p, gpu):
        return 0.0
    side = math.sqrt(max(p.rows * p.columns / threads, 1))  # of what a thread has
    return FRAGMENTS * 2 * side * p.inner * (2 if p.dtype == "f64" else 1)


def _is_written_out(shape: Shape, gpu: Gpu) -> bool:
    """Return whether a product without tensor cores has so many unrolled steps that compiling
    takes long."""
    products = [p.product for p in shape.parts if p.product is not None]
    return any(p.inner > LONGEST_STEPS and not is_by_units(p, gpu) for p in products)


def _shared_bytes(shape: Shape, gpu: Gpu, stages: int) -> int:
    products = [p.product for p in shape.parts if p.product is not None]
    held = sum(p.made_bytes + p.read_bytes * _ahead(p, gpu, stages) for p in products)
    turned = max((p.rows * p.columns * WORD for p in products), default=0)  # before it is stored
    return max(held, turned)


def _ahead(p: Product, gpu: Gpu, stages: int) -> int:
    """Return how many copies of a product's operands are in shared memory."""
    if gpu.capability < 80:
        return 1  # nothing is read ahead
    return stages if gpu.groups and is_by_units(p, gpu) else max(stages - 1, 1)


def _resident(gpu: Gpu, threads: int, registers: int, shared: int) -> int:
    """Return the number of programs that a multiprocessor runs at once."""
    if registers > MOST_REGISTERS or shared > gpu.shared_bytes:
        return 0
    taken = -(-registers // REGISTER_STEP) * REGISTER_STEP * threads
    return min(
        gpu.programs,
        gpu.threads // threads,
        gpu.registers // taken,
        gpu.shared_sm_bytes // (shared + SYSTEM_BYTES),
    )


# ---- how long it takes --------------------------------------------------------------------------


def _time_ns(shape: Shape, gpu: Gpu, warps: int, stages: int, resident: int) -> float:
    threads = warps * WARP
    each = -(-shape.programs // gpu.sms)  # programs of a multiprocessor
    rounds = -(-each // resident)
    at_once = min(resident, each)
    clocks = sum(p.visits * _part_clocks(p, gpu, threads) for p in shape.parts)
    waits = _waiting(shape, stages)
    idle = max(1.0, ALL_WARPS / (warps * at_once))  # few warps leave schedulers without work
    alone = clocks * max(1.0, LEAST_WARPS / warps)
    busy = max(each * clocks * idle, rounds * (waits + alone)) / gpu.clock_ghz
    read = shape.programs * sum(p.visits * p.read_bytes for p in shape.parts)
    memory = shape.moved_bytes / gpu.gigabytes_per_second
    cache = read / (L2_TIMES * gpu.gigabytes_per_second)
    return max(busy, memory, cache) + 0.1 * (busy + memory + cache)


def _waiting(shape: Shape, stages: int) -> float:
    """Return the clocks for which a program waits if no other program runs."""
    found = float(BEGIN_CLOCKS + FOLD_CLOCKS * shape.folds)
    for p in shape.parts:
        ahead = max(stages - 1, 1) if p.product is not None else 1
        loads = LOAD_CLOCKS / ahead if p.read_bytes else 0.0
        found += p.visits * loads
    return found


def _part_clocks(part: Part, gpu: Gpu, threads: int) -> float:
    """Return the clocks of a multiprocessor for one visit. Each thread has at least one point."""
    rate = gpu.f64 if part.doubles else gpu.f32
    lanes = sum(max(points, threads) * operations for points, operations in part.layers) / rate
    found = lanes + (0 if part.product is None else _product_clocks(part.product, gpu, threads))
    return max(found, part.read_bytes / CACHE_RATE) + VISIT_CLOCKS


def _product_clocks(p: Product, gpu: Gpu, threads: int) -> float:
    fmas = p.rows * p.columns * p.inner
    stored = p.operand_bytes / SHARED_RATE
    if is_by_units(p, gpu):
        grouped = gpu.groups and threads >= GROUP_WARPS * WARP and p.rows >= GROUP_ROWS
        teams = threads / WARP / (GROUP_WARPS if grouped else 1)
        side = math.sqrt(p.rows * p.columns / teams)  # of the tile of one warp or group
        read = teams * 2 * side * p.inner * 2 / SHARED_RATE
        slower = SMALL_TIMES if gpu.groups and not grouped else 1
        return max(slower * fmas / gpu.halves, read) + stored
    rate = gpu.f64 if p.dtype == "f64" else gpu.f32
    each = math.sqrt(max(p.rows * p.columns / threads, 1))  # of what a thread has
    read = threads * 2 * each * p.inner * WORD / SHARED_RATE / 2  # some is the same for neighbours
    return max(fmas / rate, read) + stored
