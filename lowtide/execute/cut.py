"""Records for chunks: the cut of an operand, the points of a chunk, the form of a result, and the
attributes of the op.

In: positions along an axis. Out: parts of tensors, and stand-ins for whole ones.

    x: [12, 5], Cut(dim=0)        Span(4, 4, 12)       the chunk reads x[4:8]
"""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionAttrs:
    """The attributes of an op `section`, by their names in the IR."""

    chunks: int
    # By operand: how it is cut; None if each chunk needs the whole.
    cuts: Sequence[Cut | None]
    # By result: the dim along which the chunks' parts are joined, which may differ in length; None
    # if all chunks share the result; `ADDED` if their results are added up.
    joins: Sequence[int | None]
    # By result: the positions of operands that it may carry gradients of; None: of all.
    sources: Sequence[Sequence[int]] | None = None
    # By result: its dims in memory order, which a chunk of one point does not show; None:
    # ascending.
    orders: Sequence[Sequence[int] | None] | None = None

    # Positions of operands
    updated: Sequence[int] = ()  # only written, by the first run; neither saved nor recomputed
    counters: Sequence[int] = ()  # without gradients; each run writes them

    # The blocks
    recomputes_second: bool = False  # the second block is recomputed instead of the first
    overwrites: bool = False  # the block overwrites tensors that PyTorch saves in it
    carried: int | None = None  # number of values carried by a loop, see `loop_chunks`

    # What is saved instead of being recomputed
    # The last chunks, so many, save what their gradients read. The backward pass begins with them.
    kept: int = 0
    # So many values that the first block yields after the results are saved by the other chunks.
    # They are the last arguments of the last block (see `saved_products`).
    products: int = 0
    # The result that is a product itself. Its gradient does not read its value, so the last block
    # takes a stand-in for it.
    end: int | None = None
    # Forms of the results, and results that are not tensors, if no op reads the results' values:
    # then only the backward pass runs.
    unread: Sequence[Form | Plain] | None = None
