"""Values of pairs that all steps of a loop read are computed by each step, and never stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults

N, M = 300, 400


def sinkhorn(x: Tensor, y: Tensor, steps: int):
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    f = torch.zeros(x.shape[0], dtype=x.dtype)
    g = torch.zeros(y.shape[0], dtype=x.dtype)
    for _ in range(steps):
        f = -torch.logsumexp(g[None] - cost, 1)
        g = -torch.logsumexp(f[:, None] - cost, 0)
    return f.mean() + g.mean()


def power_iteration(x: Tensor, y: Tensor, steps: int):
    kernel = torch.exp(-torch.cdist(x, y).square())
    v = torch.ones(y.shape[0], dtype=x.dtype)
    for _ in range(steps):
        v = kernel.t() @ (kernel @ v)
        v = v / v.norm()
    return v, kernel.sum(0)


def mean_shift(x: Tensor, y: Tensor, steps: int):
    rows = []
    weights = (x[:, None] - y[None]).abs().sum(-1)
    for _ in range(steps):
        x = x * 0.5 + torch.softmax(-weights + x[:, :1], 1) @ y
        rows.append(x)
    return torch.stack(rows)


def retrieval(x: Tensor, y: Tensor, steps: int):
    for _ in range(steps):
        x = torch.softmax(x @ y.t(), 1) @ y
    return x


def soft_kmeans(x: Tensor, y: Tensor, steps: int):
    for _ in range(steps):
        r = torch.softmax(-5.0 * torch.cdist(x, y), 1)
        y = (r.t() @ x) / r.sum(0)[:, None]
    return (torch.softmax(-5.0 * torch.cdist(x, y), 1) * torch.cdist(x, y)).sum(1).mean()


@pytest.mark.parametrize("columns", [2, 5, 9])
@pytest.mark.parametrize("fn", [sinkhorn, power_iteration, mean_shift])
def test_no_pairs_between_steps(fn: Callable[..., object], columns: int) -> None:
    torch.manual_seed(columns)
    x, y = torch.randn(N, columns) * 0.3, torch.randn(M, columns) * 0.3
    with faults.strict():
        compiled = lt.script(fn)
        assert "s0*s1" not in compiled.memory(x, y, 5).formula
        got = compiled(x, y, 5)
    want = fn(x.double(), y.double(), 5)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize(
    ("fn", "columns"), [(sinkhorn, 3), (mean_shift, 3), (retrieval, 16), (soft_kmeans, 16)]
)
def test_so_with_gradients(fn: Callable[..., Tensor], columns: int) -> None:
    torch.manual_seed(0)
    x, y = ((torch.randn(n, columns) * 0.5).requires_grad_() for n in (N, M))
    with faults.strict():
        compiled = lt.script(fn)
        assert "s0*s1" not in compiled.memory(x, y, 4).formula
        got = torch.autograd.grad(compiled(x, y, 4).sum(), (x, y))
    wide = [t.detach().double().requires_grad_() for t in (x, y)]
    want = torch.autograd.grad(fn(*wide, 4).sum(), wide)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-3, atol=1e-5)


def test_longer_products_are_stored_once_not_by_each_step() -> None:
    torch.manual_seed(0)
    x, y = (torch.randn(n, 20, requires_grad=True) for n in (600, 700))
    with faults.strict():
        compiled = lt.script(sinkhorn)
        formula = compiled.memory(x, y, 6).formula
        got = torch.autograd.grad(compiled(x, y, 6), (x, y))
    assert "s0*s1" not in formula.replace("4*s0*s1", "", 1)
    wide = [t.detach().double().requires_grad_() for t in (x, y)]
    want = torch.autograd.grad(sinkhorn(*wide, 6), wide)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-3, atol=1e-5)


def reported(x: Tensor, y: Tensor, steps: int):
    """What the last step has assigned is read after the loop."""
    k = torch.exp(-torch.cdist(x, y))
    u, v = torch.ones(len(x)), torch.ones(len(y))
    for step in range(steps):  # noqa: B007
        u = 1 / (k @ v)
        v = 1 / (k.t() @ u)
        error = (u * (k @ v) - 1).abs().sum()
    return (u[:, None] * k * v).sum(1), error, step


@pytest.mark.parametrize("steps", [5, 60])
def test_variables_that_steps_assign_are_read_after_them(steps: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(N, 3) * 0.3, torch.randn(M, 3) * 0.3
    with faults.strict():
        compiled = lt.script(reported)
        assert "s0*s1" not in compiled.memory(x, y, steps).formula
        row, error, step = compiled(x, y, steps)
    assert step == steps - 1
    want = reported(x, y, steps)
    torch.testing.assert_close((row, error), want[:2], rtol=1e-4, atol=1e-2)
    with pytest.raises(UnboundLocalError, match="'error'"):
        compiled(x, y, 0)
