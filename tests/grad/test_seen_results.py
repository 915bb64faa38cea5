"""Hooks, `retain_grad()` and `torch.autograd.grad` of results that others are computed from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

import lowtide as lt


def dependent(x: Tensor):
    y = x * x
    return y, y.sin()


def detached(x: Tensor):
    y = x * x
    return y, y.detach() * 2


def apart(x: Tensor):
    return x * x, x.sin()


WAYS: dict[str, Callable[[Any], Any]] = {
    "script": lt.script,
    "trace": lambda f: lt.trace(f, (torch.rand(40, 50),)),
    "compile": lt.compile,
}
SEEN: dict[str, Callable[[Tensor], object]] = {
    "hook": lambda y: y.register_hook(lambda g: g * 2),
    "retained": lambda y: y.retain_grad(),
}


def gradient(f: Any, see: Callable[[Tensor], object]) -> Tensor | None:
    x = torch.linspace(0, 1, 2000).view(40, 50).requires_grad_()
    y, z = f(x)
    see(y)
    (y.sum() + z.sum()).backward()
    return x.grad


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("way", WAYS)
def test_backward_raises_where_it_would_be_seen_wrongly(way: str, seen: str) -> None:
    compiled = WAYS[way](dependent)
    torch.testing.assert_close(gradient(compiled, id), gradient(dependent, id))
    with pytest.raises(RuntimeError, match=r"test_seen_results\.py:\d+: a hook, or retain_grad"):
        gradient(compiled, SEEN[seen])


class Normed(torch.nn.Module):
    """Writes running statistics in the same region."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(50)

    def forward(self, x: Tensor):
        y = self.norm(x).tanh()
        return y, y.sin()


@pytest.mark.parametrize("seen", SEEN)
def test_backward_raises_where_statistics_are_written(seen: str) -> None:
    with pytest.raises(RuntimeError, match="a hook, or retain_grad"):
        gradient(lt.script(Normed()), SEEN[seen])


def test_hooks_of_fsdp_wait_only() -> None:
    def before_backward(g: Tensor) -> None: ...

    before_backward.__module__ = "torch.distributed.fsdp"

    def see(y: Tensor) -> object:
        hook: Callable[[Tensor], None] = functools.partial(before_backward)
        return y.register_hook(hook)  # pyright: ignore[reportUnknownVariableType]

    torch.testing.assert_close(gradient(lt.script(dependent), see), gradient(dependent, see))


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("f", [detached, apart])
@pytest.mark.parametrize("way", WAYS)
def test_others_are_as_in_eager_mode(way: str, f: Any, seen: str) -> None:
    torch.testing.assert_close(gradient(WAYS[way](f), SEEN[seen]), gradient(f, SEEN[seen]))


ASKED: dict[str, Callable[[Any, Tensor, Tensor], object]] = {
    "grad": lambda x, y, z: torch.autograd.grad(y.sum() + z.sum(), y),
    "with the input": lambda x, y, z: torch.autograd.grad(y.sum() + z.sum(), (y, x)),
    "of the other": lambda x, y, z: torch.autograd.grad(z.sum(), y),
    "backward": lambda x, y, z: (y.sum() + z.sum()).backward(inputs=[y, x]),
    "edge": lambda x, y, z: torch.autograd.grad(z.sum(), [get_gradient_edge(y)]),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_are_asked_for_raise(way: str, asked: str) -> None:
    compiled = WAYS[way](dependent)
    x = torch.rand(40, 50, requires_grad=True)
    ASKED[asked](x, *dependent(x))
    with pytest.raises(RuntimeError, match=r"test_seen_results\.py:\d+: torch.autograd.grad with"):
        ASKED[asked](x, *compiled(x))


def test_gradients_of_the_other_result_and_of_the_input_are_given() -> None:
    x = torch.rand(40, 50, requires_grad=True)
    y, z = lt.script(dependent)(x)
    given = torch.autograd.grad(y.sum() + (z * z).sum(), (z, x))
    y, z = dependent(x)
    torch.testing.assert_close(given, torch.autograd.grad(y.sum() + (z * z).sum(), (z, x)))
