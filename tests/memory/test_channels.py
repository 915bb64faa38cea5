"""Norms in training that PyTorch runs, done in chunks of channels: each has its own statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer
from lowtide.budget.rewrite import with_sections
from lowtide.execute.driver import Driver

f64 = torch.float64


def normed(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.batch_norm(x, mean, var, w, b, training=True)
    return F.leaky_relu(y, 0.1)


def without_statistics(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(x, None, None, w, b, training=True))


def of_instances(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.instance_norm(x, mean, var, w, b, use_input_stats=True, momentum=0.3)


def read_afterwards(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.instance_norm(x, mean, var, w, b, use_input_stats=True)
    return y - mean[:, None]


def twice(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = torch.tanh(F.instance_norm(x, mean, var, w, b, use_input_stats=True))
    return F.instance_norm(y, mean, var, w, b, use_input_stats=True)


def followed(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.leaky_relu(of_instances(x, mean, var, w, b), 0.1)


CUT = (of_instances, followed)
WHOLE = (read_afterwards, twice)


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(64, 12, 50, dtype=f64, requires_grad=True)
    w, b = (torch.randn(12, dtype=f64, requires_grad=True) for _ in range(2))
    return [x, torch.randn(12, dtype=f64), torch.rand(12, dtype=f64) + 0.5, w, b]


def planned(program: Callable[..., Tensor], args: list[Tensor], chunks: int) -> Driver | None:
    """With all that can be cut along channels done so."""
    compiled: Any = lt.script(program)
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    outer = Outer(driver, values)
    found = [c for c in candidates(outer) if c.cuts[0] is not None and c.cuts[0].dim == 1]
    if not found:
        return None
    return Driver(with_sections(driver.function, dict.fromkeys(found, chunks), {}))


def trained(call: Callable[..., Tensor], args: list[Tensor]) -> list[Tensor]:
    """A call's result, the gradients, the statistics afterwards."""
    given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    y = call(given)
    (y * torch.linspace(0, 1, y.numel(), dtype=f64).view_as(y)).sum().backward()
    return [y.detach(), *(a.grad for a in given if a.grad is not None), *given[1:3]]


@pytest.mark.parametrize("chunks", [2, 5, 12])
@pytest.mark.parametrize("program", CUT)
def test_as_without_chunks(program: Callable[..., Tensor], chunks: int) -> None:
    args = inputs()
    driver = planned(program, args, chunks)
    assert driver is not None
    expected = trained(lambda given: program(*given), args)
    torch.testing.assert_close(trained(driver, args), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("program", [normed, without_statistics])
def test_norms_in_kernels_stay_whole(program: Callable[..., Tensor]) -> None:
    assert planned(program, inputs(), 4) is None


@pytest.mark.parametrize("program", WHOLE)
def test_statistics_that_others_read_stay_whole(program: Callable[..., Tensor]) -> None:
    assert planned(program, inputs(), 4) is None


def test_statistics_that_share_memory_stay_whole() -> None:
    args = inputs()
    assert planned(of_instances, args, 4) is not None
    both = torch.rand(24, dtype=f64)
    args[1], args[2] = both[:12], both[12:]
    assert planned(of_instances, args, 4) is None


def test_statistics_with_gradients_stay_whole() -> None:
    args = inputs()
    args[1].requires_grad_()
    assert planned(of_instances, args, 4) is None


@pytest.mark.parametrize("chunks", [3, 12])
@pytest.mark.parametrize("program", [of_instances, followed])
@pytest.mark.parametrize("last", [True, False])
def test_results_lie_as_without_chunks(
    program: Callable[..., Tensor], chunks: int, last: bool
) -> None:
    """Of one channel nothing tells whether channels lie last."""
    args = inputs()
    images = torch.randn(6, 12, 20, 20, dtype=f64)
    memory_format = torch.channels_last if last else torch.contiguous_format
    args[0] = images.contiguous(memory_format=memory_format).requires_grad_()
    driver = planned(program, args, chunks)
    assert driver is not None
    made, expected = driver(args), program(*args)
    assert made.stride() == expected.stride()


class Levels(nn.Module):
    """Convolutions with norms, at two resolutions, and what joins them."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(n, m, 3, padding=1) for n, m in ((3, 8), (8, 8), (8, 16), (16, 8), (16, 8))]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (8, 8, 16, 8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.norms[0](self.convs[0](x)))
        a = F.relu(self.norms[1](self.convs[1](a)))
        b = F.relu(self.norms[2](self.convs[2](F.max_pool2d(a, 2))))
        b = F.relu(self.norms[3](self.convs[3](b)))
        a = torch.cat([a, F.interpolate(b, scale_factor=2.0)], 1)
        return F.relu(self.norms[4](self.convs[4](a)))


def test_a_network_with_batch_norms_is_trained_at_a_third() -> None:
    """Of what it needs without a budget: segments lie within segments."""
    torch.manual_seed(0)
    model = Levels().double().train()
    x = torch.randn(8, 3, 64, 64, dtype=f64, requires_grad=True)

    def step(call: Callable[[Tensor], Tensor], of: nn.Module) -> list[Tensor]:
        x.grad = None
        of.zero_grad()
        call(x).square().mean().backward()
        grads = [p.grad for p in (x, *of.parameters())]
        return [g for g in grads if g is not None] + [b.clone() for b in of.buffers()]

    free: Any = lt.script(copy.deepcopy(model))
    budget = free.memory(x).peak_bytes // 3
    limited: Any = lt.script(copy.deepcopy(model), budget=budget)
    assert limited.memory(x).peak_bytes <= budget
    torch.testing.assert_close(step(limited, limited), step(model, model), rtol=1e-9, atol=1e-9)
