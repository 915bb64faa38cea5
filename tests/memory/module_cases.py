"""Modules whose predicted peak is compared with the measured one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.memory.case_table import module


@module("linear", lambda: (torch.rand(4000, 512),))
def linear() -> nn.Module:
    return nn.Linear(512, 512)


@module("mlp", lambda: (torch.rand(3000, 256),))
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))


@module("mlp with dropout", lambda: (torch.rand(3000, 256),))
def mlp_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.3), nn.Linear(1024, 256), nn.LayerNorm(256)
    )


@module("convolutions", lambda: (torch.rand(4, 8, 96, 96),))
def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
    )


@module("transformer layer", lambda: (torch.rand(4, 256, 128),))
def transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)


@module("lstm_deep", lambda: (torch.rand(200, 8, 40),))
def lstm_deep() -> nn.Module:
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(40, 64, num_layers=2, bidirectional=True, bias=False)

        def forward(self, x):
            y, (h, c) = self.rnn(x)
            return torch.tanh(y).sum(0) + h.sum() * c.sum()

    return Encoder()


@module("checkpoints", lambda: (torch.rand(4000, 128),))
def checkpoints() -> nn.Module:
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            layers = (nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)),) * 3
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = x + checkpoint(layer, x.cumsum(1), use_reentrant=False)
            return x

    return Deep()


@module("lstm", lambda: (torch.rand(16, 60, 64),))
def lstm() -> nn.Module:
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(64, 128, batch_first=True)
            self.out = nn.Linear(128, 50)

        def forward(self, x):
            return self.out(self.rnn(x)[0])

    return Tagger()


class Directions(nn.Module):
    """What a recurrent module gives for each step."""

    def __init__(self, rnn: nn.Module):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return self.rnn(x)[0]


@module("gru", lambda: (torch.rand(6, 800, 64),))
def gru() -> nn.Module:
    return Directions(nn.GRU(64, 128, num_layers=2, bidirectional=True))


@module("encoder at rest", lambda: (torch.rand(8, 300, 128),))
def encoder_at_rest() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 8, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@module("bags", lambda: (torch.randint(0, 20_000, (4000, 64)),))
def bags() -> nn.Module:
    return nn.EmbeddingBag(20_000, 128)


@module("groups of channels", lambda: (torch.rand(8, 24, 96, 96),))
def groups_of_channels() -> nn.Module:
    return nn.Conv2d(24, 48, 3, padding=1, groups=4)


@module("masked attention", lambda: (torch.rand(8, 400, 128),))
def masked_attention() -> nn.Module:
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = nn.MultiheadAttention(128, 8, batch_first=True)

        def forward(self, x):
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            return self.attend(x, x, x, attn_mask=mask, need_weights=False)[0]

    return Masked()


class Block(nn.Module):
    """A transformer block as people write it."""

    def __init__(self, width: int = 128, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, -1)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        a = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(c // self.heads), -1)
        x = x + self.proj((a @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


@module("block", lambda: (torch.rand(6, 400, 128),))
def block() -> nn.Module:
    return Block()


class Unet(nn.Module):
    """Down, up, and a skip connection."""

    def __init__(self, c: int = 16):
        super().__init__()
        self.first = nn.Conv2d(3, c, 3, padding=1)
        self.down = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.last = nn.Conv2d(2 * c, 3, 3, padding=1)

    def forward(self, x):
        a = torch.relu(self.first(x))
        b = torch.relu(self.down(F.max_pool2d(a, 2)))
        return self.last(torch.cat([a, self.up(b)], 1))


@module("unet", lambda: (torch.rand(4, 3, 128, 128),))
def unet() -> nn.Module:
    return Unet()
