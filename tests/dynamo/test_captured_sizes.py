"""Numbers in captured graphs that are sizes of arguments: the same regions as from source."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import stats
from lowtide.memory.measure import measure_peak


def info_nce(a: Tensor, b: Tensor) -> Tensor:
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    logits = a @ b.t() / 0.07
    target = torch.arange(a.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def hardest(a: Tensor, b: Tensor) -> Tensor:
    n = a.shape[0]
    norms = a.pow(2).sum(1, keepdim=True).expand(n, n)
    d = torch.addmm(norms + norms.t(), a, a.t(), beta=1, alpha=-2).clamp(min=1e-12).sqrt()
    same = b[:, 0].expand(n, n).round().eq(b[:, 0].expand(n, n).round().t())
    far = torch.where(same, d, torch.zeros_like(d)).max(1)[0]
    near = torch.where(same, torch.full_like(d, 1e6), d).min(1)[0]
    return F.margin_ranking_loss(near, far, torch.ones_like(near), margin=0.3)


def nt_xent(a: Tensor, b: Tensor) -> Tensor:
    """Two views of each sample: the sizes are multiples of the arguments'."""
    n = a.shape[0]
    z = F.normalize(torch.cat([a, b]), dim=1)
    similar = (z @ z.T / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), -torch.inf)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similar, target)


@pytest.mark.parametrize("loss", [info_nce, hardest, nt_xent])
def test_no_pairs_are_stored(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Of 9 MB, or 36 MB."""
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(1500, 16, generator=generator).requires_grad_() for _ in range(2)]

    def step(f: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(f(*args), args, allow_unused=True)

    compiled = lt.compile(loss)
    torch.testing.assert_close(step(compiled), step(loss), rtol=1e-4, atol=1e-6)
    assert measure_peak(lambda: step(compiled))[0].peak_bytes < 4_000_000


def joined(x: Tensor, y: Tensor) -> Tensor:
    return x[1:] * y[:, :1]


def test_a_size_that_happens_to_be_one_stays_a_size() -> None:
    """Of `x[1:]`, where `x` has two rows among other numbers of rows."""
    compiled = lt.script(joined)
    for rows in (9, 12, 2, 15, 20, 25, 28, 31):
        x, y = torch.rand(rows, 4), torch.rand(rows - 1, 3)
        torch.testing.assert_close(compiled(x, y), joined(x, y))
    before = stats.cache_stats()
    for rows in (7, 11, 23):
        x, y = torch.rand(rows, 4), torch.rand(rows - 1, 3)
        torch.testing.assert_close(compiled(x, y), joined(x, y))
    assert not (stats.cache_stats() - before).traces
