"""Ops whose gradient in PyTorch does not follow from their formula.

In: an op's name, its operands, and which of them carry gradients. Out: why PyTorch must run the op.

    cdist(x, y, p=3.0), x carries        "the gradient of cdist is PyTorch's own"
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

# op → operands that must not carry gradients; () stands for all
LEFT: Final[dict[str, tuple[int, ...]]] = {
    "binary_cross_entropy": (2,),
    "cross_entropy": (2,),
    "nll_loss": (2,),
    "batch_norm": (1, 2),
    "instance_norm": (1, 2),
    "heaviside": (),
    "floor_divide": (),
}


def _below_one(order: object) -> bool:
    """Return whether the order of a norm is in [0, 1). For 0 the norm counts what is not 0, and its
    result requires a gradient all the same. Above 0 the slope at a 0 is infinite."""
    return isinstance(order, int | float) and 0 <= order < 1


# op → whether operands of these values are PyTorch's
LEFT_IF: Final[dict[str, Callable[[Sequence[Any]], bool]]] = {
    "cdist": lambda x: x[2] != 2,
    "norm": lambda x: _below_one(x[1]),
    "linalg.norm": lambda x: _below_one(x[1]),
    "linalg.vector_norm": lambda x: _below_one(x[1]),
    "pairwise_distance": lambda x: _below_one(x[2]),
    "normalize": lambda x: _below_one(x[1]),
}


def left_to_torch(name: str, operands: Sequence[Any], carrying: Sequence[bool]) -> str:
    """Why PyTorch runs an op of which these operands carry gradients, "" if it need not."""
    positions = LEFT.get(name)
    left = name in LEFT_IF and LEFT_IF[name](operands)
    if positions is not None:
        left = not positions or any(carrying[k] for k in positions if k < len(carrying))
    return f"the gradient of {name} is PyTorch's own" if left and any(carrying) else ""
