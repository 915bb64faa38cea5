"""Whole networks: blocks as users write them, recurrent cells, decoders."""

import math
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.language import jit
from tests.language.support import module_program, via


def _image(c: int = 3) -> Tensor:
    return torch.linspace(-1, 1, 2 * c * 8 * 8).reshape(2, c, 8, 8)


class ResidualBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: Optional[nn.Module] = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


@module_program(make=lambda: SmallResNet().eval(), args=lambda: (_image(),))
class SmallResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.Sequential(ResidualBlock(4, 4), ResidualBlock(4, 8, 2))
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.layers(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


@module_program(args=lambda: (_image(),), grad=True)
class ResNetTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = ResidualBlock(3, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x).mean(dim=[2, 3])


class SelfAttention(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(d // heads)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        b, t, d = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        att = (q @ k.transpose(-2, -1)) * self.scale
        if mask is not None:
            att = att.masked_fill(mask == 0, float("-inf"))
        y = att.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d: int, heads: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(d)
        self.ln2 = nn.LayerNorm(d)
        self.attn = SelfAttention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        x = x + self.attn(self.ln1(x), mask)
        return x + self.mlp(self.ln2(x))


@module_program(
    calls=lambda: [
        (torch.tensor([[1, 2, 3], [4, 0, 1]]),),
        via("generate", torch.tensor([[1, 2]]), 4),
    ]
)
class TinyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(7, 8)
        self.pos = nn.Parameter(torch.linspace(-1, 1, 80).reshape(1, 10, 8))
        self.blocks = nn.ModuleList([Block(8, 2) for _ in range(2)])
        self.head = nn.Linear(8, 7, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(10, 10)))

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.size(1)
        x = self.tok(ids) + self.pos[:, :t]
        for block in self.blocks:
            x = block(x, self.mask[:t, :t])
        return self.head(x)

    @jit.export
    def generate(self, ids: Tensor, n: int) -> Tensor:
        for _ in range(n):
            if ids.size(1) >= 10:
                break
            logits = self.forward(ids)[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)
        return ids


@module_program(
    make=lambda: EncoderLayer().eval(), args=lambda: (torch.linspace(-1, 1, 48).reshape(2, 3, 8),)
)
class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x)


@module_program(
    make=lambda: Vae().eval(),
    calls=lambda: [(_image(1).reshape(2, 64),), via("decode", torch.ones(1, 3))],
)
class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(64, 10)
        self.mu = nn.Linear(10, 3)
        self.logvar = nn.Linear(10, 3)
        self.dec = nn.Linear(3, 64)

    def encode(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        h = F.relu(self.enc(x))
        return self.mu(h), self.logvar(h)

    def sample(self, mu: Tensor, logvar: Tensor) -> Tensor:
        if self.training:
            return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return mu

    @jit.export
    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.dec(z))

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        mu, logvar = self.encode(x)
        y = self.decode(self.sample(mu, logvar))
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return y, kl


@module_program(args=lambda: (_image(),))
class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)])
        self.up = nn.ModuleList([nn.Conv2d(12, 4, 3, padding=1), nn.Conv2d(7, 3, 3, padding=1)])

    def forward(self, x: Tensor) -> Tensor:
        features: List[Tensor] = []
        for layer in self.down:
            features.append(x)
            x = F.max_pool2d(F.relu(layer(x)), 2)
        for layer in self.up:
            skip = features.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="nearest")
            x = layer(torch.cat([x, skip], dim=1))
        return x


class LSTMState(NamedTuple):
    h: Tensor
    c: Tensor


class LSTMCell(nn.Module):
    def __init__(self, n_in: int, n_hidden: int):
        super().__init__()
        self.wx = nn.Linear(n_in, 4 * n_hidden)
        self.wh = nn.Linear(n_hidden, 4 * n_hidden, bias=False)

    def forward(self, x: Tensor, state: LSTMState) -> Tuple[Tensor, LSTMState]:
        i, f, g, o = (self.wx(x) + self.wh(state.h)).chunk(4, 1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, LSTMState(h, c)


@module_program(args=lambda: (torch.linspace(-1, 1, 30).reshape(5, 2, 3),), grad=True)
class HandwrittenLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = LSTMCell(3, 4)

    def forward(self, xs: Tensor) -> Tuple[Tensor, LSTMState]:
        state = LSTMState(torch.zeros(xs.size(1), 4), torch.zeros(xs.size(1), 4))
        out: List[Tensor] = []
        for x in xs.unbind(0):
            h, state = self.cell(x, state)
            out.append(h)
        return torch.stack(out), state


@module_program(args=lambda: (torch.linspace(-1, 1, 30).reshape(5, 2, 3), torch.tensor([5, 3])))
class MaskedRnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, xs: Tensor, lengths: Tensor) -> Tensor:
        h = torch.zeros(xs.size(1), 4)
        for t in range(xs.size(0)):
            new = self.cell(xs[t], h)
            keep = (t < lengths).unsqueeze(1)
            h = torch.where(keep, new, h)
        return h


@module_program(args=lambda: (torch.linspace(-1, 1, 8).reshape(1, 2, 4), 6))
class GreedyDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.cell = nn.LSTMCell(8, 4)
        self.out = nn.Linear(4, 6)
        self.end = 5

    def forward(self, memory: Tensor, limit: int) -> Tuple[List[int], Tensor]:
        h = memory.mean(dim=1)
        c = torch.zeros_like(h)
        token = torch.zeros(1, dtype=torch.long)
        ids: List[int] = []
        score = torch.zeros(())
        while len(ids) < limit:
            att = torch.softmax(torch.einsum("btd,bd->bt", memory, h), dim=-1)
            context = torch.einsum("bt,btd->bd", att, memory)
            h, c = self.cell(torch.cat([self.embed(token), context], dim=1), (h, c))
            logp = F.log_softmax(self.out(h), dim=-1)
            best, token = logp.max(dim=-1)
            score = score + best[0]
            ids.append(int(token))
            if int(token) == self.end:
                break
        return ids, score


@module_program(args=lambda: (torch.linspace(-1, 1, 12).reshape(3, 4),))
class MixtureOfExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 2) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = torch.zeros(x.size(0), 2)
        for i, expert in enumerate(self.experts):
            for k in range(2):
                rows = chosen[:, k] == i
                if rows.any():
                    out[rows] += weights[rows, k].unsqueeze(1) * expert(x[rows])
        return out


@module_program(args=lambda: (_image(),))
class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Conv2d(3, 2, 1)
        self.fc2 = nn.Conv2d(2, 3, 1)

    def scale(self, x: Tensor) -> Tensor:
        s = F.adaptive_avg_pool2d(x, 1)
        return F.hardsigmoid(self.fc2(F.relu(self.fc1(s))))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x) * x


class DenseLayer(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.conv = nn.Conv2d(n, 2, 1)

    def forward(self, features: List[Tensor]) -> Tensor:
        return F.relu(self.conv(torch.cat(features, 1)))


@module_program(args=lambda: (_image(),))
class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([DenseLayer(3 + 2 * i) for i in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


@module_program(args=lambda: (_image(),))
class FeaturePyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleDict({"c2": nn.Conv2d(3, 4, 3, 2, 1), "c3": nn.Conv2d(4, 4, 3, 2, 1)})
        self.lateral = nn.ModuleList([nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)])

    def forward(self, x: Tensor) -> Dict[str, Tensor]:
        feats: Dict[str, Tensor] = {}
        for name, layer in self.body.items():
            x = F.relu(layer(x))
            feats[name] = x
        names = list(feats.keys())
        xs = list(feats.values())
        results = [self.lateral[1](xs[-1])]
        top = F.interpolate(results[0], size=xs[0].shape[-2:], mode="nearest")
        results.insert(0, self.lateral[0](xs[0]) + top)
        return {k: v for k, v in zip(names, results)}


@module_program(
    args=lambda: (
        torch.linspace(-1, 1, 12).reshape(4, 3),
        torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]),
    )
)
class GraphNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(6, 3)
        self.update = nn.GRUCell(3, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges[0], edges[1]
        for _ in range(2):
            m = torch.relu(self.message(torch.cat([x[src], x[dst]], dim=1)))
            agg = torch.zeros_like(x).index_add(0, dst, m)
            x = self.update(agg, x)
        return x


@module_program(args=lambda: (torch.linspace(0, 1, 6).reshape(2, 3),), grad=True)
class CouplingFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.nets = nn.ModuleList([nn.Linear(1, 4), nn.Linear(1, 4)])

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        logdet = torch.zeros(x.size(0))
        for i, net in enumerate(self.nets):
            a, b = x[:, :1], x[:, 1:]
            s, t = net(a).split(2, dim=1)
            s = torch.tanh(s)
            b = b * torch.exp(s) + t
            logdet = logdet + s.sum(dim=1)
            x = torch.cat([b, a], dim=1) if i % 2 == 0 else torch.cat([a, b], dim=1)
        return x, logdet


@module_program(args=lambda: (torch.linspace(-1, 1, 3).reshape(1, 3), 1e-3))
class FixedPointLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.eye(3) * 0.3)

    def forward(self, x: Tensor, tol: float) -> Tuple[Tensor, int]:
        z = torch.zeros_like(x)
        steps = 0
        while steps < 50:
            new = torch.tanh(z @ self.w + x)
            steps += 1
            if bool((new - z).abs().max() < tol):
                return new, steps
            z = new
        return z, steps


@module_program(
    calls=lambda: [
        (torch.linspace(-1, 1, 8).reshape(2, 4), None),
        (torch.linspace(-1, 1, 8).reshape(2, 4), torch.tensor([1, 0])),
    ]
)
class ClassifierWithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.smoothing = 0.1

    def forward(self, x: Tensor, y: Optional[Tensor] = None) -> Dict[str, Tensor]:
        logits = self.fc(x)
        out = {"logits": logits, "probs": F.softmax(logits, -1)}
        if y is not None:
            out["loss"] = F.cross_entropy(logits, y, label_smoothing=self.smoothing)
            out["accuracy"] = (logits.argmax(-1) == y).float().mean()
        return out
