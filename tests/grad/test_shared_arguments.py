"""Arguments that share memory, one of which the program writes into: gradients as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.execute.mutation import Shared


def norm_in_training(x: Tensor, mean: Tensor, var: Tensor, other: Tensor) -> Tensor:
    y = torch.tanh(x - other).exp()
    return (y * F.batch_norm(x, mean, var, training=True)).sum()


def in_place(x: Tensor, mean: Tensor, var: Tensor, other: Tensor) -> Tensor:
    y = torch.tanh(x - other).exp()
    mean.add_(1)
    return y.sum()


def an_item(x: Tensor, mean: Tensor, var: Tensor, other: Tensor) -> Tensor:
    y = (x / (other * other + 1)).sigmoid()
    mean[1] = 7.0
    return y.sum()


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
@pytest.mark.parametrize("program", [norm_in_training, in_place, an_item])
def test_gradients_are_of_what_was_read(program: Callable[..., Tensor], entry: Any) -> None:
    def run(call: Callable[..., Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        x, mean, var = torch.randn(6, 3, requires_grad=True), torch.randn(3), torch.ones(3)
        y = call(x, mean, var, mean.view(3))
        return [y.detach(), *torch.autograd.grad(y, x), mean]

    torch.compiler.reset()
    torch.testing.assert_close(run(entry(program)), run(program))


def test_which_memory_is_seen_twice() -> None:
    x, both, var = torch.randn(6, 3), torch.randn(6), torch.ones(3)
    compiled: Any = lt.script(in_place)
    driver, _ = compiled.resolve(compiled.bind((x, var, var, var), {}))
    shared = Shared(driver.function)
    assert not shared.overlaps([x, both[:3], var, both[3:]])
    assert shared.overlaps([x, both[:3], var, both[2:5]])
    assert shared.overlaps([x, both[:3], both[1:4], var])
    assert shared.overlaps([x, both[::2], var, both[1:2]])  # between the elements of the other
    assert not shared.overlaps([x, both[:3], var, var])
    assert not shared.overlaps([x, both[:0], var, both])


def writes_what_it_made(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    ones = torch.empty_like(x).fill_(1.0)
    return torch.cat([x, y]), ones, x.double().float(), x.matmul(y.t()).t()


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_an_expanded_argument_has_a_gradient_for_each_element(entry: Any) -> None:
    """The copy that a region with writes keeps of it has its strides, and passes gradients on."""

    def run(call: Callable[..., Any]) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(6, 5, generator=generator).t()[::2].requires_grad_()
        y = torch.randn(3, generator=generator).expand(6, 3).t().requires_grad_()
        results = [z for z in call(x, y) if z.requires_grad]
        weights = [torch.rand(z.shape, generator=generator) for z in results]
        return torch.autograd.grad(results, [x, y], weights)

    torch.compiler.reset()
    torch.testing.assert_close(run(entry(writes_what_it_made)), run(writes_what_it_made))
