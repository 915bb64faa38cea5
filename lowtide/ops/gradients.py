"""Ops whose gradient PyTorch defines in a way that does not follow from their formula.

In: an op's name and which of its operands carry gradients. Out: why PyTorch must run it, or "".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# op → operands that must not carry gradients; () stands for all
LEFT: Final[dict[str, tuple[int, ...]]] = {
    "binary_cross_entropy": (),
    "cross_entropy": (2,),
    "nll_loss": (2,),
    "kl_div": (1,),
    "xlogy": (),
    "hypot": (),
    "floor_divide": (),
}


def left_to_torch(name: str, carrying: Sequence[bool]) -> str:
    """Why PyTorch runs an op of which these operands carry gradients, "" if it need not."""
    positions = LEFT.get(name)
    if positions is None:
        return ""
    if any(carrying) if not positions else any(carrying[k] for k in positions if k < len(carrying)):
        return f"the gradient of {name} is PyTorch's own"
    return ""
