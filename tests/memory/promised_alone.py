"""What calls of several graphs take on the heap as it comes, in a process that does nothing else.

`python -m tests.memory.promised_alone` prints, of each, the predicted peak and the largest of three
measured ones, in bytes; then the same within the least budget that there is, and one half way from
it to the peak, and, as `asked` 0, where nobody asks for the prediction: there it is the budget.
Nothing is said to the C library about what it keeps of freed memory.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch._dynamo
from torch import Tensor, nn

import lowtide as lt
from lowtide.memory.measure import measure_peak
from tests.quickly import compile_quickly


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
) -> dict[str, int]:
    """Predicted, and then measured. `leaves`: whose gradients do not stay from step to step."""
    predicted = compiled.memory(*args, **kwargs).peak_bytes if asks else 0

    def step() -> None:
        result = compiled(*args, **kwargs)
        if result.requires_grad:
            result.backward(torch.ones_like(result))

    peaks: list[int] = []
    for _ in range(4):
        peaks.append(measure_peak(step, release=lt.empty_cache)[0].peak_bytes)
        for leaf in leaves:
            leaf.grad = None
    return {"predicted": predicted, "measured": max(peaks[1:])}  # the first call compiles


def outside_too(x: Tensor) -> Tensor:
    y = torch.cumsum(x.sin(), 1)
    torch._dynamo.graph_break()
    return outside(y).cumsum(0)


def budgets(program: Callable[[Tensor], Tensor], x: Tensor) -> list[tuple[str, int, bool]]:
    """By name: those that the program is measured within, and whether anybody asks."""
    torch._dynamo.reset()
    most = cast("Any", lt.compile(program)).memory(x).peak_bytes
    try:
        cast("Any", lt.compile(program, budget=1)).memory(x)
    except lt.BudgetError as refused:
        least = refused.least_bytes
    else:
        raise AssertionError(program.__name__)
    half = (least + most) // 2
    name = program.__name__
    rows = [(f"{name}, least", least, True), (f"{name}, half", half, True)]
    return rows if program is outside_too else [*rows, (f"{name}, not asked", half, False)]


def main() -> None:
    torch.manual_seed(0)
    found: dict[str, dict[str, int]] = {}
    for program in PROGRAMS:
        x = torch.rand(1024, 1024, requires_grad=True)
        found[program.__name__] = measured(lt.compile(program), [x], x)
    net = Net()
    x = torch.rand(2048, 512)
    found["Net"] = measured(lt.compile(net), list(net.parameters()), x, scales={"one": 2.0})
    step = Step()
    found["Step"] = measured(lt.compile(step), list(step.parameters()), x)
    for program in (two, outside_too):
        x = torch.rand(1024, 1024, requires_grad=True)
        for name, budget, asks in budgets(program, x):
            torch._dynamo.reset()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # asks for it
                row = measured(lt.compile(program, budget=budget), [x], x, asks=asks)
            found[name] = row if asks else {"measured": row["measured"], "predicted": budget}
    for name, hook in (("plain", cumulated), ("compiled", lt.compile(cumulated))):
        for stays in (False, True):
            torch._dynamo.reset()
            x = torch.rand(1024, 1024, requires_grad=True)
            compiled = lt.compile(with_hook, budget=30 * x.nbytes // 4)
            row = measured(compiled, [] if stays else [x], x, hook)
            found[f"{name} hook, gradients that {'stay' if stays else 'go'}"] = row
    print(json.dumps(found))


if __name__ == "__main__":
    compile_quickly()
    main()
