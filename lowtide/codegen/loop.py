"""The kernels of one step, launched for all steps of a loop.

In:  a `Loop`, its step compiled, the tensors that it reads, sizes and numbers.
Out: the values of the steps: a stack of all of them, or of two slots that take turns.

    h'[t] = h[t - 1]      the slot of h' is h0 at the first step, later the row of h before
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lowtide.codegen.executable import Executable
from lowtide.codegen.stepwise import Row, StepRun
from lowtide.runtime.steps import Moving
from lowtide.texpr.index import Index, as_index
from lowtide.texpr.partition import Loop
from lowtide.texpr.sizes import evaluate

SLOTS = 2  # the step before, and this one


def slots(loop: Loop, name: str) -> Index:
    """Of how many steps a value is kept."""
    return loop.trips if name in loop.kept else as_index(SLOTS)


def run_loop(
    loop: Loop,
    step: Executable,
    values: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    numbers: Sequence[float],
) -> dict[str, Tensor]:
    """Runs all steps: what later parts read of them. `values`: what it reads, by name."""
    run = _Run(loop, step, values, sizes, numbers)
    step.run_steps(run, run.trips, loop.reverse)
    found = {n: stack for n, stack in run.stacks.items() if n in loop.kept} | run.blocks
    last = 0 if loop.reverse else run.trips - 1
    for name, end in loop.ends.items():
        stack = run.stacks[name]
        found[end] = stack[last % len(stack)]
    return found


class _Run(StepRun):
    """The slots of one run."""

    def __init__(
        self,
        loop: Loop,
        step: Executable,
        values: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        numbers: Sequence[float],
    ) -> None:
        self.loop = loop
        self.trips = evaluate(loop.trips, sizes)
        self.first = self.trips - 1 if loop.reverse else 0
        super().__init__(step, values, {**sizes, loop.step: self.first}, numbers)
        self.blocks = {n: self._stack(p[0], len(p)) for n, p in loop.blocks.items()}
        self.stacks: dict[str, Tensor] = {}
        for name, parts in loop.blocks.items():
            self.stacks.update(zip(parts, self.blocks[name], strict=True))
        for name in loop.program.outputs:
            if name not in self.stacks:
                self.stacks[name] = self._stack(name)
        self.add_temporaries(self.stacks)

    def _stack(self, name: str, *parts: int) -> Tensor:
        return self.tensor(name, *parts, evaluate(slots(self.loop, name), self.sizes))

    def place(self, name: str) -> Tensor | Row:
        """See the base class."""
        if name in self.loop.carried:
            source, init = self.loop.carried[name]
            self.values[init] = self.values[init].contiguous()
            behind = 1 if self.loop.reverse else -1
            return Row(stack=self.stacks[source], first=self.values[init], shift=behind)
        if name in self.stacks:
            stack = self.stacks[name]
            return Row(stack=stack, first=stack[self.first % len(stack)])
        return self.values[name]

    def size(self, name: str) -> int | Moving:
        """See the base class."""
        if name != self.loop.step:
            return self.sizes[name]
        return Moving(first=self.first, base=0, stride=1, shift=0, rows=max(self.trips, 1))
