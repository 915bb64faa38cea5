"""Chooses the faster of two implementations, measured once per class of sizes.

In: two callables that write the same result. Out: which of them to run. Their bits differ, and
measurements vary. So nothing is measured under `torch.use_deterministic_algorithms(True)`, and
PyTorch's own implementation runs.

Sizes are of one class when they have the same number of bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

ROUNDS = 3


class Choice:
    """`names` of the two ways, for reports. `settle` waits until all that was begun on a device is
    done, since on a GPU a call only begins it; it gives False where waiting is not allowed now."""

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
        """Run the faster way, or both in turn, a few times, where that is not known yet; the
        second, which is PyTorch's own, where the user wants the same bits each time."""
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
        """What was found, by class of sizes."""
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
