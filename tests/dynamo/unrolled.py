"""Functions with Python loops, as users write them: what captures and traces unroll."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

STEPS = 6


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h, outs = torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.a(x[:, t]) + self.b(h))
            outs.append(h)
        return torch.stack(outs, 1), h


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(3 + 4, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 4)
        c, outs = torch.zeros_like(h), []
        for step in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([step, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, dim=1) + c[:, None]


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(3, 12), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        h, outs = torch.zeros(x.shape[0], 4), []
        for step in x.transpose(0, 1):
            (r, z, n), (a, b, c) = self.w(step).chunk(3, 1), self.u(h).chunk(3, 1)
            z = torch.sigmoid(z + b)
            h = (1 - z) * torch.tanh(n + torch.sigmoid(r + a) * c) + z * h
            outs.append(h.unsqueeze(0))
        return torch.cat(outs)


class Cells(nn.Module):
    """Two layers, in one loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.GRUCell(3, 4), nn.LSTMCell(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 4)
        state = (h, h)
        for t in range(2 * STEPS):
            h = self.a(x[:, 0] * (t + 1), h)
            state = self.b(h, state)
        return state[0] * state[1]


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, 0]
        for _ in range(10):
            y = y + 0.1 * self.f(y + 0.05 * self.f(y))
        return y


class Denoise(nn.Module):
    """Random numbers in all steps but the last."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(3, 3)
        self.register_buffer("beta", torch.linspace(0.1, 0.2, STEPS))

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, 0]
        for t in reversed(range(STEPS)):
            y = (y - self.beta[t] * torch.tanh(self.f(y))) / torch.sqrt(1 - self.beta[t])
            if t > 0:
                y = y + torch.sqrt(self.beta[t]) * torch.randn_like(y)
        return y


class Layers(nn.Module):
    """No loop: each has weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def table(x: Tensor) -> Tensor:
    out = torch.zeros(STEPS, x.shape[0], 3)
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h * 1.5 - x[:, STEPS - 1 - t])
        out[t] = h
    return out


def image(x: Tensor) -> Tensor:
    w = x[0, :5, 0].outer(x[1, :5, 1])
    picture = x.sum(-1) @ x.sum(-1).t() + torch.linspace(0, 1, 12)[:, None]
    picture = picture.repeat(1, 4)[:, :12]
    out = torch.zeros(8, 8)
    for i in range(5):
        for j in range(5):
            out = out + picture[i : i + 8, j : j + 8] * w[i, j]
    return out


def two_back(x: Tensor) -> Tensor:
    a, b = x[:, 0], x[:, 1]
    for t in range(2, STEPS):
        a, b = b, torch.sin(a) * 0.5 + b * x[:, t]
    return a - b


def descent(x: Tensor) -> Tensor:
    a, b = x[0].t() @ x[0], x[0, 0]
    y = torch.zeros_like(b)
    for _ in range(8):
        y = y - 0.05 * (a @ y - b)
    return y


def lengths(x: Tensor) -> Tensor:
    """Rows end one by one, as padded sequences do: steps are compared, and made tensors of."""
    ends = (x[:, 0, 0] * STEPS).long()
    h, outs = x[:, 0], []
    for t in range(STEPS):
        new = torch.tanh(h * 1.5 - x[:, t]) + torch.full((x.shape[0], 1), t) * 0.1
        h = torch.where((t < ends)[:, None], new, h)
        outs.append(h.masked_fill((ends == t)[:, None], t))
    return torch.stack(outs)


Case = tuple[str, Callable[..., Any], int]
# name, function or module of x: [B, STEPS, 3], the loops that are left, nested ones too
CASES: Sequence[Case] = (
    ("rnn", Rnn(), 1),
    ("lstm", Lstm(), 1),
    ("gru", Gru(), 1),
    ("cells", Cells(), 1),
    ("flow", Flow(), 1),
    ("denoise", Denoise(), 1),
    ("layers", Layers(), 0),
    ("table", table, 1),
    ("image", image, 2),
    ("two_back", two_back, 1),
    ("descent", descent, 1),
    ("lengths", lengths, 1),
)
