"""Programs of several graphs, and what their calls ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor, nn

import lowtide as lt
from tests.memory.contract import requested_bytes


def in_a_loop(x: Tensor) -> Tensor:
    """Which PyTorch's capture leaves to Python altogether."""
    for _ in range(5):
        x = torch.softmax(x.sin(), 1) * x.exp()
        torch._dynamo.graph_break()
    return x


def written(x: Tensor) -> Tensor:
    a = x.sin()
    torch._dynamo.graph_break()
    a.mul_(2)
    torch._dynamo.graph_break()
    b = a.exp()
    torch._dynamo.graph_break()
    b.add_(1)
    return b * b


def hooked(x: Tensor) -> Tensor:
    a = x.sin()
    torch._dynamo.graph_break()
    if a.requires_grad:
        a.register_hook(lambda g: (g * 2).sin() * g.cos())
    b = a.exp()
    torch._dynamo.graph_break()
    return b * a


@torch._dynamo.disable
def outside(x: Tensor) -> Tensor:
    return torch.softmax((x + 1).cumsum(0).sin() * x, 1)


def between(x: Tensor) -> Tensor:
    return outside(torch.cumsum(x * 2, 1)).exp() * x


class Net(nn.Module):
    """Layers of their own, with a graph break after each, in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(4)])

    def forward(self, x: Tensor, *, scales: dict[str, float]) -> Tensor:
        for layer in self.layers:
            x = torch.softmax(layer(x), 1) * scales["one"]
            torch._dynamo.graph_break()
        return x


class Step(nn.Module):
    """A step of training: the backward pass is in the call, and Python's own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Tensor:
        loss = self.net(x, scales={"one": 1.0}).square().mean()
        loss.backward()
        return loss.detach()


PROGRAMS: list[Callable[[Tensor], Tensor]] = [in_a_loop, written, hooked, between]


def two(x: Tensor) -> Tensor:
    y = x.sin().cumsum(0)
    torch._dynamo.graph_break()
    return y.tanh().cumsum(0)


def with_hook(x: Tensor, hook: Callable[[Tensor], Tensor]) -> Tensor:
    y = x.sin().cumsum(0)
    torch._dynamo.graph_break()
    y.register_hook(hook)
    return y.tanh().cumsum(0)


def cumulated(x: Tensor) -> Tensor:
    return x.sin().cumsum(0).tanh()


def measured(
    compiled: Any, leaves: Sequence[Tensor], *args: Any, asks: bool = True, **kwargs: Any
) -> tuple[int, int]:
    """Predicted, and then asked for. `leaves`: whose gradients do not stay from step to step."""
    predicted = compiled.memory(*args, **kwargs).peak_bytes if asks else 0

    def step() -> None:
        result = compiled(*args, **kwargs)
        if result.requires_grad:
            result.backward(torch.ones_like(result))

    def forget() -> None:
        for leaf in leaves:
            leaf.grad = None

    step()  # compiles
    forget()
    asked: list[int] = []
    for _ in range(2):
        asked.append(requested_bytes(step))
        forget()
    return predicted, max(asked)


def outside_too(x: Tensor) -> Tensor:
    y = torch.cumsum(x.sin(), 1)
    torch._dynamo.graph_break()
    return outside(y).cumsum(0)


def budgets(program: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, int]:
    """The least that there is, and half way from it to the peak."""
    torch._dynamo.reset()
    most = cast("Any", lt.compile(program)).memory(x).peak_bytes
    try:
        cast("Any", lt.compile(program, budget=1)).memory(x)
    except lt.BudgetError as refused:
        return refused.least_bytes, (refused.least_bytes + most) // 2
    raise AssertionError(program.__name__)
