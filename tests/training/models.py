"""Models written by hand, small: what `test_curves` trains compiled and in eager mode."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt


def weight(*shape: int, scale: float = 0.15) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * scale)


class Conv(nn.Module):
    """A convolution as loops over channels, on windows, with pooling and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels = weight(4, 1, 9)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w = x.shape[0], x.shape[2] - 2, x.shape[3] - 2
        windows = F.unfold(x, 3).view(n, x.shape[1], 9, h * w)
        maps = torch.zeros(n, self.kernels.shape[0], h * w)
        for c in range(x.shape[1]):
            for o in range(self.kernels.shape[0]):
                maps[:, o] += self.kernels[o, c] @ windows[:, c]
        return self.head(torch.relu(maps).mean(2))


class LSTM(nn.Module):
    """A step of the textbook in a loop; the last state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u, self.b = weight(36, 160), weight(40, 160), nn.Parameter(torch.zeros(160))
        self.head = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], self.u.shape[0])
        c = torch.zeros_like(h)
        for t in range(x.shape[0]):
            i, f, g, o = (x[t] @ self.w + h @ self.u + self.b).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(h)


class GRU(lt.ScriptModule):
    """The class style; all states are read."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u, self.b = weight(36, 120), weight(40, 120), nn.Parameter(torch.zeros(120))
        self.head = nn.Linear(40, 3)

    @lt.script_method
    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], self.u.shape[0])
        states = []
        for t in range(x.shape[0]):
            r0, z0, n0 = (x[t] @ self.w + self.b).chunk(3, 1)
            r1, z1, n1 = (h @ self.u).chunk(3, 1)
            z = torch.sigmoid(z0 + z1)
            h = (1 - z) * torch.tanh(n0 + torch.sigmoid(r0 + r1) * n1) + z * h
            states.append(h)
        return self.head(torch.stack(states).mean(0))


class Transformer(nn.Module):
    """Attention and a feed-forward part, with norms before each."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(36, 120), nn.Linear(40, 36)
        self.up, self.down = nn.Linear(36, 50), nn.Linear(50, 36)
        self.first, self.second = nn.LayerNorm(36), nn.LayerNorm(36)
        self.head = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        attention = torch.softmax(q @ k.transpose(-2, -1) / 40**0.5, -1)
        x = x + self.out(attention @ v)
        x = x + self.down(F.gelu(self.up(self.second(x))))
        return self.head(x.mean(1))


class MLP(nn.Module):
    """Two layers, batch norm by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(36, 40), nn.Linear(40, 3)
        self.scale = nn.Parameter(torch.ones(40))

    def forward(self, x: Tensor) -> Tensor:
        h = self.up(x)
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * self.scale
        return self.down(torch.relu(h))
