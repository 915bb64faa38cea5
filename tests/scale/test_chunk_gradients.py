"""Gradients of calls in chunks are those of the plain call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt


def chamfer(a: Tensor, b: Tensor):
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    return d.min(1).values.mean() + d.min(0).values.sqrt().mean()


def scores(a: Tensor, b: Tensor):
    s = a @ b.T
    return s.logsumexp(0), s.logsumexp(1).sum(), (s * s).mean(0), s


def flat(a: Tensor, b: Tensor):
    s = a @ b.T
    return s.flatten().max(0).values, s.reshape(-1, 10).min(0).values, s.flatten().logsumexp(0)


def gradients(call: Callable[..., Any], *given: Tensor) -> tuple[Any, ...]:
    leaves = [x.clone().requires_grad_() for x in given]
    results = call(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    torch.manual_seed(1)
    sum((r * torch.rand_like(r)).sum() for r in results).backward()
    return results, [x.grad for x in leaves]


@pytest.mark.parametrize("f", [chamfer, scores, flat])
def test_gradients_are_those_of_the_plain_call(f: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    a, b = torch.rand(90, 3, dtype=torch.float64), torch.rand(70, 3, dtype=torch.float64)
    call = lambda x, y: lt.map_chunks(f, x, y, budget="10MB", tasks=6)  # noqa: E731
    torch.testing.assert_close(gradients(call, a, b), gradients(f, a, b))


def test_of_equal_minima_the_first_gets_the_gradient() -> None:
    def f(a: Tensor, b: Tensor):
        return ((a[:, None] - b[None]) ** 2).sum(-1).min(0).values.sum()

    a = torch.randint(0, 3, (40, 2)).double()
    b = torch.randint(0, 3, (30, 2)).double() + 0.25
    call = lambda x, y: lt.map_chunks(f, x, y, budget="10MB", tasks=5)  # noqa: E731
    torch.testing.assert_close(gradients(call, a, b), gradients(f, a, b))


def test_parameters_of_modules_get_gradients() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    compiled, x = lt.script(net), torch.randn(300, 4)
    net(x).square().sum().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    lt.map_chunks(compiled, x, budget="1MB", tasks=4).square().sum().backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected)


def test_places_for_results_have_no_graph() -> None:
    a = torch.rand(9, 3, requires_grad=True)
    with pytest.raises(lt.LowtideError, match="no_grad"):
        lt.map_chunks(scores, a, a, budget="1MB", out=(None, None, None, torch.empty(9, 9)))
    values = torch.empty(9)
    with torch.no_grad():
        found = lt.map_chunks(scores, a, a, budget="1MB", out=(values, None, None, None))
    torch.testing.assert_close(found, tuple(x.detach() for x in scores(a, a)))
