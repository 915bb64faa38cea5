"""Under every plan of a budget a function gives what eager gives: results, gradients, which results
have a graph, and which of them share memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.budget.search import path
from lowtide.errors import BudgetError
from lowtide.execute.driver import Driver
from lowtide.execute.section import SECTION
from tests.memory.calls import tensors

MOST_PLANS = 10


def added(x: Tensor) -> Any:
    z = torch.zeros_like(x)
    z += x.exp()
    return torch.cumsum(z.mul_(2), 1)


def through_a_view(x: Tensor) -> Any:
    z = torch.zeros_like(x)
    part = z[:, :50]
    part += x[:, :50].exp()
    return torch.cumsum(torch.cumsum(z, 1).sigmoid(), 1)


def by_parts(x: Tensor) -> Any:
    z = torch.zeros_like(x)
    z[:, :50] = x[:, :50].exp()
    return torch.cumsum(torch.cumsum(z, 1).sigmoid(), 1)


def in_a_branch(x: Tensor) -> Any:
    z = torch.zeros_like(x)
    if x.sum() > -1e9:
        z += x.exp()
    return torch.cumsum(torch.cumsum(z, 1).sigmoid(), 1)


def detached_before(x: Tensor) -> Any:
    z = torch.zeros_like(x)
    seen = z.detach()
    z[:, :50] = x[:, :50].exp()
    return torch.cumsum(torch.cumsum(z, 1).sigmoid(), 1), torch.cumsum(seen.sigmoid(), 1)


def two_views(x: Tensor) -> Any:
    y = torch.cumsum(x.exp(), 1)
    return y, y.t()


def detached_result(x: Tensor) -> Any:
    y = torch.cumsum(x.exp(), 1)
    return y, y.detach()[:, :10]


FUNCTIONS = [
    added, through_a_view, by_parts, in_a_branch, detached_before, two_views, detached_result,
]  # fmt: skip


def step(call: Callable[[], Any], x: Tensor) -> tuple[list[Tensor], list[object]]:
    """Results and the gradient; what is true of the results."""
    x.grad = None
    results = tensors(call())
    sum(y.square().sum() for y in results if y.requires_grad).backward()
    assert x.grad is not None
    places = [y.untyped_storage().data_ptr() for y in results]
    facts = [(y.requires_grad, places.index(p)) for y, p in zip(results, places, strict=True)]
    return [*(y.detach() for y in results), x.grad], facts


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_plan_gives_what_eager_gives(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 100, dtype=torch.float64, requires_grad=True)
    expected = step(lambda: function(x), x)
    compiled = lt.script(function)
    driver, values = compiled.resolve(compiled.bind((x,), {}))
    sections = 0
    for plan in islice(path(Driver(driver.function), values), MOST_PLANS):
        sections += any(op.name == SECTION for op in plan.driver.function.walk())
        found = step(lambda plan=plan: plan.driver(values), x)
        torch.testing.assert_close(found[0], expected[0])
        assert found[1] == expected[1]
    assert sections


class Averages(nn.Module):
    """Its buffer becomes another tensor at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 50))
        self.register_buffer("mean", torch.zeros(50))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cumsum(x @ self.weight, 1)
        self.mean = self.mean * 0.9 + 0.1 * y.detach().mean(0)
        return torch.cumsum(torch.cumsum(y - self.mean, 1).sigmoid(), 1)


def test_what_nobody_knows_to_have_a_graph_has_one_only_if_it_does() -> None:
    torch.manual_seed(0)
    model, x = Averages().double(), torch.randn(1000, 50, dtype=torch.float64)

    def steps(call: Callable[[], Tensor]) -> list[Tensor]:
        model.zero_grad()
        model.mean = torch.zeros(50, dtype=torch.float64)
        for _ in range(2):
            call().square().sum().backward()
            assert not model.mean.requires_grad
        assert model.weight.grad is not None
        return [model.mean, model.weight.grad]

    expected = steps(lambda: model(x))
    forward = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    for plan in islice(path(Driver(driver.function), values), MOST_PLANS):
        torch.testing.assert_close(steps(lambda plan=plan: plan.driver(values)), expected)


class Shifted(Averages):
    """Its buffer is an attribute that may become another tensor, and is written in place."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] > 5000:
            self.mean = self.mean * 2
        self.mean.add_(1)
        y = torch.sort(torch.cumsum(x @ self.weight, 1) - self.mean, 1)[0]
        return torch.cumsum(torch.cumsum(y, 1).sigmoid(), 1)


def test_what_the_next_call_writes_is_not_read_by_this_one() -> None:
    torch.manual_seed(0)
    model, x = Shifted().double(), torch.randn(1000, 50, dtype=torch.float64)

    def gradient(call: Callable[[], Tensor]) -> Tensor:
        model.mean.zero_()
        y = call().square().sum() + call().square().sum()
        return torch.autograd.grad(y, model.weight)[0]

    expected = gradient(lambda: model(x))
    forward = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    for plan in islice(path(Driver(driver.function), values), MOST_PLANS):
        found = gradient(lambda plan=plan: plan.driver(values))
        torch.testing.assert_close(found, expected)


def at_least(function: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """Compiled for the least budget that there is for these arguments."""
    with pytest.raises(BudgetError) as refused:
        lt.script(function, budget=1)(*args)
    return lt.script(function, budget=refused.value.least_bytes)


def sorted_twice(x: Tensor, w: Tensor) -> Tensor:
    y = torch.sort(torch.cumsum((x * w).sigmoid(), 1), 1)[0]
    return torch.cumsum(torch.tanh(torch.cumsum(y, 1)), 1)


def made() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(1000, 50, dtype=torch.float64, requires_grad=True)
    return x, torch.randn(50, dtype=torch.float64, requires_grad=True)


def test_a_batch_of_cotangents() -> None:
    x, w = made()

    def gradients(call: Callable[..., Any]) -> Any:
        y = call(x, w)
        given = torch.stack([torch.ones_like(y), y.detach()])
        return torch.autograd.grad(y, (x, w), given, is_grads_batched=True)

    limited = at_least(sorted_twice, x, w)
    torch.testing.assert_close(gradients(limited), gradients(sorted_twice))


def columns(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.sort(torch.cumsum((x * w).sigmoid(), 1), 1)[0]
    return torch.cumsum(y, 1).t(), torch.cumsum(y.t(), 0)


def test_results_may_be_changed_in_place() -> None:
    x, w = made()

    def gradients(call: Callable[..., Any]) -> Any:
        first, second = call(x, w)
        first.mul_(2).sigmoid_()
        second.add_(1)
        return torch.autograd.grad((first * second).sum(), (x, w))

    limited = at_least(columns, x, w)
    torch.testing.assert_close(gradients(limited), gradients(columns))


def multiplied(x: Tensor, w: Tensor) -> Tensor:
    return torch.cumsum(torch.softmax(torch.cumsum(torch.tanh(x @ w), 1) @ w, 1), 1)


def test_what_runs_again_does_not_run_under_autocast() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 50, requires_grad=True)
    w = torch.randn(50, 50, requires_grad=True)
    limited = at_least(multiplied, x, w)
    y = limited(x, w).sum()
    expected = torch.autograd.grad(y, (x, w), retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(y, (x, w))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def normed(x: Tensor, mean: Tensor, var: Tensor, shift: Tensor) -> Tensor:
    y = torch.cumsum(torch.cumsum((x - shift).sigmoid(), 1), 1)
    y = F.batch_norm(y, mean, var, None, None, True)
    return torch.cumsum(y.sigmoid(), 1)


def test_a_plan_is_for_arguments_that_share_memory_alike() -> None:
    x, _ = made()

    def gradient(call: Callable[..., Any], is_shared: bool) -> Tensor:
        mean, var = torch.full((50,), 0.5, dtype=x.dtype), torch.ones(50, dtype=x.dtype)
        y = call(x, mean, var, mean[:] if is_shared else mean.clone())
        return torch.autograd.grad(y.square().sum(), x)[0]

    with pytest.raises(BudgetError) as refused:
        gradient(lt.script(normed, budget=1), True)
    limited = lt.script(normed, budget=refused.value.least_bytes)
    for is_shared in (False, True):
        torch.testing.assert_close(gradient(limited, is_shared), gradient(normed, is_shared))


def by_size(batch: dict[str, Tensor]) -> Tensor:
    x = batch["x"]
    y = torch.cumsum(x * 2, 1) if x.size(0) > 500 else torch.cumsum(x * 3, 1)
    return torch.cumsum(y.sigmoid(), 1)


@dataclass
class Batch:
    x: Tensor


def by_size_of_a_field(batch: Batch) -> Tensor:
    x = batch.x
    y = torch.cumsum(x * 2, 1) if x.size(0) > 500 else torch.cumsum(x * 3, 1)
    return torch.cumsum(y.sigmoid(), 1)


@pytest.mark.parametrize("function", [by_size, by_size_of_a_field], ids=lambda f: f.__name__)
def test_a_branch_is_decided_only_by_what_plans_are_kept_by(function: Any) -> None:
    def batch(rows: int) -> Any:
        x = torch.linspace(-1, 1, rows * 50).view(rows, 50)
        return {"x": x} if function is by_size else Batch(x)

    limited = at_least(function, batch(1000))
    for rows in (1000, 400):
        torch.testing.assert_close(limited(batch(rows)), function(batch(rows)))
