"""Loops with a true carry: like eager, the body compiled once for any trip count."""

from __future__ import annotations

import pytest
import torch

import lowtide as lt
from lowtide.diagnostics import faults


def lstm(x, w, u, b):
    h = torch.zeros(x.shape[1], u.shape[0])
    c = torch.zeros(x.shape[1], u.shape[0])
    outputs = []
    for t in range(x.shape[0]):
        gates = x[t] @ w + h @ u + b
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return h, c, len(outputs)


def rnn(x, w, u, b):
    h = torch.zeros(x.shape[1], u.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(torch.nn.functional.linear(x[t], w.t(), b) + h @ u)
    return h, h, 0


@pytest.mark.parametrize("fn", [lstm, rnn])
def test_like_eager(fn) -> None:
    f = lt.script(fn)
    w, u, b = torch.randn(40, 160) * 0.1, torch.randn(40, 160) * 0.1, torch.randn(160)
    if fn is rnn:
        u = torch.randn(160, 160) * 0.1
    for n in (0, 1, 2, 33, 100):
        x = torch.randn(n, 6, 40)
        torch.testing.assert_close(f(x, w, u, b), fn(x, w, u, b), rtol=1e-4, atol=1e-4)
    before = lt.cache_stats()
    f(torch.randn(70, 6, 40), w, u, b)
    assert (lt.cache_stats() - before).compiles == 0


def narrow_lstm(x, w, u, b):
    h = torch.zeros(x.shape[1], 40, dtype=x.dtype)
    c, outputs = h, []
    for t in range(x.shape[0]):
        i, f, g, o = (x[t] @ w + h @ u + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs)


def test_gradients_in_bfloat16() -> None:
    """A part of a value, its cast, and a range of a value are never called alike."""
    torch.manual_seed(0)
    given = [torch.randn(*s) * 0.2 for s in ((8, 6, 40), (40, 160), (40, 160), (160,))]
    found: list[list[torch.Tensor]] = []
    for fn, dtype in ((narrow_lstm, torch.float64), (lt.script(narrow_lstm), torch.bfloat16)):
        args = [x.to(dtype).requires_grad_() for x in given]
        with faults.strict():
            out = fn(*args)
            grads = torch.autograd.grad(out.square().sum(), args)
        found.append([x.double() for x in (out, *grads)])
    for exact, got in zip(*found, strict=True):
        assert (got - exact).norm() < 0.03 * exact.norm()


def smoothed(x):
    h, out = x[0], [x[0]]
    for t in range(1, x.shape[0]):
        h = 0.9 * h + 0.1 * x[t]
        out.append(h)
    return torch.stack(out)


@pytest.mark.parametrize("steps", [8, 14])
def test_few_steps_with_gradients_are_not_cut(steps: int) -> None:
    """Written out where they fit into one backward pass, else run step by step."""
    x = torch.rand(steps, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    compiled = lt.script(smoothed)
    compiled(x).square().sum().backward()
    smoothed(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert ", 0 ops left to PyTorch" in str(compiled.explain(x))
