"""Programs of pairs as users write them, for `benchmarks.patterns`.

Each is plain PyTorch code after a kind of report in public issue trackers, with sizes at which the
tensor of pairs has 40 to 60 MB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """`source`: the report, or the kind of program; `is_training`: a call has a backward pass."""

    name: str
    source: str
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: Callable[[], Inputs]
    is_training: bool = False


def _points(*sizes: tuple[int, ...]) -> Callable[[], Inputs]:
    return lambda: tuple(torch.randn(size) for size in sizes)


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def nearest(a: Tensor, b: Tensor) -> Tensor:
    return squared(a, b).amin(1)


def knn(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = squared(a, b).topk(8, dim=1, largest=False)
    return values.sqrt(), indices


def knn_of_products(x: Tensor) -> Tensor:
    inner = -2 * torch.matmul(x, x.transpose(1, 0))
    norms = (x**2).sum(1, keepdim=True)
    return (-norms - inner - norms.transpose(1, 0)).topk(20, dim=-1)[1]


def sorted_rows(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b).sort(dim=1)[0][:, :5]


def nearest_first(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, b).argsort(dim=1)[:, :5]


def typical(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.cdist(a, b)
    return d.median(dim=1)[0], d.kthvalue(3, dim=1)[0]


def quantiles(a: Tensor, b: Tensor) -> Tensor:
    return torch.quantile(squared(a, b), 0.05, dim=1)


def histogram(a: Tensor, b: Tensor) -> Tensor:
    return torch.histc(torch.cdist(a, b), bins=64, min=0.0, max=8.0)


def counted(scores: Tensor, labels: Tensor, thresholds: Tensor) -> Tensor:
    above = (scores[:, None] >= thresholds[None]).long()
    places = above + 2 * labels.long()[:, None] + 4 * torch.arange(len(thresholds))
    return torch.bincount(places.flatten(), minlength=4 * len(thresholds)).view(-1, 2, 2)


def added(a: Tensor, b: Tensor) -> Tensor:
    weight = torch.exp(-squared(a, b))
    cell = (b[:, 0] * 4).long().clamp(-8, 7) + 8
    return torch.zeros(len(a), 16).index_add(1, cell, weight)


def close_pairs(a: Tensor, b: Tensor) -> Tensor:
    return torch.nonzero(squared(a, b) < 0.02)


def mean_of_close(a: Tensor, b: Tensor) -> Tensor:
    d = torch.cdist(a, b)
    return d[d < 1.0].mean()


def not_itself(a: Tensor) -> Tensor:
    d = squared(a, a)
    d.fill_diagonal_(float("inf"))
    return d.argmin(1)


def clipped(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    d[d > 4.0] = 4.0
    return d.mean(1)


def left_out(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    d = squared(a, b)
    d[rows, columns] = 0.0
    return d.sum(1)


def positives_left_out(a: Tensor, b: Tensor, labels: Tensor) -> Tensor:
    d = squared(a, b)
    d[torch.arange(len(a)), labels] = float("inf")
    return d.amin(1)


def solid_angles(points: Tensor, triangles: Tensor) -> Tensor:
    rays = triangles[None] - points[:, None, None]
    a, b, c = rays.unbind(2)
    la, lb, lc = a.norm(dim=-1), b.norm(dim=-1), c.norm(dim=-1)
    above = (a * torch.cross(b, c, dim=-1)).sum(-1)
    below = la * lb * lc + (a * b).sum(-1) * lc + (b * c).sum(-1) * la + (c * a).sum(-1) * lb
    return torch.atan2(above, below).sum(1) / (2 * math.pi)


def mahalanobis(x: Tensor, mean: Tensor, factors: Tensor) -> Tensor:
    covariance = factors @ factors.transpose(1, 2) + torch.eye(3)
    difference = x[:, None] - mean[None]
    moved = torch.linalg.solve(covariance[None], difference[..., None])[..., 0]
    return (difference * moved).sum(-1).amin(1)


def summed_paths(gain: Tensor, delay: Tensor, frequency: Tensor) -> Tensor:
    phase = torch.exp(-2j * math.pi * delay[:, None, :] * frequency[None, :, None])
    return (gain[:, None, :] * phase).sum(-1).abs()


def volume(density: Tensor, ends: Tensor, colours: Tensor) -> Tensor:
    opacity = 1 - torch.exp(-F.relu(density[:, None] - ends[None]))
    passed = torch.cumprod(1 - opacity + 1e-6, dim=1)
    return (opacity * passed) @ colours


def checked(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    assert d.min() >= 0
    return (d * torch.exp(-d)).sum(1)


def diagonal_loss(a: Tensor, b: Tensor) -> Tensor:
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inner = (high - low).clamp(min=0).prod(-1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    return (1 - (inner / (area_a[:, None] + area_b[None] - inner)).diagonal()).mean()


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + bias
    return (scores.softmax(-1) @ v).square().mean()


def late_interaction(queries: Tensor, documents: Tensor) -> Tensor:
    best = torch.einsum("qtd,nsd->qnts", queries, documents).max(-1)[0]
    return best.sum(-1).logsumexp(-1).mean()


def sinkhorn(a: Tensor, b: Tensor) -> Tensor:
    cost = squared(a, b)
    f, g = torch.zeros(len(a)), torch.zeros(len(b))
    for _ in range(20):
        f = -0.1 * torch.logsumexp((g[None] - cost) / 0.1, 1)
        g = -0.1 * torch.logsumexp((f[:, None] - cost) / 0.1, 0)
    return f.mean() + g.mean()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        d = squared(a, b)
        total = torch.exp(-d / 0.5)
        for width in (1.0, 2.0, 4.0):
            total = total + torch.exp(-d / width)
        return total.mean()

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def semi_hard(x: Tensor, labels: Tensor) -> Tensor:
    d = torch.cdist(x, x)
    same = labels[:, None] == labels[None]
    gap = d[:, None, :] - d[:, :, None]
    valid = same[:, :, None] & ~same[:, None, :] & (gap > 0) & (gap < 0.5)
    return (F.relu(0.5 - gap) * valid).sum() / valid.sum().clamp(min=1)


def chosen_and_entropy(h: Tensor, w: Tensor, target: Tensor) -> Tensor:
    logp = (h @ w.t()).log_softmax(-1)
    chosen = logp.gather(-1, target[:, None])[:, 0]
    entropy = -(logp.exp() * logp).sum(-1)
    return -(chosen + 0.01 * entropy).mean()


def penalised(h: Tensor, w: Tensor, target: Tensor) -> Tensor:
    logits = h @ w.t()
    return F.cross_entropy(logits, target) + 1e-4 * logits.logsumexp(-1).square().mean()


def splines(x: Tensor, weight: Tensor) -> Tensor:
    grid = torch.linspace(-2.2, 2.2, 12)
    x = x[..., None]
    bases = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
    for k in range(1, 4):
        left = (x - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1]) * bases[..., :-1]
        right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k]) * bases[..., 1:]
        bases = left + right
    return (bases.flatten(1) @ weight).square().mean()


def forces(x: Tensor) -> Tensor:
    d = squared(x, x) + 1.0
    energy = (1 / d**3 - 1 / d).sum() / 2
    (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
    return gradient.square().mean()


def per_image(boxes: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    cost = torch.cdist(boxes.flatten(0, 1), targets.flatten(0, 1), p=1.0)
    cost = cost.view(boxes.shape[0], boxes.shape[1], -1)
    return tuple(c[i].amin(0) for i, c in enumerate(cost.split(targets.shape[1], -1)))


def spread(x: Tensor) -> Tensor:
    """The energy of points on a sphere."""
    return F.pdist(F.normalize(x)).reciprocal().sum()


def redundancy(x: Tensor) -> Tensor:
    """How much features repeat each other."""
    c = torch.corrcoef(x.T)
    return (c.square().sum() - c.diagonal().square().sum()) / c.shape[0]


def each_pair_once(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return torch.exp(-(x[i] - x[j]).square().sum(-1)).mean()


def printed_between(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    if d.amin().item() < 0:
        print("negative")
    return d.amin(1).mean()


_PAIRS = _points((4000, 3), (3000, 3))

PATTERNS = (
    Pattern(name="nearest", source="chamfer distance", call=nearest, inputs=_PAIRS),
    Pattern(name="k nearest", source="k-NN graphs", call=knn, inputs=_PAIRS),
    Pattern(
        name="k nearest, products",
        source="dgcnn 79",
        call=knn_of_products,
        inputs=_points((3400, 64)),
    ),
    Pattern(name="sort, first five", source="re-identification", call=sorted_rows, inputs=_PAIRS),
    Pattern(name="argsort, first five", source="retrieval", call=nearest_first, inputs=_PAIRS),
    Pattern(
        name="median, kthvalue", source="bandwidths by the median", call=typical, inputs=_PAIRS
    ),
    Pattern(name="quantile", source="outlier scores", call=quantiles, inputs=_PAIRS),
    Pattern(name="histc", source="radial distributions", call=histogram, inputs=_PAIRS),
    Pattern(
        name="bincount over thresholds",
        source="torchmetrics 1722",
        call=counted,
        inputs=lambda: (torch.rand(150_000), torch.rand(150_000) < 0.3, torch.linspace(0, 1, 40)),
    ),
    Pattern(name="index_add", source="soft histograms", call=added, inputs=_PAIRS),
    Pattern(name="nonzero", source="radius graphs", call=close_pairs, inputs=_PAIRS),
    Pattern(name="mean of a mask", source="contact losses", call=mean_of_close, inputs=_PAIRS),
    Pattern(
        name="fill_diagonal_",
        source="nearest other point",
        call=not_itself,
        inputs=_points((3400, 3)),
    ),
    Pattern(name="write by a mask", source="detectron2 3750", call=clipped, inputs=_PAIRS),
    Pattern(
        name="write at indices",
        source="hard negatives left out",
        call=left_out,
        inputs=lambda: (*_PAIRS(), torch.arange(3000), torch.arange(3000).flip(0)),
    ),
    Pattern(
        name="write in each row",
        source="hardest negatives",
        call=positives_left_out,
        inputs=lambda: (*_PAIRS(), torch.arange(4000) % 3000),
    ),
    Pattern(
        name="solid angles",
        source="selfcontact 4",
        call=solid_angles,
        inputs=_points((1000, 3), (1200, 3, 3)),
    ),
    Pattern(
        name="solve of 3x3",
        source="Mahalanobis distances",
        call=mahalanobis,
        inputs=_points((2000, 3), (500, 3), (500, 3, 3)),
    ),
    Pattern(
        name="complex phases",
        source="sionna 1149",
        call=summed_paths,
        inputs=_points((300, 64), (300, 64), (300,)),
    ),
    Pattern(
        name="cumprod",
        source="volume rendering",
        call=volume,
        inputs=_points((4000,), (3000,), (3000, 3)),
    ),
    Pattern(name="assert between", source="checked distances", call=checked, inputs=_PAIRS),
    Pattern(
        name="per image",
        source="matchers of detectors",
        call=per_image,
        inputs=_points((8, 600, 4), (8, 300, 4)),
    ),
    Pattern(
        name="diagonal in a loss",
        source="rf-detr 1245",
        call=diagonal_loss,
        inputs=lambda: (torch.rand(3400, 4), torch.rand(3400, 4)),
        is_training=True,
    ),
    Pattern(
        name="attention with a bias",
        source="relative positions",
        call=biased_attention,
        inputs=_points((4, 1600, 32), (4, 1600, 32), (4, 1600, 32), (1600, 1600)),
        is_training=True,
    ),
    Pattern(
        name="late interaction",
        source="ColBERT",
        call=late_interaction,
        inputs=_points((16, 32, 64), (64, 360, 64)),
        is_training=True,
    ),
    Pattern(
        name="Sinkhorn, 20 steps",
        source="POT 565",
        call=sinkhorn,
        inputs=_points((1500, 3), (1200, 3)),
        is_training=True,
    ),
    Pattern(
        name="MMD, four widths",
        source="transferlearning 358",
        call=mmd,
        inputs=_points((1500, 16), (1500, 16)),
        is_training=True,
    ),
    Pattern(
        name="semi-hard triplets",
        source="pytorch-metric-learning 688",
        call=semi_hard,
        inputs=lambda: (torch.randn(230, 16), torch.arange(230) % 23),
        is_training=True,
    ),
    Pattern(
        name="entropy and log-probability",
        source="OpenRLHF 718",
        call=chosen_and_entropy,
        inputs=lambda: (
            torch.randn(190, 64),
            torch.randn(64_000, 64) / 8,
            torch.randint(64_000, (190,)),
        ),
        is_training=True,
    ),
    Pattern(
        name="cross entropy, z loss",
        source="losses of language models",
        call=penalised,
        inputs=lambda: (
            torch.randn(190, 64),
            torch.randn(64_000, 64) / 8,
            torch.randint(64_000, (190,)),
        ),
        is_training=True,
    ),
    Pattern(
        name="B-splines",
        source="efficient-kan 23",
        call=splines,
        inputs=_points((1024, 512), (512 * 8, 16)),
        is_training=True,
    ),
    Pattern(
        name="energy, forces, loss",
        source="force fields",
        call=forces,
        inputs=_points((3400, 3)),
        is_training=True,
    ),
    Pattern(
        name="pdist",
        source="points on a sphere",
        call=spread,
        inputs=_points((4900, 3)),
        is_training=True,
    ),
    Pattern(
        name="corrcoef",
        source="redundancy of features",
        call=redundancy,
        inputs=_points((256, 3400)),
        is_training=True,
    ),
    Pattern(
        name="each pair once",
        source="uniformity losses",
        call=each_pair_once,
        inputs=_points((2900, 3)),
        is_training=True,
    ),
    Pattern(
        name="a number between",
        source="checks of distances",
        call=printed_between,
        inputs=_points((4000, 3), (3000, 3)),
    ),
)
