"""Programs whose loops carry something from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Program = Callable[..., Any]


def rnn(x, w, u, h):
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
    return h


def lstm(x, w, u, b, h, c):
    outputs = []
    for t in range(x.shape[0]):
        gates = x[t] @ w + h @ u + b
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def gru(x, w, u, b, v, h):
    outputs = []
    for t in range(x.shape[0]):
        r0, z0, n0 = (x[t] @ w + b).chunk(3, 1)
        r1, z1, n1 = (h @ u + v).chunk(3, 1)
        r, z = torch.sigmoid(r0 + r1), torch.sigmoid(z0 + z1)
        n = torch.tanh(n0 + r * n1)
        h = (1 - z) * n + z * h
        outputs.append(h)
    return torch.stack(outputs), h


def backwards_in_time(x, w, u, h):
    outputs = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[x.shape[0] - 1 - t] @ w + h @ u)
        outputs.append(h)
    return torch.stack(outputs, 1)


def two_layers(x, w, u, h):
    first = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        first.append(h)
    seq = torch.stack(first)
    k = torch.zeros_like(h)
    for t in range(seq.shape[0]):
        k = torch.relu(seq[t] @ u + k @ u)
    return k, seq.sum()


def batch_first(x, w, u, h):
    outputs = []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] @ w + h @ u)
        outputs.append(h.unsqueeze(1))
    return torch.cat(outputs, 1)


def filtered(x, a):
    y = torch.zeros_like(x[0])
    out = []
    for t in range(x.shape[0]):
        y = a * y + (1 - a) * x[t]
        out.append(y)
    return torch.stack(out)


def second_order(x, a):
    y1, y2 = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    out = []
    for t in range(x.shape[0]):
        y = x[t] + a * y1 - 0.5 * a * y2
        y1, y2 = y, y1
        out.append(y)
    return torch.stack(out)


def swapped(x, a):
    p, q = x[0], x[1] * a
    for t in range(x.shape[0]):
        p, q = q, torch.sin(p) + x[t]
    return p, q


def running_max(x, a):
    m = torch.full_like(x[0], -1e9)
    s = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        new = torch.maximum(m, x[t])
        s = s * torch.exp(m - new) + torch.exp(x[t] - new)
        m = new
    return m + torch.log(s) * a


def viterbi_score(x, trans):
    v = x[0]
    for t in range(1, x.shape[0]):
        v = (v.unsqueeze(1) + trans).max(0).values + x[t]
    return v.max()


def forward_algorithm(x, trans):
    v = x[0]
    for t in range(1, x.shape[0]):
        v = torch.logsumexp(v.unsqueeze(1) + trans, 0) + x[t]
    return torch.logsumexp(v, 0)


def masked(x, w, u, h, lengths):
    for t in range(x.shape[0]):
        new = torch.tanh(x[t] @ w + h @ u)
        h = torch.where((lengths > t).unsqueeze(1), new, h)
    return h


def accumulates_beside(x, w, u, h):
    total = torch.zeros(())
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u)
        total = total + (h * h).sum()
    return total, h


def attends(x, w, u, h):
    keys = x @ w
    for t in range(x.shape[0]):
        p = torch.softmax((keys * h).sum(2), 0)
        h = torch.tanh((p.unsqueeze(2) * keys).sum(0) + h @ u + x[t] @ w)
    return h


def in_place(x, a):
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h.mul_(0.9)
        h.add_(torch.sin(x[t] + h))
    return h * a


def projected_after(x, w, u, h):
    loss = torch.zeros(())
    outs = []
    for t in range(x.shape[0]):
        h = F.relu(x[t] @ w + h @ u)
        outs.append((h @ w.t()).mean())
    return torch.stack(outs), loss + h.sum()


def gated_cumulative(x, a):
    h = torch.ones_like(x[0])
    out = []
    for t in range(x.shape[0]):
        g = torch.sigmoid(x[t] * a)
        h = g * h + (1 - g) * torch.tanh(x[t])
        out.append(h * 2)
    return torch.stack(out, -1)


def reads_the_index(x, a):
    h = torch.zeros_like(x[0])
    for t in range(x.shape[0]):
        h = torch.cos(h) + x[t] / (t + 1) * a
    return h


def norm_inside(x, w, u, h):
    for t in range(x.shape[0]):
        h = F.layer_norm(x[t] @ w + h @ u, (h.shape[1],))
    return h


def power_iteration(m, v):
    for _ in range(40):
        v = m @ v
        v = v / v.norm()
    return v @ (m @ v)


def arguments(fn: Program, n: int, b: int, i: int, h: int) -> list[torch.Tensor]:
    """Inputs of a program: n steps, batch b, i features, h hidden ones."""
    x, w, u, h0 = torch.randn(n, b, i), 0.2 * torch.randn(i, h), 0.2 * torch.randn(h, h), None
    h0 = torch.randn(b, h)
    if fn is lstm:
        w, u = 0.2 * torch.randn(i, 4 * h), 0.2 * torch.randn(h, 4 * h)
        return [x, w, u, torch.randn(4 * h), h0, torch.randn(b, h)]
    if fn is gru:
        w, u = 0.2 * torch.randn(i, 3 * h), 0.2 * torch.randn(h, 3 * h)
        return [x, w, u, torch.randn(3 * h), torch.randn(3 * h), h0]
    if fn is batch_first:
        return [x.transpose(0, 1).contiguous(), w, u, h0]
    if fn is masked:
        return [x, w, u, h0, torch.arange(b) % (n + 1)]
    if fn is power_iteration:
        return [torch.rand(h, h), torch.rand(h)]
    if fn in (viterbi_score, forward_algorithm):
        return [torch.randn(n, h), torch.randn(h, h)]
    if fn in NARROW:
        return [x, torch.rand(i)]
    return [x, w, u, h0]


NARROW = (
    filtered, second_order, swapped, running_max, in_place, gated_cumulative, reads_the_index,
)  # fmt: skip
PROGRAMS: tuple[Program, ...] = (
    rnn, lstm, gru, backwards_in_time, two_layers, batch_first, viterbi_score, forward_algorithm,
    masked, accumulates_beside, attends, projected_after, norm_inside, power_iteration, *NARROW,
)  # fmt: skip
