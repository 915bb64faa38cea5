"""A case, compiled and measured; `python -m tests.memory.calls NAME plain|grad`: in a new process.

What hundreds of tests have left in a heap has holes: what is allocated there later takes pages at
both sides of them, so that more becomes resident than is allocated.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.memory.cases import CASES, Case
from tests.quickly import compile_quickly

AGREE_BYTES = 1 << 18


def tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for v in value for x in tensors(v)] if isinstance(value, list | tuple) else []


class Call:
    """A case, compiled: `predicted` and `run` are about the same call."""

    def __init__(self, case: Case, grad: bool) -> None:
        torch.manual_seed(0)
        self.grad = grad
        self.compiled: Any = lt.script(case.make())
        self.args = case.inputs()
        self.leaves = [x for x in tensors(list(self.args)) if x.is_floating_point()]
        for x in self.leaves:
            x.requires_grad_(grad)
        if isinstance(self.compiled, torch.nn.Module):
            self.leaves += list(self.compiled.parameters())

    def predicted(self) -> Any:
        with torch.set_grad_enabled(self.grad):
            return self.compiled.memory(*self.args)

    def run(self) -> object:
        with torch.set_grad_enabled(self.grad):
            result = self.compiled(*self.args)
            carrying = [x for x in tensors(result) if x.requires_grad]
            if carrying:
                torch.autograd.backward(carrying, [torch.ones_like(x) for x in carrying])
        return result

    def measured(self) -> int:
        """The least of two that agree, or of three: each run allocates the same, and what other
        tests have left in the heap can only add to what becomes resident."""
        self.run()
        found: list[int] = []
        while len(found) < 2 or (len(found) < 3 and max(found) - min(found) > AGREE_BYTES):
            for x in self.leaves:
                x.grad = None
            found.append(measure_peak(self.run, release=lt.empty_cache)[0].peak_bytes)
        return min(found)


def measured_alone(case: Case, grad: bool) -> int:
    """What a new process measures."""
    command = [sys.executable, "-m", "tests.memory.calls", case.name, "grad" if grad else "plain"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    import tests.memory.conftest  # noqa: F401  (what is freed is unmapped at once)

    compile_quickly()
    _, name, kind = sys.argv
    chosen = next(c for c in CASES if c.name == name)
    print(Call(chosen, kind == "grad").measured())
