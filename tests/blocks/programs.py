"""Programs whose kernels for GPUs are checked: a function, and arguments for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`sizes` of random inputs; `more`: other arguments, made by a function of a generator."""

    fn: Callable[..., Any]
    sizes: tuple[tuple[int, ...], ...] = ()
    more: Callable[[], tuple[Any, ...]] = tuple
    dtype: torch.dtype = torch.float32
    grad: bool = True
    tolerance: float = 2e-4

    def arguments(self) -> list[Any]:
        """The same ones each time."""
        torch.manual_seed(0)
        made = [torch.randn(s, dtype=torch.float64).to(self.dtype) for s in self.sizes]
        return [*made, *self.more()]


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return torch.relu(x * w + 0.5).exp() - x.sigmoid()


def broadcast(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x[:, None], y[None, :, 0]).t().contiguous() * 2


def rows(x: Tensor) -> tuple[Tensor, ...]:
    return x.sum(1), x.amax(1), x.mean(0), x.std(), x.prod(1)


def places(x: Tensor) -> tuple[Tensor, ...]:
    return x.argmax(1), x.argmin(), (x > 2).any(0), (x > -9).all(), x.max(0).values


def boxes(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    return shared / (area_a[:, None] + area_b[None] - shared).clamp(min=1e-3)


def chamfer(x: Tensor, y: Tensor) -> Tensor:
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def kernel_sum(x: Tensor, y: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    places = torch.arange(n, device=q.device)
    keep = places[:, None] >= places[None, :]
    s = (q @ k.transpose(-1, -2)).masked_fill(~keep, float("-inf"))
    return torch.softmax(s, -1) @ v


def loss(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.t(), target)


def divergence(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1))).sum(1).mean()


def viterbi(step: Tensor, seen: Tensor) -> Tensor:
    best = seen[0]
    for t in range(1, seen.shape[0]):
        best = (best[:, None] + step).amax(0) + seen[t]
    return best


def normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


def channels(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, None, None, w, b, training=True))


def looked_up(table: Tensor, index: Tensor) -> Tensor:
    return table[index].sum(1)


def tied(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """To the gradient of the table two scatters and a product."""
    return torch.tanh(table[first].sum(1) @ table.t()) + table[second[:, 0], 3][:, None]


def added(x: Tensor, v: Tensor, index: Tensor) -> Tensor:
    return torch.tanh(x.index_add(0, index, v.exp() * v.sum(1, keepdim=True), alpha=0.5))


def added_one_by_one(x: Tensor, v: Tensor, index: Tensor) -> Tensor:
    return x.scatter_add(0, index[:, None].expand_as(v), v * v)


def counted(index: Tensor) -> Tensor:
    ones = torch.ones(350, dtype=torch.int64, device=index.device)
    return torch.zeros(100, dtype=torch.int64, device=index.device).index_add(0, index, ones)


def nearest(x: Tensor, y: Tensor) -> Tensor:
    return ((x[:, None] - y[None]) ** 2).sum(-1).min(1).values


def columns(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("nij,nik->jk", x, w)


def squares(x: Tensor, w: Tensor) -> Tensor:
    """Of its gradient some factors have one axis that is kept, and not the one summed over."""
    return (x.t() @ x) @ (w.t() @ w)


def conv(x: Tensor, w: Tensor) -> Tensor:
    n, _, h, width = x.shape
    o, _, k, _ = w.shape
    windows = F.unfold(x, k)
    return (w.view(o, -1) @ windows).view(n, o, h - k + 1, width - k + 1)


def rnn(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w * 0.1 + h @ u * 0.1)
    return h


def lstm(x: Tensor, w: Tensor, u: Tensor, h: Tensor, c: Tensor) -> Tensor:
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        i, f, g, o = (x[t] @ w * 0.1 + h @ u * 0.1).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        out.append(h)
    return torch.stack(out)


def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x // y, x % y, x & y, (x << 1) ^ y, x.sum(0), (x * y).amax()


def strange(x: Tensor) -> tuple[Tensor, ...]:
    return x.erf(), x.atan2(x + 1), x.abs().log1p(), x.fmod(0.7), x.remainder(0.7), x.round()


def strided(x: Tensor) -> Tensor:
    return x[::2, 1:].flip(1).reshape(-1) * 2


def bottleneck(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ w
    return F.gelu(y + b), y.softmax(1).sum(0)


def _boxes() -> tuple[Tensor, Tensor]:
    return torch.rand(70, 4), torch.rand(50, 4)


def _target() -> tuple[Tensor]:
    return (torch.randint(0, 90, (70,)),)


def _indices() -> tuple[Tensor]:
    return (torch.randint(0, 100, (50, 7)),)


def _flat_indices() -> tuple[Tensor]:
    return (torch.randint(0, 100, (350,)),)


def _two_indices() -> tuple[Tensor, Tensor]:
    return torch.randint(-100, 100, (50, 7)), torch.randint(-100, 100, (50, 2))


def _integers() -> tuple[Tensor, Tensor]:
    return torch.randint(-50, 50, (40, 36)), torch.randint(1, 9, (40, 36))


CASES: dict[str, Case] = {
    "scaled": Case(fn=scaled, sizes=((70, 40), (40,))),
    "scaled-f64": Case(fn=scaled, sizes=((70, 40), (40,)), dtype=torch.float64, tolerance=1e-12),
    "scaled-bf16": Case(fn=scaled, sizes=((70, 40), (40,)), dtype=torch.bfloat16, tolerance=2e-2),
    "scaled-f16": Case(fn=scaled, sizes=((70, 40), (40,)), dtype=torch.float16, tolerance=3e-3),
    "broadcast": Case(fn=broadcast, sizes=((40,), (50, 2))),
    "rows": Case(fn=rows, sizes=((70, 40),)),
    "rows-long": Case(fn=rows, sizes=((3, 9000),), grad=False, tolerance=1e-3),
    "places": Case(fn=places, sizes=((70, 40),), grad=False),
    "places-long": Case(fn=places, sizes=((9000, 3),), grad=False),
    "boxes": Case(fn=boxes, more=_boxes),
    "chamfer": Case(fn=chamfer, sizes=((70, 3), (90, 3))),
    "kernel-sum": Case(fn=kernel_sum, sizes=((70, 3), (90, 3), (90, 40))),
    "attention": Case(fn=attention, sizes=((2, 70, 40), (2, 90, 40), (2, 90, 40))),
    "attention-bf16": Case(
        fn=attention, sizes=((70, 40), (90, 40), (90, 40)), dtype=torch.bfloat16, tolerance=3e-2
    ),
    "causal": Case(fn=causal, sizes=((70, 40), (70, 40), (70, 40))),
    "loss": Case(fn=loss, sizes=((70, 40), (90, 40)), more=_target),
    "divergence": Case(fn=divergence, sizes=((40, 50), (40, 50))),
    "viterbi": Case(fn=viterbi, sizes=((36, 36), (34, 36))),
    "normed": Case(fn=normed, sizes=((70, 90), (90,), (90,))),
    "channels": Case(fn=channels, sizes=((5, 3, 20, 7), (3,), (3,)), tolerance=1e-3),
    "looked-up": Case(fn=looked_up, sizes=((100, 40),), more=_indices),
    "looked-up-f64": Case(
        fn=looked_up, sizes=((100, 40),), more=_indices, dtype=torch.float64, tolerance=1e-12
    ),
    "looked-up-f16": Case(
        fn=looked_up, sizes=((100, 40),), more=_indices, dtype=torch.float16, tolerance=3e-3
    ),
    "tied": Case(fn=tied, sizes=((100, 40),), more=_two_indices, tolerance=1e-3),
    "added": Case(fn=added, sizes=((100, 40), (350, 40)), more=_flat_indices, tolerance=1e-3),
    "added-f64": Case(
        fn=added,
        sizes=((100, 40), (350, 40)),
        more=_flat_indices,
        dtype=torch.float64,
        tolerance=1e-11,
    ),
    "added-one-by-one": Case(
        fn=added_one_by_one, sizes=((100, 40), (350, 40)), more=_flat_indices, tolerance=1e-3
    ),
    "counted": Case(fn=counted, more=_flat_indices, grad=False),
    "nearest": Case(fn=nearest, sizes=((70, 3), (90, 3))),
    "columns": Case(fn=columns, sizes=((40, 100, 40), (40, 100, 36)), tolerance=2e-3, grad=False),
    "squares": Case(fn=squares, sizes=((50, 40), (1, 40)), tolerance=2e-3),
    "conv": Case(fn=conv, sizes=((1, 3, 20, 20), (8, 3, 3, 3))),
    "conv-products": Case(fn=conv, sizes=((1, 20, 7, 7), (20, 20, 3, 3)), tolerance=1e-3),
    "rnn": Case(fn=rnn, sizes=((33, 4, 36), (36, 36), (36, 36), (4, 36)), tolerance=2e-3),
    "lstm": Case(
        fn=lstm, sizes=((5, 4, 36), (36, 144), (36, 144), (4, 36), (4, 36)), tolerance=2e-3
    ),
    "integers": Case(fn=integers, more=_integers, grad=False),
    "strange": Case(fn=strange, sizes=((40, 36),), grad=False),
    "strided": Case(fn=strided, sizes=((70, 40),)),
    "bottleneck-of-none": Case(fn=bottleneck, sizes=((30, 0), (0, 20), (20,))),
}
