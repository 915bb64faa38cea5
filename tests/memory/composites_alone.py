"""What ops of many parts take on the heap as it comes, after eager's own calls.

`python -m tests.memory.composites_alone` prints, as JSON, `most` bytes that a call may take and
what was measured: attention without a budget, with gradients; losses without a budget; attention
within the least budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.quickly import compile_quickly


def attended(x: Tensor, w: Tensor, b: Tensor, o: Tensor, ob: Tensor) -> Any:
    return F.multi_head_attention_forward(
        x, x, x, 64, 4, w, b, None, None, False, 0.0, o, ob, need_weights=True
    )


def losses(x: Tensor, y: Tensor, z: Tensor) -> Any:
    near = F.triplet_margin_loss(x.tanh(), y, z) + F.margin_ranking_loss(x, y, z.sign())
    return near, F.gaussian_nll_loss(x, y, z.exp()), F.cosine_similarity(x, y).mean()


def inputs() -> list[Tensor]:
    shapes = (250, 8, 64), (192, 64), (192,), (64, 64), (64,)
    return [torch.rand(shape) - 0.5 for shape in shapes]


def measured(call: Callable[[], object], args: Sequence[Tensor]) -> list[int]:
    found: list[int] = []
    for _ in range(2):
        for x in args:
            x.grad = None
        found.append(measure_peak(call, release=lt.empty_cache)[0].peak_bytes)
    for x in args:
        x.grad = None
    return found


def stepped(f: Any, args: Sequence[Tensor]) -> Callable[[], None]:
    def step() -> None:
        results = [x for x in f(*args) if x.requires_grad]
        torch.autograd.backward(results, [torch.ones_like(x) for x in results])

    return step


def free(f: Any, args: Sequence[Tensor]) -> dict[str, Any]:
    """Without a budget: a step, if gradients are wanted."""
    compiled: Any = lt.script(f)
    for call in (f, f, compiled):
        stepped(call, args)()
        for x in args:
            x.grad = None
    found = measured(stepped(compiled, args), args)
    return {"most": compiled.memory(*args).peak_bytes, "measured": found}


def limited() -> dict[str, Any]:
    """A call without gradients."""
    args = inputs()
    most = 1
    try:
        lt.script(attended, budget=1)(*args)
    except lt.BudgetError as refused:
        most = refused.least_bytes
    compiled: Any = lt.script(attended, budget=most)
    compiled(*args)
    return {"most": most, "measured": measured(lambda: compiled(*args), args)}


if __name__ == "__main__":
    compile_quickly()
    torch.manual_seed(0)
    wanted = [x.requires_grad_() for x in inputs()]
    rows = [torch.randn(4000, 700) for _ in range(3)]
    print(json.dumps([free(attended, wanted), free(losses, rows), limited()]))
