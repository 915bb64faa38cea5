"""The machines for which a program can be compiled, and the choice of the kernels' language.

cpu           C                      a thread may keep values from tile to tile
cuda:0, …     Triton                 a program runs one tile, independently of the others
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
    """A machine, and a tiling: a row of the machine's table in `tile/target`."""

    machine: str = CPU
    tiling: str = ""

    @property
    def has_blocks(self) -> bool:
        """Return whether kernels are Triton programs on blocks."""
        return self.machine != CPU

    @property
    def tilings(self) -> tuple[str, ...]:
        """The machine's tilings; the first is that of the cost model."""
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
    """Return the kernels of a fused Program; for `moving` and `updated` see `Kernels`. A sum that
    two kernels would compute in different orders is stored, so that its bits are the same."""
    if kind.machine == CPU:
        made = HostKernels(fusion, symbols, scalars, hints, moving, updated, kind.tiling)
        if differing := two_orders(made.plans, fusion.groups):
            fusion = fused(
                fusion.program, hints, blocks=False, is_step=bool(moving), once=differing
            )
            made = HostKernels(fusion, symbols, scalars, hints, moving, updated, kind.tiling)
        return made
    from lowtide.codegen.triton.kernels import BlockKernels  # only GPUs need this import

    made = BlockKernels(fusion, symbols, scalars, hints, kind.machine, moving, kind.tiling)
    if differing := two_orders(made.plans, fusion.groups, order_in_blocks):
        fusion = fused(fusion.program, hints, blocks=True, once=differing)
        made = BlockKernels(fusion, symbols, scalars, hints, kind.machine, moving, kind.tiling)
    return made
