"""What runs a program step by step has in common: tensors of the steps, work memory, launches.

In:  one step compiled, the tensors that it reads, sizes and numbers.
Out: a launch of each kernel; pointers and sizes that differ from step to step are `Moving`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Mapping, Sequence

import torch
from torch import Tensor

from lowtide.codegen.c.kernel import BEGUN
from lowtide.codegen.executable import Executable
from lowtide.runtime import arena, launch
from lowtide.runtime.steps import Launch, Moving, Slot
from lowtide.texpr.sizes import evaluate


class StepRun(ABC):
    """One run of all steps. All its tensors are kept until it is over. `sizes`: as they are at the
    first step that runs; `level`: how many loops are around the one whose steps these are."""

    def __init__(
        self,
        step: Executable,
        values: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        numbers: Sequence[float],
        level: int = 0,
    ) -> None:
        self.step = step
        self.level = level
        self.values = dict(values)
        self.sizes = dict(sizes)
        self.numbers = dict(zip(step.scalars, numbers, strict=True))
        self.threads = torch.get_num_threads()
        self.work = self._work()

    def _work(self) -> dict[str, arena.Scratch]:
        """Work memory by kernel: its own if it is to find there what an earlier step left."""
        bytes_of = {t.name: evaluate(t.thread_bytes, self.sizes) for t in self.step.texts}
        own = {p.name for p in self.step.plans if p.prologue}
        shared = arena.scratch(
            self.threads * max((bytes_of[n] for n in bytes_of.keys() - own), default=0)
        )
        return {
            n: arena.scratch(self.threads * bytes_of[n]) if n in own else shared for n in bytes_of
        }

    def add_temporaries(self, made: Container[str]) -> None:
        """Room for what kernels pass on within a step; `made`: what has its place already."""
        for plan in self.step.plans:
            for name in plan.outputs:
                if name not in made:
                    self.values[name] = self.tensor(name)

    def tensor(self, name: str, *front: int) -> Tensor:
        """A tensor for one step's value, with further dims in front."""
        d = self.step.shaped[name]
        shape = (*front, *(evaluate(size, self.sizes) for size in d.shape))
        return arena.empty(shape, d.dtype.torch)

    def launches(self) -> list[Launch]:
        """The kernels of a step, in order."""
        return [self._launch(name, kernel) for name, kernel in self.step.bound().items()]

    def _launch(self, name: str, kernel: launch.Kernel) -> Launch:
        text = next(t for t in self.step.texts if t.name == name)
        own = [
            *map(self.pointer, text.tensors),
            *map(self._size, text.sizes),
            *(self.numbers[n] for n in text.numbers),
        ]
        head = (launch.parallel_for_address(), self.threads, self.work[name].address)
        return Launch(function=kernel.function, layout=kernel.layout, slots=(*head, *own))

    def _size(self, name: str) -> Slot:
        if name == BEGUN:
            return Moving(first=0, base=1, stride=0, shift=0, rows=1, level=self.level)
        return self.size(name)

    @abstractmethod
    def pointer(self, name: str) -> Slot:
        """Where a tensor of the step lies."""

    @abstractmethod
    def size(self, name: str) -> Slot:
        """The value of a size symbol."""
