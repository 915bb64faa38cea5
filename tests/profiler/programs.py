"""Programs whose allocations are known by construction, and where in this file they are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

from lowtide.tools.profiler.profile import Profile
from lowtide.tools.profiler.rows import Row

FLOAT_BYTES = 4


def line_of(function: Callable[..., object], text: str) -> str:
    """`file:line` of the one line of `function` that has `text`."""
    lines, first = inspect.getsourcelines(function)
    found = [first + i for i, line in enumerate(lines) if text in line]
    assert len(found) == 1, f"{text!r} is on {len(found)} lines"
    return f"{inspect.getsourcefile(function)}:{found[0]}"


def row_of(prof: Profile, op: str, source: str = "", phase: str = "") -> Row:
    """The one row of that operator (and line, and phase)."""
    found = [
        row
        for row in prof.rows()
        if row.op == op and source in ("", row.source) and phase in ("", row.phase)
    ]
    assert len(found) == 1, [(r.op, r.source, r.phase) for r in prof.rows()]
    return found[0]


def similarity(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # [S, D] → [D, D]
    """How many samples of each two dimensions lie closer than 1; builds S × D × D three times."""
    difference = x[:, :, None] - y[:, None, :]
    near = difference.abs().lt(1)
    return near.sum(dim=0)


class Block(torch.nn.Module):
    """Two layers, one of them inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU())
        self.last = torch.nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [N, 32] → [N, 8]."""
        hidden = self.inner(x)
        return self.last(hidden).square()
