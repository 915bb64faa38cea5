"""What the planner knows of a machine: register width, registers, threads; and the sizes of tiles
that it takes. Plain numbers.

In: the name of a row of `TILINGS`; "" is what the cost model takes, the others are measured beside
it where the user asks for that (`codegen/tuned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# What differs from the defaults of `Target`, by name.
TILINGS: Mapping[str, Mapping[str, int]] = {
    "": {},
    "few rows": {"grid_tile": 48, "task_points": 1 << 14},
    "many rows": {"grid_tile": 576, "task_points": 1 << 18},
    "short sweeps": {"sweep_tile": 128, "contraction_tile": 96},
    "long sweeps": {"sweep_tile": 2048, "contraction_tile": 864},
    "short sums": {"reduced_tile": 48},
    "long sums": {"reduced_tile": 432},
    "few registers": {"accumulators": 12},
    "small tiles": {
        "grid_tile": 48, "task_points": 1 << 14, "sweep_tile": 128, "contraction_tile": 96,
        "reduced_tile": 48,
    },
}  # fmt: skip

# The same of `BlockSizes`.
BLOCK_TILINGS: Mapping[str, Mapping[str, int]] = {
    "": {},
    "small blocks": {"block_points": 1024, "pair_points": 1024, "pair_tile": 32},
    "large blocks": {"block_points": 8192, "pair_points": 16384, "pair_tile": 128},
    "small products": {"product_tile": 32},
    "large products": {"product_tile": 128},
    "long steps": {"product_steps": 64},
    "few warps": {"warp_points": 1 << 14},
    "many warps": {"warp_points": 1 << 10},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Of the blocks that a program on a GPU holds."""

    block_points: int = 2048  # of a value that is read from memory as it lies
    pair_points: int = 4096  # of a value of pairs, whose parts are read once for many points
    pair_tile: int = 64  # of each of its axes
    product_tile: int = 64  # rows and columns of a product of blocks …
    product_steps: int = 32  # … and what it sums over at a time
    warp_points: int = 4096  # a program with blocks of so many points has eight warps, else four


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`vector_bytes` per register; `accumulators`: registers that a nest may hold results in; the
    others in points."""

    vector_bytes: int
    accumulators: int
    threads: int
    task_points: int = 1 << 16  # of what is no pair, per task
    grid_tile: int = 192  # rows per task where a tile of pairs is held; twice that where none is
    sweep_tile: int = 512  # of a swept axis
    contraction_tile: int = 288  # … where register tiles run over it: 2, 3, 6 vectors
    reduced_tile: int = 144  # of an axis only summed over: what a register adds up in one go
    blocks: BlockSizes = BlockSizes()


def target_for(vector_bytes: int, threads: int, tiling: str = "") -> Target:
    """AVX-512 and SVE-like machines have 32 vector registers, the others 16."""
    target = Target(
        vector_bytes=vector_bytes,
        accumulators=24 if vector_bytes >= 64 else 12,
        threads=threads,
    )
    return replace(target, **TILINGS[tiling])


def block_target(tiling: str = "") -> Target:
    """Of a GPU: what the planner asks of a CPU has no say in blocks."""
    blocks = replace(BlockSizes(), **BLOCK_TILINGS[tiling])
    return replace(target_for(16, 1), blocks=blocks)
