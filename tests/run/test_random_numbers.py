"""What draws random numbers draws as often, and in the same order, as in eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt

Front = Callable[[Callable[..., Any], tuple[Any, ...]], Callable[..., Any]]
FRONTS: dict[str, Front] = {
    "script": lambda f, args: lt.script(f),
    "trace": lambda f, args: lt.trace(f, args, check_trace=False),
    "compile": lambda f, args: lt.compile(f),
}


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


X, W = (torch.rand(8, 8, generator=generator()) for _ in range(2))


def same_as_eager(f: Callable[..., Any], args: tuple[Any, ...], front: str) -> None:
    """Results, gradients and the random state afterwards, twice in a row."""
    compiled = FRONTS[front](f, args)
    runs: list[list[Any]] = []
    for run in (f, compiled):
        torch.manual_seed(0)
        found: list[Any] = []
        for _ in range(2):
            given = tuple(
                x.clone().requires_grad_(x.is_floating_point()) if isinstance(x, Tensor) else x
                for x in args
            )
            results = run(*given)
            results = results if isinstance(results, tuple) else (results,)
            loss = sum((r * r).sum() for r in results if r.requires_grad)
            wanted = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
            if isinstance(loss, Tensor):
                found += torch.autograd.grad(loss, wanted, allow_unused=True)
            found += [r.detach() for r in results]
        runs.append([*found, torch.get_rng_state()])
    for want, got in zip(*runs, strict=True):
        torch.testing.assert_close(got, want)


def two_masks(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (F.dropout(x, 0.5) @ w).sum(), (F.dropout(x, 0.5) @ w).sum()


def sampled_in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for _ in range(5):
        total = total + F.dropout(x, 0.5).relu() @ w
    return total / 5


def adapters(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    q = x @ w + F.dropout(x, 0.1) @ w.T * 2
    v = x @ w + F.dropout(x, 0.1) @ w.T * 2
    return q, v


def for_nothing(x: Tensor, w: Tensor) -> Tensor:
    F.dropout(x, 0.5)
    F.dropout(w, 0.25)
    return F.dropout(x @ w, 0.5)


def in_both_branches(x: Tensor, w: Tensor) -> Tensor:
    if x.sum() > 0:
        y = F.dropout(x, 0.5) + 1
    else:
        y = F.dropout(x, 0.5) - 1
    return y * F.dropout(x, 0.5)


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        a = F.dropout(x, 0.5) @ w
        b = F.dropout(x, 0.5) @ w
    return (x @ w) * a + b


def attention_twice(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    a = F.scaled_dot_product_attention(x[None], w[None], x[None], dropout_p=0.5)
    b = F.scaled_dot_product_attention(x[None], w[None], x[None], dropout_p=0.5)
    return a, b


def by_name(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.rand_like(x) + torch.rand_like(x) * torch.bernoulli(x.detach()),
        F.alpha_dropout(x, 0.5, True)
        - F.alpha_dropout(x, 0.5, True)
        + F.rrelu(x - 0.5, training=True),
    )


PROGRAMS = (
    two_masks,
    sampled_in_a_loop,
    adapters,
    for_nothing,
    in_both_branches,
    without_gradients,
    attention_twice,
    by_name,
)


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager_mode(program: Callable[..., Any], front: str) -> None:
    if program is in_both_branches and front != "script":
        pytest.skip("the branch is chosen before it is compiled")
    same_as_eager(program, (X, W), front)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layers(x), self.layers(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("front", FRONTS)
def test_an_encoder_called_twice(front: str, training: bool) -> None:
    """SimCSE: the two embeddings of one sentence differ by their masks alone."""
    torch.manual_seed(1)
    model = Encoder().train(training)
    same_as_eager(model, (X,), front)
