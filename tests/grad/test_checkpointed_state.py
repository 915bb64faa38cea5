"""What a checkpointed part writes: PyTorch runs it again in the backward pass, up to the last
tensor that is saved, or to its end if it is reentrant, and what it writes is written a second time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt


class Norm(nn.Module):
    def __init__(self, *, ends: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.ends = ends

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        return y if self.ends else self.last(y.relu())


class Average(nn.Module):
    """A buffer that is written before or after the last tensor that is saved."""

    average: Tensor

    def __init__(self, *, early: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6))
        self.early = early

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        if not self.early:
            y = y.relu()
        self.average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y.relu() if self.early else y


class Read(nn.Module):
    """Of a buffer that is written and then read, the second run sees what the first has left."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).relu()
        self.average.mul_(0.9).add_(y.detach().mean(0))
        return (y * self.average).sum(1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 6), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dropout(self.linear(x)).relu())


class Inside(nn.Module):
    """The checkpoint within what is compiled."""

    def __init__(self, part: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.part, self.reentrant = part, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, x * 2, use_reentrant=self.reentrant)


PARTS: dict[str, Callable[[], nn.Module]] = {
    "norm": Norm,
    "norm at the end": lambda: Norm(ends=True),
    "early": lambda: Average(early=True),
    "late": lambda: Average(early=False),
    "read": Read,
    "masked": Masked,
}


def state_after(f: Callable[[Tensor], Tensor], part: nn.Module) -> list[Any]:
    """Two steps: results, gradients, buffers and the random state. In float64: a batch of five has
    small variances, by which batch norm's gradients are rounded more than a tolerance allows."""
    torch.manual_seed(0)
    found: list[Any] = []
    for _ in range(2):
        x = torch.rand(5, 6, dtype=torch.float64, requires_grad=True)
        y = f(x)
        (y * y.detach().cos()).sum().backward()
        found += [y.detach(), x.grad]
    found += [p.grad for p in part.parameters()]
    return [*found, *(b.clone() for b in part.buffers()), torch.get_rng_state()]


@pytest.mark.parametrize("front", [lt.script, lt.compile])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("where", ["around", "inside"])
@pytest.mark.parametrize("name", PARTS)
def test_as_in_eager_mode(name: str, where: str, reentrant: bool, front: Any) -> None:
    torch.compiler.reset()
    torch.manual_seed(1)
    part = PARTS[name]().double()
    mine = copy.deepcopy(part)
    expected = state_after(Inside(part, reentrant), part)
    if where == "around":
        compiled = front(mine)
        found = state_after(lambda x: checkpoint(compiled, x * 2, use_reentrant=reentrant), mine)
    else:
        found = state_after(front(Inside(mine, reentrant)), mine)
    for want, got in zip(expected, found, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_trace_of_checkpoints_in_checkpoints_keeps_gradients(reentrant: bool) -> None:
    def inner(y: Tensor, w: Tensor) -> Tensor:
        return (y @ w).tanh()

    def outer(y: Tensor, w: Tensor) -> Tensor:
        return checkpoint(inner, y, w, use_reentrant=reentrant) + 1

    def f(x: Tensor, w: Tensor) -> Tensor:
        return checkpoint(outer, x, w, use_reentrant=reentrant).sin()

    x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
    traced = lt.trace(f, (x, w), check_trace=False)
    grads = []
    for g in (f, traced):
        x.grad = w.grad = None
        g(x, w).sum().backward()
        grads.append((x.grad, w.grad))
    torch.testing.assert_close(grads[1], grads[0])
