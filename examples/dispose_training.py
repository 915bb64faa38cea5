"""A training loop that gives its memory back at a known line, and how statistics find a leak.

    python examples/dispose_training.py

`train` puts a scope around each step and moves out only what the next steps need. `leaky_train`
does the same, but keeps every loss with its graph: `thread_total_live` grows by one at each step.
"""

from __future__ import annotations

import torch
from torch import nn

import lowtide as lt

STEPS = 20


def a_model() -> nn.Module:
    """Layers whose inputs go as soon as they are used."""
    torch.manual_seed(0)
    return lt.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of all steps."""
    torch.manual_seed(1)
    x = torch.randn(STEPS, 64, 32)
    return list(zip(x, x.sum(-1, keepdim=True), strict=True))


def train(model: nn.Module) -> tuple[float, list[int]]:
    """The last loss, and the tensors alive after each step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stats = lt.scope_statistics()
    stats.reset()
    data = batches()
    live: list[int] = []
    average = torch.zeros(())
    for x, y in data:
        with lt.dispose_scope() as scope:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()  # its state is its own
            scope.attach(average)  # the one of the last step ends with this one
            average = scope.move_to_outer(0.9 * average + 0.1 * loss.detach())
        live.append(stats.thread_total_live)
    return average.item(), live


def leaky_train(model: nn.Module) -> tuple[list[torch.Tensor], list[int]]:
    """As `train`, but a list keeps every loss, detached from its scope and not from its graph."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    stats = lt.scope_statistics()
    stats.reset()
    data = batches()
    losses: list[torch.Tensor] = []
    live: list[int] = []
    for x, y in data:
        with lt.dispose_scope() as scope:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(scope.detach(loss))  # the leak; `loss.item()` is enough
        live.append(stats.thread_total_live)
    return losses, live


def growth(live: list[int]) -> float:
    """Tensors more after each step, once the optimizer has made its state."""
    return (live[-1] - live[1]) / (len(live) - 2)


def main() -> None:
    """Both loops, and what the statistics say."""
    average, live = train(a_model())
    print(f"average loss {average:.3f}; tensors left by a step: {growth(live):+.1f}")
    losses, live = leaky_train(a_model())
    print(f"last loss {losses[-1].item():.3f}; tensors left by a step: {growth(live):+.1f}")
    print(lt.scope_statistics())


if __name__ == "__main__":
    main()
