"""Saves the states of the random generators, so that a recomputed section draws the same numbers.

In: the values of its operands. Out: `Generators`: those of the CPU and of the operands' GPUs.

    saved = Generators.of(values)          with saved.restored(values): ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Generators:
    """Saved generator states; in a dry run only their size."""

    cpu: torch.Tensor
    gpus: dict[int, torch.Tensor]

    @staticmethod
    def of(values: Sequence[Any]) -> Generators:
        """Save the current states."""
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        state = torch.get_rng_state()
        if any(x.is_meta for x in tensors):
            return Generators(torch.empty_like(state, device="meta"), {})
        gpus = {x.get_device() for x in tensors if x.is_cuda}
        return Generators(state, {k: torch.cuda.get_rng_state(k) for k in sorted(gpus)})

    def set(self) -> None:
        """Restore the states."""
        if self.cpu.is_meta:
            return
        torch.set_rng_state(self.cpu)
        for device, state in self.gpus.items():
            torch.cuda.set_rng_state(state, device)

    @contextlib.contextmanager
    def restored(self, values: Sequence[Any]) -> Generator[None]:
        """Return a context in which the generators have the saved states. `values`: on the same
        devices."""
        now = Generators.of(values)
        self.set()
        try:
            yield
        finally:
            now.set()
