"""An `Executable` of blocks: Triton functions, on a GPU or in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lowtide.codegen.executable import Executable, Fusion
from lowtide.codegen.stepwise import StepRun
from lowtide.codegen.triton.driver import driver_text
from lowtide.codegen.triton.kernel import BlockText, block_text
from lowtide.codegen.triton.module import module_text
from lowtide.codegen.triton.steps import run_blocks
from lowtide.runtime import blocks
from lowtide.tile.blocks import BlockArrangement
from lowtide.tile.group import Group
from lowtide.tile.ir import Kernel
from lowtide.tile.plan import plan
from lowtide.tile.target import target_for

_TARGET = target_for(16, 1)  # what the planner asks of a CPU has no say in blocks


class BlockExecutable(Executable):
    """See `Executable`. `machine`: "cuda", or "interpreter" for tensors of the CPU."""

    language = "Triton"

    def __init__(
        self,
        fusion: Fusion,
        symbols: Sequence[str],
        scalars: Sequence[str],
        hints: Mapping[str, int],
        machine: str,
        moving: Iterable[str] = (),
    ) -> None:
        super().__init__(fusion, symbols, scalars, hints, moving)
        self.interpreted = machine == "interpreter"
        self._texts = [block_text(p, self.memory_dtypes, self.strides) for p in self.plans]
        self.source = module_text(self.texts)
        self.driver = driver_text(
            self.normal,
            self.shaped,
            list(self.program.inputs),
            self.symbols,
            self.scalars,
            self.texts,
            self.plans,
        )
        self._kernels: dict[str, blocks.BlockKernel] = {}

    @property
    def texts(self) -> list[BlockText]:
        """See the base class."""
        return self._texts

    def threads(self) -> int:
        """See the base class."""
        return 1

    def _plan(self, g: Group, name: str, hints: Mapping[str, int]) -> Kernel:
        stores = [n for n in g.defs if n in self.stored]
        n = self.normal
        arrangement = BlockArrangement(
            g, stores, n.inputs, n.defs, hints, _TARGET, name, bool(self.moving)
        )
        return plan(arrangement, self.moving)

    def bound(self) -> dict[str, blocks.BlockKernel]:
        """See the base class."""
        with self._lock:
            if not self._kernels:
                functions = blocks.load(self.source, self.interpreted)
                self._kernels = {
                    t.name: blocks.BlockKernel(functions[t.name], t.warps, t.wide, self.interpreted)
                    for t in self.texts
                }
        return self._kernels

    def empty(
        self, shape: tuple[int, ...], dtype: torch.dtype, beside: Mapping[str, Tensor]
    ) -> Tensor:
        """See the base class."""
        device = next(iter(beside.values())).device if beside else None
        return torch.empty(shape, dtype=dtype, device=device)

    def run_steps(self, run: StepRun, trips: int, reverse: bool) -> None:
        """See the base class."""
        run_blocks(run, self.bound(), self.texts, trips, reverse)

    def scope(self) -> dict[str, Any]:
        """See the base class."""
        scope: dict[str, Any] = {"empty": torch.empty, "torch": torch, "power": blocks.power}
        return scope | {f"launch_{name}": kernel for name, kernel in self.bound().items()}
