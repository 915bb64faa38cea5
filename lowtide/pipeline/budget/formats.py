"""The memory formats of a section's chunks: images turned to channels last, whatever the whole is.

In: parts of operands and of cotangents. Out: the same, lying as the chunk reads them.

    x: [8, 16, 128, 128], contiguous      parts of x, [2, 16, 128, 128], channels last
    y: the section's result               lies as without any section: `orders`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

Tensor = torch.Tensor
_LAST: Final = {4: torch.channels_last, 5: torch.channels_last_3d}


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """Which operands are turned, and the cotangents of which results. `orders`: for each result the
    dims of the whole in the order of memory, the outermost first."""

    operands: frozenset[int]
    results: frozenset[int]
    orders: tuple[tuple[int, ...], ...]


def can_turn(x: Tensor) -> bool:
    """Contiguous images that would lie otherwise then."""
    last = _LAST.get(x.dim())
    return last is not None and x.is_contiguous() and not x.is_contiguous(memory_format=last)


def turned(x: Tensor) -> Tensor:
    """A copy with channels last."""
    return x.contiguous(memory_format=_LAST[x.dim()])


def turned_at(places: frozenset[int], values: Sequence[Any]) -> list[Any]:
    """The values, those at these places turned."""
    return [turned(v) if k in places and isinstance(v, Tensor) else v for k, v in enumerate(values)]


def order_of(x: Tensor) -> tuple[int, ...]:
    """The dims of x as they lie in memory, the outermost first."""
    return tuple(sorted(range(x.dim()), key=lambda d: (-x.stride(d), d)))


def lying_as(x: Tensor, other: Tensor) -> Tensor:
    """A copy with the strides of another tensor of its shape, itself if it has them."""
    return x if x.stride() == other.stride() else torch.empty_like(other).copy_(x)
