"""Loops with a true carry: like eager, the body compiled once for any trip count."""

from __future__ import annotations

import pytest
import torch

import lowtide as lt


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
