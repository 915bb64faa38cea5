"""A cotangent that goes when the first op of the backward pass inside has read it.

In: what a section gave when it ran again, the section's cotangents, which of these nobody else has.
Out: other results and cotangents for the gradients inside, which come to the same.

    y = f(x), grad(y, x, g)          g stays while the gradients of all of f are computed
    y' = handed(y), grad(y', x, 0)   the node of y' gives g, which only the engine has from then on

What holds `g` meanwhile, the caller's tuple and the engine's, is left with an empty tensor.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch

from lowtide.memory.scopes.hidden import hide_with_callees
from lowtide.pipeline.budget.cut import form_of

Tensor = torch.Tensor


def hand_over(
    results: Sequence[Any], cotangents: Sequence[Tensor | None], free: Container[int]
) -> tuple[list[Any], list[Tensor | None]]:
    """See the module's text. Call it with gradients recorded."""
    ends, given = list(results), list(cotangents)
    for k, (r, g) in enumerate(zip(results, cotangents, strict=True)):
        if k in free and g is not None and isinstance(r, Tensor) and r.requires_grad:
            held = [g.data]
            g.data = g.data.new_empty(0)
            ends[k] = _Handed.apply(held, r)
            given[k] = _stand_in(r)
    return ends, given


def _stand_in(x: Tensor) -> Tensor:
    return form_of(x).stand_in(x.device)


class _Handed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, held: list[Tensor], result: Tensor) -> Tensor:
        ctx.held = held
        return _stand_in(result)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[None, Tensor]:
        return None, ctx.held.pop()


hide_with_callees(_Handed.backward)
