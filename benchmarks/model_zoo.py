"""Models as people write them, at small sizes, for `benchmarks.models`.

In: nothing. Out: `MODELS`: for each name what makes the module, and what makes its arguments. The
loss of a training step is the mean of the squares of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Model:
    """`make`: the module; `inputs`: the arguments of one call."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


class Attention(nn.Module):
    """Heads of 32; `is_causal` for language models."""

    def __init__(self, width: int, is_causal: bool) -> None:
        super().__init__()
        self.heads = width // 32
        self.is_causal = is_causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).reshape(b, n, width))


def feed_forward(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    """A layer of a transformer, normed before (GPT, ViT) or after (BERT)."""

    def __init__(self, width: int, is_causal: bool = False, is_post: bool = False) -> None:
        super().__init__()
        self.is_post = is_post
        self.attention = Attention(width, is_causal)
        self.mlp = feed_forward(width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_post:
            x = self.n1(x + self.attention(x))
            return self.n2(x + self.mlp(x))
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


class Language(nn.Module):
    """Embeddings, layers, and a head of 1,000 words."""

    def __init__(self, width: int, layers: list[nn.Module], length: int = 128) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        return self.head(self.norm(self.layers(x)))


def bert() -> nn.Module:
    return Language(256, [Block(256, is_post=True) for _ in range(4)])


def gpt() -> nn.Module:
    return Language(256, [Block(256, is_causal=True) for _ in range(4)])


class PlainAttention(nn.Module):
    """Causal attention by products and a softmax, as in hand-written GPTs."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))
        self.mask: Tensor

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = (
            y.view(b, n, self.heads, -1).transpose(1, 2) for y in self.qkv(x).split(width, 2)
        )
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        weights = F.softmax(scores.masked_fill(self.mask[:n, :n] == 0, float("-inf")), -1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, n, width))


class PlainBlock(Block):
    def __init__(self, width: int, length: int) -> None:
        super().__init__(width)
        self.attention = PlainAttention(width, length)  # pyright: ignore


def plain_gpt() -> nn.Module:
    return Language(128, [PlainBlock(128, 64) for _ in range(4)], 64)


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotated(x: Tensor) -> Tensor:
    """Rotary places, of x: [batch, heads, length, size]."""
    n, size = x.shape[-2:]
    rates = 10_000.0 ** (-torch.arange(0, size, 2, device=x.device) / size)
    angles = torch.arange(n, device=x.device)[:, None] * rates
    cos, sin = angles.cos(), angles.sin()
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class LlamaBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 32
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.n1, self.n2 = RMSNorm(width), RMSNorm(width)
        self.mlp = SwiGLU(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, width))
        return x + self.mlp(self.n2(x))


def llama() -> nn.Module:
    return Language(256, [LlamaBlock(256) for _ in range(4)])


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 8, 8)
        self.places = nn.Parameter(torch.zeros(1, 64, 192))
        self.layers = nn.Sequential(*[Block(192) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(x)).mean(1))


def convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        conv = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Residual(nn.Module):
    """A basic block of a ResNet; `groups`: of the first convolution."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False, groups=groups)
        self.c2 = nn.Conv2d(channels, channels, 3 if groups == 1 else 1, bias=False,
                            padding=1 if groups == 1 else 0)  # fmt: skip
        self.b1, self.b2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.b1(self.c1(x)))
        return F.relu(x + self.b2(self.c2(y)))


def resnet() -> nn.Module:
    body = [Residual(32) for _ in range(4)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *body, *head)


def depthwise() -> nn.Module:
    body = [Residual(64, groups=64) for _ in range(4)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *body, *head)


class UNet(nn.Module):
    """Two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2, self.mid = self.pair(3, 16), self.pair(16, 32), self.pair(32, 64)
        self.up2, self.up1 = (nn.ConvTranspose2d(c, c // 2, 2, 2) for c in (64, 32))
        self.u2, self.u1 = self.pair(64, 32), self.pair(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def pair(before: int, after: int) -> nn.Sequential:
        found: list[nn.Module] = []
        for n in (before, after):
            found += [nn.Conv2d(n, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU()]
        return nn.Sequential(*found)

    def forward(self, x: Tensor) -> Tensor:
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        y = self.up2(self.mid(F.max_pool2d(b, 2)))
        y = self.up1(self.u2(torch.cat([y, b], 1)))
        return self.head(self.u1(torch.cat([y, a], 1)))


class MixerBlock(nn.Module):
    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.tokens, self.channels = feed_forward(length), feed_forward(width)
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.n2(x))


def mixer() -> nn.Module:
    return nn.Sequential(*[MixerBlock(196, 256) for _ in range(4)])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 512))


class SwiGLUBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = RMSNorm(512), SwiGLU(512, 1024)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Transformer(128, 4, 2, 2, 256, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model(x, y)


class Messages(nn.Module):
    """A layer of a graph network: what neighbours send is added up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.send, self.own = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        sent = torch.zeros_like(h).index_add(0, target, self.send(h)[source])
        return F.relu(self.own(h) + sent)


class GraphNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Messages(64) for _ in range(3)])

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h, edges)
        return h


class Conformer(nn.Module):
    """Two blocks: half a feed-forward, attention, a convolution over time, another half."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.ModuleList([_ConformerBlock(width) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class _ConformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.f1, self.f2 = self.half(width), self.half(width)
        self.na, self.attention = nn.LayerNorm(width), Attention(width, False)
        self.nc, self.wide = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 15, padding=7, groups=width)
        self.bn, self.narrow = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.norm = nn.LayerNorm(width)

    @staticmethod
    def half(width: int) -> nn.Sequential:
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        return nn.Sequential(nn.LayerNorm(width), up, nn.SiLU(), down)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.f1(x)
        x = x + self.attention(self.na(x))
        y = F.glu(self.wide(self.nc(x).transpose(1, 2)), 1)
        x = x + self.narrow(F.silu(self.bn(self.depth(y)))).transpose(1, 2)
        return self.norm(x + 0.5 * self.f2(x))


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def _tokens(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randint(0, 1000, shape),)


MODELS: Mapping[str, Model] = {
    "BERT": Model(make=bert, inputs=_tokens(8, 128)),
    "GPT-2": Model(make=gpt, inputs=_tokens(4, 128)),
    "Llama": Model(make=llama, inputs=_tokens(4, 128)),
    "ViT": Model(make=ViT, inputs=_normal(8, 3, 64, 64)),
    "conv + batch norm": Model(make=convolutions, inputs=_normal(8, 3, 64, 64)),
    "MLP-Mixer": Model(make=mixer, inputs=_normal(8, 196, 256)),
    "Linear-GELU-LayerNorm": Model(make=mlp, inputs=_normal(2048, 512)),
    "RMSNorm + SwiGLU": Model(make=SwiGLUBlock, inputs=_normal(2048, 512)),
    "plain GPT": Model(make=plain_gpt, inputs=_tokens(8, 64)),
    "encoder-decoder": Model(
        make=EncoderDecoder, inputs=lambda: (torch.randn(4, 64, 128), torch.randn(4, 48, 128))
    ),
    "ResNet": Model(make=resnet, inputs=_normal(4, 3, 32, 32)),
    "depthwise net": Model(make=depthwise, inputs=_normal(4, 3, 32, 32)),
    "U-Net": Model(make=UNet, inputs=_normal(2, 3, 64, 64)),
    "graph net": Model(
        make=GraphNet, inputs=lambda: (torch.randn(2000, 64), torch.randint(0, 2000, (2, 16_000)))
    ),
    "conformer": Model(make=Conformer, inputs=_normal(4, 100, 128)),
}
