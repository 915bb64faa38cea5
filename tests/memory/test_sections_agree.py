"""Under every plan of a budget a function gives what eager gives: results, gradients, which results
have a graph, and which of them share memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.pipeline.budget.search import path
from lowtide.pipeline.budget.section import SECTION
from lowtide.pipeline.driver import Driver
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
