"""Where an operand is cut, which points of the axis a chunk has, what form a result has.

x: [12, 5], Cut(dim=0)        Span(4, 4, 12)       the chunk sees x[4:8]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """Element `first + step * k` along `dim` belongs to point k of the axis; step is 1 or -1."""

    dim: int
    first: int = 0
    step: int = 1

    def of(self, x: Tensor, start: int, size: int) -> Tensor:
        """The elements of points [start, start + size), in the order of memory."""
        low = self.first + start if self.step > 0 else self.first - start - size + 1
        return x.narrow(self.dim, low, size)

    def parts_all(self, x: Tensor, extent: int) -> bool:
        """Does each element of x belong to one point of the axis?"""
        return self.step > 0 and self.first == 0 and x.shape[self.dim] == extent


@dataclass(frozen=True, slots=True)
class Span:
    """Points [start, start + size) of an axis of `extent` points; `is_kept`: see the module;
    `unseen`: chunks like this one that a rehearsal leaves out."""

    start: int
    size: int
    extent: int
    is_kept: bool = False
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """What a tensor is, but for its values and where it lies."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def stand_in(self, device: torch.device) -> Tensor:
        """A tensor of this form without memory: zeros, each at the same place."""
        return torch.zeros((), dtype=self.dtype, device=device).expand(self.shape)


def form_of(x: Tensor) -> Form:
    """That of a tensor."""
    return Form(tuple(x.shape), x.dtype)


@dataclass(frozen=True, slots=True)
class Plain:
    """A value that is no tensor."""

    value: Any


def order_of(x: Tensor) -> tuple[int, ...]:
    """The dims of x as they lie in memory, the outermost first."""
    return tuple(sorted(range(x.dim()), key=lambda d: (-x.stride(d), d)))
