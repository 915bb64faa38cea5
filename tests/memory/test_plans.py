"""What is never built: kernels and peak bytes of programs over pairs, as plans for large sizes.

Nothing runs: inputs are on the meta device. One tensor over all pairs would be 400 MB and more, so
a peak of at most the results and 16 MiB says that there is none, in memory or as work memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.tools import programs

N, M = 10_000, 11_000
ROOM = 16 << 20


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def iou_matches(a: Tensor, b: Tensor):
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    sides = (high - low).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    iou = shared / (area_a[:, None] + area_b[None] - shared)
    best, which = iou.max(1)
    return best, which, iou.max(0).values, (iou > 0.5).sum(1)


def hausdorff(x: Tensor, y: Tensor):
    d = torch.cdist(x, y)
    return torch.max(d.min(1).values.max(), d.min(0).values.max())


def density(x: Tensor, y: Tensor):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return torch.logsumexp(-d / 2, dim=1) - math.log(y.shape[0])


def smoothed(x: Tensor, y: Tensor, v: Tensor):
    w = torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1))
    return (w @ v) / w.sum(1, keepdim=True)


def expanded(x: Tensor, y: Tensor):
    d = (x * x).sum(1)[:, None] + (y * y).sum(1)[None] - 2 * x @ y.t()
    return d.argmin(1), d.min(0).values


def contrastive(a: Tensor, b: Tensor):
    a = F.normalize(a, dim=1)
    b = F.normalize(b, dim=1)
    logits = a @ b.t() / 0.07
    target = torch.arange(a.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def causal(q: Tensor, k: Tensor, v: Tensor):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1) @ v


def energy(x: Tensor):
    d = (x[:, None] - x[None]).pow(2).sum(-1)
    return torch.where(d > 0, 1 / (d + 1e-6) ** 3, torch.zeros_like(d)).sum()


def ranks(x: Tensor):
    return (x[:, None] > x[None]).sum(1)


def hinge(x: Tensor, y: Tensor):
    s = x @ y.t()
    return (s - s.diagonal()[:, None] + 0.2).clamp(min=0).sum() / x.shape[0]


Case = tuple[Callable[..., object], tuple[Tensor, ...], int, int]
# function, inputs, kernels, bytes of the results
CASES: dict[str, Case] = {
    "chamfer": (programs.chamfer, (meta(N, 3), meta(M, 3)), 1, 4 * (N + M)),
    "gaussian": (programs.gaussian, (meta(N, 3), meta(M, 3), meta(M, 8)), 1, 32 * N),
    "nearest": (programs.nearest_centre, (meta(N, 32), meta(M, 32)), 1, 8 * N),
    "attention": (programs.attention, tuple(meta(8, N, 64) for _ in range(3)), 1, 2048 * N),
    "cross entropy": (
        programs.linear_cross_entropy,
        (meta(N, 300), meta(M, 300), meta(N, dtype=torch.int64)),
        1,
        4,
    ),
    "similarity": (programs.similarity, (meta(256, 2000), meta(256, 2000)), 1, 32_000_000),
    "boxes": (programs.boxes_intersection, (meta(N, 4), meta(M, 4)), 1, 4 * N * M),
    "iou": (iou_matches, (meta(N, 4), meta(M, 4)), 1, 20 * N + 4 * M),
    "hausdorff": (hausdorff, (meta(N, 3), meta(M, 3)), 3, 4),
    "density": (density, (meta(N, 3), meta(M, 3)), 1, 4 * N),
    "smoothed": (smoothed, (meta(N, 3), meta(M, 3), meta(M, 5)), 1, 20 * N),
    "expanded": (expanded, (meta(N, 40), meta(M, 40)), 2, 8 * N + 4 * M),
    "contrastive": (contrastive, (meta(N, 64), meta(N, 64)), 5, 4),
    "causal": (causal, tuple(meta(2, N, 64) for _ in range(3)), 1, 512 * N),
    "energy": (energy, (meta(N, 3),), 1, 4),
    "ranks": (ranks, (meta(N),), 1, 8 * N),
    "hinge": (hinge, (meta(N, 64), meta(N, 64)), 1, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_of_pairs(name: str) -> None:
    function, inputs, kernels, result_bytes = CASES[name]
    compiled = lt.script(function)
    plan = compiled.memory(*inputs)
    assert result_bytes <= plan.peak_bytes <= result_bytes + ROOM, str(plan)
    found = compiled.explain(*inputs)
    assert len(found.kernels) == kernels, str(found)
    assert not found.torch_ops, str(found)


def test_a_new_size_compiles_nothing() -> None:
    compiled = lt.script(programs.chamfer)
    compiled(torch.randn(40, 3), torch.randn(50, 3))
    before = lt.cache_stats()
    for n, m in ((41, 60), (700, 500), (100, 4000)):
        compiled(torch.randn(n, 3), torch.randn(m, 3))
    done = lt.cache_stats() - before
    assert done.specialisations == 0
    assert done.compiles + done.disk_hits + done.memory_hits == 0


def test_peak_in_bytes() -> None:
    plan = lt.script(programs.boxes_intersection).memory(meta(1000, 4), meta(500, 4))
    outputs = [b for b in plan.buffers if b.kind == "output"]
    assert [b.nbytes for b in outputs] == [4 * 1000 * 500]
    assert "s0*s1" in plan.formula


def distances(x, y):
    return ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)


def expanded(x, y):
    squares = (x**2).sum(-1)[..., None] + (y**2).sum(-1)[..., None, :]
    return squares - 2 * x @ y.transpose(-2, -1)


@pytest.mark.parametrize("pairs", [distances, expanded, torch.cdist])
@pytest.mark.parametrize("batches", [2, 5])
def test_pairs_of_a_few_batches_are_not_stored(pairs: Callable[..., Tensor], batches: int) -> None:
    """A mean over so few is written out, each of its parts being a minimum over pairs."""

    def chamfer(x, y):
        d = pairs(x, y)
        return d.min(-1).values.mean() + d.min(-2).values.mean()

    torch.manual_seed(0)
    x, y = torch.rand(batches, 500, 3), torch.rand(batches, 500, 3)
    compiled = lt.script(chamfer)
    assert compiled.memory(x, y).peak_bytes < 500 * 500
    torch.testing.assert_close(compiled(x, y), chamfer(x, y))


def squares(x: Tensor):
    return x @ x.transpose(-1, -2)


@pytest.mark.parametrize(("batches", "n"), [(300, 64), (1000, 24), (40, 200)])
def test_sums_of_many_small_matrices_take_little_work_memory(batches: int, n: int) -> None:
    """Their gradient is two products, over different axes, of one task."""
    x = torch.empty(batches, n, n, device="meta", requires_grad=True)
    plan = lt.script(squares).memory(x)
    work = [b.nbytes for b in plan.buffers if b.kind == "work memory"]
    assert sum(work) <= torch.get_num_threads() * (10 << 20)
