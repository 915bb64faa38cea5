"""What runs a program step by step has in common: tensors of the steps, and how they move.

In:  one step compiled, the tensors that it reads, sizes and numbers.
Out: for each tensor and size of the step what it is, or how it differs from step to step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lowtide.runtime.steps import Moving
from lowtide.texpr.sizes import evaluate

if TYPE_CHECKING:  # which imports this module
    from lowtide.codegen.executable import Executable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """`first` at the first step that runs, `stack[(t + shift) % len(stack)]` at any other t."""

    stack: Tensor
    first: Tensor
    shift: int = 0


class StepRun(ABC):
    """One run of all steps. All its tensors are kept until it is over. `sizes`: as they are at the
    first step that runs."""

    def __init__(
        self,
        step: Executable,
        values: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        numbers: Sequence[float],
    ) -> None:
        self.step = step
        self.values = dict(values)
        self.sizes = dict(sizes)
        self.numbers = dict(zip(step.scalars, numbers, strict=True))

    def add_temporaries(self, made: Mapping[str, Tensor]) -> None:
        """Room for what kernels pass on within a step; `made`: what has its place already."""
        for plan in self.step.plans:
            for name in plan.outputs:
                if name not in made:
                    self.values[name] = self.tensor(name)

    def tensor(self, name: str, *front: int) -> Tensor:
        """A tensor for one step's value, with further dims in front."""
        d = self.step.shaped[name]
        shape = (*front, *(evaluate(size, self.sizes) for size in d.shape))
        return self.step.empty(shape, d.dtype.torch, self.values)

    @abstractmethod
    def place(self, name: str) -> Tensor | Row:
        """Where a tensor of the step lies."""

    @abstractmethod
    def size(self, name: str) -> int | Moving:
        """The value of a size symbol."""
