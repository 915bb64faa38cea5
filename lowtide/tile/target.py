"""What the planner knows of a machine: register width, registers, threads. Plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`vector_bytes` per register; `accumulators`: registers that a nest may hold results in."""

    vector_bytes: int
    accumulators: int
    threads: int


def target_for(vector_bytes: int, threads: int) -> Target:
    """AVX-512 and SVE-like machines have 32 vector registers, the others 16."""
    return Target(
        vector_bytes=vector_bytes,
        accumulators=24 if vector_bytes >= 64 else 12,
        threads=threads,
    )
