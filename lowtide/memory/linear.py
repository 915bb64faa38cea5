"""`F.linear` as PyTorch runs it where no mode is entered.

Under a mode it adds the bias out of place. In: a call, on meta tensors. Out: its result, by the ops
that a run has.

    linear(x, w, b)     x dense    ──►  addmm
                        else       ──►  matmul, then add_
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

from lowtide.memory import casts

Tensor = torch.Tensor
_LINEAR: Final = torch.ops.aten.linear.default


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See the module's text."""
    if bias is None or input.dim() < 3 or input.is_contiguous():
        return F.linear(input, weight, bias)
    with casts.within(_LINEAR, (input, weight, bias), {}) as ((input, weight, added), _):
        return torch.matmul(input, weight.t()).add_(added)
