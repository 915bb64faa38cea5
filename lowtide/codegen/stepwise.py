"""What runs a program step by step has in common: room for its tensors, and how slots move.

In:  one step compiled, where the tensors lie that it reads, sizes and numbers.
Out: a launch of each kernel; pointers and sizes that differ from step to step are `Moving`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from lowtide.runtime.steps import Launch, Slot
from lowtide.texpr.expr import Def
from lowtide.texpr.sizes import evaluate
from lowtide.tile.ir import Kernel


class Step(Protocol):
    """What is asked of the executable of a step."""

    scalars: tuple[str, ...]
    plans: list[Kernel]
    shaped: dict[str, Def]

    def device_of(self, tensors: Sequence[Tensor]) -> torch.device: ...
    def empty(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor: ...
    def launches(self, run: StepRun) -> list[Launch]: ...


class Room:
    """The tensors of one run of steps, kept until it is over: those that it reads, and what it
    makes, on the same device."""

    def __init__(self, executable: Step, given: Iterable[Tensor]) -> None:
        self.executable = executable
        self.tensors = list(given)
        self.device = executable.device_of(self.tensors)

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor that the steps write."""
        made = self.executable.empty(shape, dtype, self.device)
        self.tensors.append(made)
        return made


class StepRun(ABC):
    """One run of the kernels of all steps. `sizes`: as they are at the first step that runs;
    `level`: how many loops are around the one whose steps these are."""

    def __init__(
        self,
        step: Step,
        room: Room,
        sizes: Mapping[str, int],
        numbers: Sequence[float],
        level: int = 0,
    ) -> None:
        self.step = step
        self.room = room
        self.level = level
        self.sizes = dict(sizes)
        self.numbers = dict(zip(step.scalars, numbers, strict=True))

    def temporaries(self, made: Container[str]) -> dict[str, Tensor]:
        """Room for what kernels pass on within a step; `made`: what has its place already."""
        outputs = (name for plan in self.step.plans for name in plan.outputs)
        return {n: self.tensor(n) for n in outputs if n not in made}

    def tensor(self, name: str) -> Tensor:
        """A tensor for one step's value."""
        d = self.step.shaped[name]
        shape = tuple(evaluate(size, self.sizes) for size in d.shape)
        return self.room.empty(shape, d.dtype.torch)

    def launches(self) -> list[Launch]:
        """The kernels of a step, in order."""
        return self.step.launches(self)

    @abstractmethod
    def pointer(self, name: str) -> Slot:
        """Where a tensor of the step lies."""

    @abstractmethod
    def size(self, name: str) -> Slot:
        """The value of a size symbol."""
