"""The planner's model of a CPU: register width, registers, threads, and sizes of tiles.

In: the name of a row of `TILINGS`. "" is the cost model's choice; the others are measured against
it with `tune=True` (`codegen/tuned`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lowtide.tile.gpu import USUAL, Gpu

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

# What the cost model may choose for each field of `BlockSizes`. The first is taken for a field that
# is nothing to a kernel.
BLOCK_CHOICES: Mapping[str, tuple[int, ...]] = {
    "points": (2048, 256, 512, 1024, 4096),
    "line": (1024, 64, 256),
    "rows": (64, 1, 4, 16),
    "pair_points": (4096, 1024, 2048),
    "pair_tile": (64, 32),
    "product_rows": (64, 16, 32, 128),
    "product_columns": (64, 16, 32, 128),
    "product_steps": (32, 16, 64),
    "warps": (4, 2, 8),
    "stages": (3, 2, 4),
}

# Where they are others, by name.
BLOCK_TILINGS: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "": {},
    "small blocks": {"points": (512, 256), "pair_points": (1024,), "pair_tile": (32,)},
    "large blocks": {"points": (8192,), "pair_points": (8192,), "pair_tile": (128,)},
    "small products": {"product_rows": (32,), "product_columns": (32,)},
    "large products": {"product_rows": (128,), "product_columns": (128,)},
    "long steps": {"product_steps": (64,)},
    "few warps": {"warps": (2, 4)},
    "many warps": {"warps": (8, 16)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """The sizes of the blocks that a program on a GPU holds; its warps, and how many steps of a
    sweep are loaded at once (`stages`)."""

    points: int  # of a value that is read from memory as it lies
    line: int  # … along one axis
    rows: int  # of an axis that a sum keeps
    pair_points: int  # of a value of pairs, whose parts are read once for many points
    pair_tile: int  # of each of its axes
    product_rows: int  # of a product of blocks …
    product_columns: int
    product_steps: int  # … and what it sums over at a time
    warps: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTarget:
    """A GPU, and what may be chosen for it."""

    gpu: Gpu = USUAL
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: BLOCK_CHOICES)


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
    blocks: BlockTarget = BlockTarget()


def target_for(vector_bytes: int, threads: int, tiling: str = "") -> Target:
    """AVX-512 and SVE-like machines have 32 vector registers, the others 16."""
    target = Target(
        vector_bytes=vector_bytes,
        accumulators=24 if vector_bytes >= 64 else 12,
        threads=threads,
    )
    return replace(target, **TILINGS[tiling])


def block_target(gpu: Gpu = USUAL, tiling: str = "") -> Target:
    """Return the target of a GPU. Facts about a CPU in it are not used for blocks."""
    choices = {**BLOCK_CHOICES, **BLOCK_TILINGS[tiling]}
    return replace(target_for(16, 1), blocks=BlockTarget(gpu=gpu, choices=choices))
