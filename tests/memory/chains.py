"""Random chains of kernels and PyTorch's ops, for results that are written over operands.

In: a seed. Out: the source of a function of two tensors of one shape, whose values are used once or
twice, viewed, handed on as they are, given back, or neither. Of what PyTorch runs, `digamma` keeps
what it is given for its backward pass, a convolution does not keep what it gives; `resolve_conj`
and `atleast_1d` hand on the same tensor, and `swapdims` a view of it.
"""

from __future__ import annotations

import random

SHAPE = (3, 4, 45)  # no whole vectors
HEAD = """\
import torch
import torch.nn.functional as F
from torch import Tensor
from typing import Tuple

"""
POINT = (
    *("torch.tanh({a} * 1.5)", "torch.tanh({a}) * {b} + 0.5", "torch.relu({a})", "{a} - {b}"),
    *("torch.softmax({a}, -1)", "{a} - {a}.mean(-1, keepdim=True)", "{a} * 0.5 + 1", "{a} + {b}"),
    *("{a} + torch.roll({a}, 1, -1)", "torch.tanh({a}.flip(-1)) * {b}", "{a} + {b}.mean(0)"),
    *("{a} - 0.01 * {a}.sum((1, 2), True)", "{a}.cumsum(-1) * 0.01 + {a}"),
    *("torch.where({a} > 0, {a}, {b})", "F.layer_norm({a}, ({a}.shape[-1],))"),
    *("torch.sigmoid({a}) * {a}", "{a} - {b}[:, :1].mean()"),
)  # fmt: skip
BARRIER = (
    *("F.conv1d({a}, w, padding=1)",) * 4,
    *("torch.digamma({a} * {a} + 2)", "torch.resolve_conj({a})"),
    *("torch.atleast_1d({a})", "torch.swapdims({a}, 1, 1)"),
)
VIEW = ("{a}.view(3, 4, -1)", "{a}.reshape(3, -1, {a}.shape[2])", "{a}.contiguous()", "{a}[:]")
CHANGE = ("{a}.mul_(1.1)", "{a}.add_(0.1)")


def source(seed: int, *, changes: bool) -> str:
    """The text of a module with `f(x, y, w)`; `changes`: may it write into what it has made?"""
    rng = random.Random(seed)
    names, lines = ["x", "y"], []
    made: set[str] = set()
    for k in range(rng.randint(6, 11)):
        a = names[-1] if rng.random() < 0.7 else rng.choice(names)
        b = rng.choice(names)
        if changes and a in made and rng.random() < 0.15:
            lines.append(rng.choice(CHANGE).format(a=a))
        roll = rng.random()
        table = POINT if roll < 0.55 else BARRIER if roll < 0.92 else VIEW
        text = rng.choice(table).format(a=a, b=b)
        names.append(f"v{k}")
        if table is POINT or text.startswith("F.conv"):
            made.add(names[-1])
        lines.append(f"{names[-1]} = {text}")
    given = [names[-1]]
    while rng.random() < 0.4:
        given.append(rng.choice(names[2:]))
    results = ", ".join(given) + ","
    types = ", ".join(["Tensor"] * len(given))
    head = f"def f(x: Tensor, y: Tensor, w: Tensor) -> Tuple[{types}]:"
    return "\n    ".join([HEAD + head, *lines, f"return ({results})"]) + "\n"
