"""Records for chunks: the cut of an operand, the points of a chunk, the form of a result.

In: positions along an axis. Out: parts of tensors, and stand-ins for whole ones.

    x: [12, 5], Cut(dim=0)        Span(4, 4, 12)       the chunk reads x[4:8]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

Tensor = torch.Tensor
ADDED: Final = -1  # in the place of a dim: the parts of a result are added up, not joined


@dataclass(frozen=True, slots=True)
class Cut:
    """Element `first + step * k` along `dim` belongs to point k of the axis; step is 1 or -1."""

    dim: int
    first: int = 0
    step: int = 1

    def of(self, x: Tensor, start: int, size: int) -> Tensor:
        """Return the elements of points [start, start + size), as a slice in memory order."""
        low = self.first + start if self.step > 0 else self.first - start - size + 1
        return x.narrow(self.dim, low, size)

    def parts_all(self, x: Tensor, extent: int) -> bool:
        """Return whether each element of x belongs to one point of the axis."""
        return self.step > 0 and self.first == 0 and x.shape[self.dim] == extent


@dataclass(frozen=True, slots=True)
class Span:
    """Points [start, start + size) of an axis of `extent` points. `is_kept`: not recomputed, see
    `chunks`. `unseen`: the number of equal chunks that a dry run leaves out."""

    start: int
    size: int
    extent: int
    is_kept: bool = False
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class Form:
    """A tensor's sizes, dtype and layout, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def stand_in(self, device: torch.device) -> Tensor:
        """Return a tensor of this form without memory: an expanded zero."""
        return torch.zeros((), dtype=self.dtype, device=device).expand(self.shape)


def form_of(x: Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(tuple(x.shape), x.dtype)


@dataclass(frozen=True, slots=True)
class Plain:
    """A value that is not a tensor, such as an int: chunks pass it on as it is."""

    value: Any


def order_of(x: Tensor) -> tuple[int, ...]:
    """Return the dims of x in memory order, outermost first."""
    return tuple(sorted(range(x.dim()), key=lambda d: (-x.stride(d), d)))
