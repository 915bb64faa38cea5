"""One table of the machines for which a program can be compiled, and how they differ.

cpu           C                      groups may keep values from tile to tile
cuda:0, …     Triton                 programs of blocks are independent of each other
interpreter   Triton's interpreter   the same kernels on CPU tensors, to check their values
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lowtide.codegen.c.kernels import HostKernels
from lowtide.codegen.kernels import Kernels
from lowtide.compiler import fused
from lowtide.tile.group import Fusion
from lowtide.tile.summation import order_in_blocks, two_orders
from lowtide.tile.target import BLOCK_TILINGS, TILINGS

CPU, CUDA, INTERPRETER = "cpu", "cuda", "interpreter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Which kernels are made: for a machine, in tiles by a row of its table (`tile/target`)."""

    machine: str = CPU
    tiling: str = ""

    @property
    def has_blocks(self) -> bool:
        """Whether kernels are of blocks that are independent of each other, as Triton's are."""
        return self.machine != CPU

    @property
    def tilings(self) -> tuple[str, ...]:
        """The tilings that there are for the machine; first that of the cost model."""
        return tuple(TILINGS if self.machine == CPU else BLOCK_TILINGS)


def kernels_of(
    fusion: Fusion,
    symbols: Sequence[str],
    scalars: Sequence[str],
    hints: Mapping[str, int],
    kind: Kind,
    moving: Iterable[str] = (),
    updated: Mapping[str, str] | None = None,
) -> Kernels:
    """A fused Program as kernels; see `Kernels`. A sum that several of them would add up in
    different orders is stored."""
    if kind.machine == CPU:
        made = HostKernels(fusion, symbols, scalars, hints, moving, updated, kind.tiling)
        if differing := two_orders(made.plans, fusion.groups):
            fusion = fused(
                fusion.program, hints, blocks=False, is_step=bool(moving), once=differing
            )
            made = HostKernels(fusion, symbols, scalars, hints, moving, updated, kind.tiling)
        return made
    from lowtide.codegen.triton.kernels import BlockKernels  # few programs need it

    made = BlockKernels(fusion, symbols, scalars, hints, kind.machine, moving, kind.tiling)
    if differing := two_orders(made.plans, fusion.groups, order_in_blocks):
        fusion = fused(fusion.program, hints, blocks=True, once=differing)
        made = BlockKernels(fusion, symbols, scalars, hints, kind.machine, moving, kind.tiling)
    return made
