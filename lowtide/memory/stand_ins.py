"""Meta tensors that stand for tensors: of the same form, without memory.

like(x)         a leaf, or, if `x` is none and its gradient is asked for, what an op has made
from_leaf(x)    what an op has made of `x`, whose gradient is the leaf's
"""

from __future__ import annotations

from typing import Any, Final, cast

import torch

META: Final = torch.device("meta")


def like(x: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    """A meta tensor of the same form; no leaf if it requires grad and `x` is none."""
    made = torch.empty_strided(
        x.shape, x.stride(), dtype=x.dtype, device=META, requires_grad=requires_grad
    )
    return made if x.is_leaf or not requires_grad else from_leaf(made)


def from_leaf(leaf: torch.Tensor) -> torch.Tensor:
    """What an op has made of it, of the same form: it may be changed in place, and its gradient is
    the leaf's. No memory is touched."""
    with torch.enable_grad():
        return cast("torch.Tensor", _FromLeaf.apply(leaf))


class _FromLeaf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        return cotangents[0]
