"""Chooses the faster of two implementations, measured once per class of sizes.

In: two callables that write the same result; the second is PyTorch's. Out: one of them runs. Sizes
with equal numbers of bits are a class.

    [64, 64] @ [64, 64]: both run, three times each; then [100, 100] @ [100, 100]: the faster runs

The two differ in bits, and measurements vary. So under `torch.use_deterministic_algorithms(True)`
nothing is measured, and PyTorch's implementation runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

ROUNDS = 3


class Choice:
    """`names`: of the two implementations, for reports. `settle`: waits until all work on a device
    is done, since a GPU works asynchronously; returns False if it must not wait now."""

    __slots__ = ("_faster", "_settle", "names")

    def __init__(self, names: tuple[str, str], settle: Callable[[torch.device], bool]) -> None:
        self.names = names
        self._settle = settle
        self._faster: dict[tuple[int, ...], int] = {}

    def run(
        self,
        sizes: tuple[int, ...],
        device: torch.device,
        first: Callable[[], object],
        second: Callable[[], object],
    ) -> None:
        """Run the faster implementation. For a new class of sizes, run both in turn, a few times.
        Run the second one in deterministic mode."""
        if torch.are_deterministic_algorithms_enabled():
            second()
            return
        key = tuple(n.bit_length() for n in sizes)
        found = self._faster.get(key)
        if found is None and not self._settle(device):
            second()
        elif found is None:
            self._faster[key] = _measured(first, second, lambda: self._settle(device))
        else:
            (first, second)[found]()

    def measured(self) -> dict[tuple[int, ...], str]:
        """Return the name of the faster implementation by class of sizes."""
        return {key: self.names[k] for key, k in self._faster.items()}


def _measured(
    first: Callable[[], object], second: Callable[[], object], settle: Callable[[], object]
) -> int:
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for k, way in enumerate((first, second)):
            settle()
            start = time.perf_counter_ns()
            way()
            settle()
            best[k] = min(best[k], time.perf_counter_ns() - start)
    return 0 if best[0] <= best[1] else 1
