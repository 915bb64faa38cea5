"""Compiled gradients = eager ones = finite differences, for programs of a few ops each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.tools import programs
from tests.grad.eager_gradients import randn, same


def affine(x: Tensor, w: Tensor, b: Tensor):
    return torch.tanh(x @ w + b)


def broadcast(x: Tensor, y: Tensor):
    return x[:, None] * y[None] + x.sum() - y.mean()


def broadcast_rows(x: Tensor, y: Tensor):
    return x * y[:, :1] + torch.cat([y, x], 1).sum(1, keepdim=True)


def columns(x: Tensor):
    return (x - x.mean(0)) / (x.std(0) + 0.1)


def log_sums(x: Tensor):
    return torch.logsumexp(x, 1) + x.softmax(0).pow(2).sum(1)


def distances(x: Tensor, y: Tensor):
    return torch.cdist(x, y).exp().sum(1)


def smoothed(x: Tensor, y: Tensor, v: Tensor):
    w = torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1))
    return (w @ v) / w.sum(1, keepdim=True)


def energy(x: Tensor):
    d = (x[:, None] - x[None]).pow(2).sum(-1)
    return torch.where(d > 0, 1 / (d + 0.5) ** 3, torch.zeros_like(d)).sum()


def extremes(x: Tensor):
    return x.max(1).values + x.amin(1) * x.max()


def nearest(x: Tensor, y: Tensor):
    d = ((x[:, None] - y[None]) ** 2).sum(-1)
    return d.min(1).values, d.amin(0)


def slices(x: Tensor):
    return x[1:, ::2] * x[:-1, 1::2], x.flip(0)[2], x[-1] * x[0]


def windows(x: Tensor):
    return x.unfold(0, 3, 1).mul(torch.arange(3.0)).sum(-1), x.unfold(1, 4, 2).amax(-1)


def joined(x: Tensor, y: Tensor):
    z = torch.cat([x, y * 2, x * y], 1)
    return torch.stack([z, z.sin()], 1).reshape(z.shape[0], -1).cos()


def padded(x: Tensor):
    return F.pad(x, (1, 2), value=0.5) * 3 + F.pad(x * x, (2, 1))


def rolled(x: Tensor):
    return torch.roll(x, 2, 0) * x + x.repeat(2, 1)[: x.shape[0]]


def triangles(x: Tensor):
    return torch.tril(x) @ torch.triu(x, 1) + x.diagonal()


def gathered(x: Tensor, i: Tensor):
    return x[i] * torch.index_select(x, 0, i).sin(), x[:, 1][i]


def gathered_steps(x: Tensor, i: Tensor):
    return x.floor()[i], x[i].sign()


def edges(h: Tensor, i: Tensor, w: Tensor):
    return ((h[i] - h[i.flip(0)]).pow(2).sum(-1) + 1).sqrt() * (h @ w)[i].tanh().sum(-1)


def picked(x: Tensor, i: Tensor):
    return torch.log_softmax(x, 1).gather(1, i[: x.shape[0], None] % x.shape[1]).sum()


def powers(x: Tensor):
    return x**2, x**3, x.abs() ** 1.5, 2.0**x, (x * x + 1) ** -0.5


def pieces(x: Tensor):
    a, b = x.chunk(2, 1)
    return F.gelu(a) * torch.sigmoid(b), F.silu(a) - F.softplus(b), F.elu(a * b)


def clamped(x: Tensor, y: Tensor):
    return x.clamp(-0.5, 1), torch.maximum(x, y), x.clamp(min=0) * y.clamp(max=0), F.relu(x - y)


def rounded(x: Tensor):
    return x.floor() * x, x.sign(), torch.fmod(x, 0.7)


def products(x: Tensor):
    return x.prod(0), x[:3].prod()


def einsums(x: Tensor, y: Tensor, z: Tensor):
    return torch.einsum("ij,kj,k->i", x, y, z), torch.einsum("ij,ij->j", x, x)


def batched(q: Tensor, k: Tensor, v: Tensor):
    return F.scaled_dot_product_attention(q, k, v) * 2


def causal(q: Tensor, k: Tensor, v: Tensor):
    s = q @ k.transpose(-2, -1) * 0.3
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(s.masked_fill(~mask, float("-inf")), -1) @ v


def normed(x: Tensor, w: Tensor, b: Tensor):
    return F.layer_norm(x, (x.shape[-1],), w, b).relu() + F.normalize(x, dim=1)


def two_layers(x: Tensor, w1: Tensor, w2: Tensor):
    return F.relu(x @ w1) @ w2


def shaped(x: Tensor):
    y = x.reshape(-1, 4, x.shape[1]).permute(2, 0, 1)
    return (y * y[:1]).sum(0), x.t().reshape(-1) * 2, x.reshape(-1)[::3].exp()


def detached(x: Tensor, y: Tensor):
    return x.detach() * y + (x * x.detach()).sum(0)


def moments(x: Tensor):
    return x.var(1), x.std(), (x - x.mean(1, keepdim=True)).abs().mean()


def losses(x: Tensor, y: Tensor):
    return (
        F.mse_loss(x, y) + F.smooth_l1_loss(x, y) + F.huber_loss(x, y, delta=0.7),
        F.binary_cross_entropy_with_logits(x, y.sigmoid()) + F.l1_loss(x, y),
    )


def contrastive(a: Tensor, b: Tensor):
    logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).t() / 0.5
    target = torch.arange(a.shape[0])
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


def waves(x: Tensor):
    return x.sin() * x.cos() + x.tan().atan(), x.sinh().asinh(), (x * 0.3).tanh().atanh()


def arcs(x: Tensor):
    y = x.tanh() * 0.9
    return y.asin() + y.acos() * 2, torch.atan2(x, y + 2), (y + 2).acosh(), y.erf() + y.erfc()


def logs(x: Tensor):
    y = x * x + 0.5
    return y.log() + y.log2() * y.log10() + y.log1p(), y.rsqrt() + y.sqrt(), x.exp2() - x.expm1()


def squared(x: Tensor):
    """Both parts of the gradient read the product, the one by rows and the other by columns."""
    return (x @ x).relu()


def self_similar(x: Tensor):
    y = torch.where(x @ x.t() > 0, x, x * 0.5)
    return (y.t() @ y).tanh() @ x


def outer_products(x: Tensor, y: Tensor):
    return torch.outer(x[:, 0], y[0]).sum(0), torch.kron(x[:3, :2], y[:2, :3])


def many_outputs(x: Tensor):
    y = x * 2
    return y, y.sum(0), (y > 0), y.argmax(1), y.t()


def reused(x: Tensor):
    for _ in range(3):
        x = x + x.sin() * 0.1
    return x


def chosen(x: Tensor, y: Tensor):
    return torch.where(x > y, x * y, x / (y.abs() + 1)), torch.lerp(x, y, 0.3)


def interleaved(x: Tensor):
    return x.repeat_interleave(3, 1).sin().unflatten(1, (-1, 3)).sum(-1)


def softmaxes(x: Tensor):
    return x.softmax(1).log_softmax(0), F.softmin(x, 1)


def grouped(x: Tensor):
    return F.group_norm(x[None].transpose(1, 2), 2).sum(-1)


def mixed(x: Tensor):
    return (x.float() * 2).double() + x.to(torch.float32).sum()


X, Y, V = randn(40, 6), randn(40, 6, seed=1), randn(6, seed=2)
POINTS, OTHERS = randn(40, 3), randn(36, 3, seed=1)
INDEX = torch.randint(40, (50,), generator=torch.Generator().manual_seed(0))
HEADS = tuple(randn(2, 35, 4, seed=k) for k in range(3))
CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (affine, (X, randn(6, 5), randn(5))), (broadcast, (V, randn(34))), (columns, (X,)),
    (log_sums, (X,)), (distances, (POINTS, OTHERS)), (smoothed, (POINTS, OTHERS, randn(36, 4))),
    (energy, (POINTS,)), (extremes, (X,)), (nearest, (POINTS, OTHERS)), (slices, (X,)),
    (windows, (X,)), (joined, (X, Y)), (padded, (X,)), (rolled, (X,)), (triangles, (randn(6, 6),)),
    (gathered, (X, INDEX)), (edges, (X, INDEX, randn(6, 3))), (picked, (X, INDEX)), (powers, (X,)),
    (gathered_steps, (X, INDEX)),
    (pieces, (X,)), (clamped, (X, Y)), (products, (X * 0.5,)), (einsums, (X, Y, randn(40))),
    (batched, HEADS), (causal, HEADS), (normed, (X, V, V)),
    (two_layers, (X, randn(6, 34), randn(34, 5))), (shaped, (X,)),
    (moments, (X,)), (losses, (X, Y)), (contrastive, (X, Y)), (waves, (X * 0.5,)), (arcs, (X,)),
    (logs, (X,)), (outer_products, (X, Y)), (reused, (X,)), (chosen, (X, Y)), (interleaved, (X,)),
    (squared, (randn(34, 34),)), (squared, (randn(4, 4),)), (self_similar, (randn(34, 34),)),
    (softmaxes, (X,)), (grouped, (randn(34, 4),)),
    (programs.gaussian, (POINTS, OTHERS, randn(36, 5))),
    (programs.attention, HEADS), (programs.boxes_intersection, (randn(35, 4), randn(34, 4))),
    (programs.chamfer, (POINTS, OTHERS)), (programs.layer_norm, (X, V, V)),
    (programs.linear_cross_entropy, (X, randn(50, 6), torch.arange(40))),
]  # fmt: skip
SHARP: list[tuple[Any, tuple[Any, ...]]] = [
    (rounded, (X,)), (detached, (X, Y)), (many_outputs, (X,)),
]  # fmt: skip
NAMES = [f.__name__ for f, _ in CASES]


@pytest.mark.parametrize(("f", "args"), [*CASES, *SHARP], ids=lambda v: getattr(v, "__name__", ""))
def test_like_eager(f: Any, args: tuple[Any, ...]) -> None:
    same(f, *args)


@pytest.mark.parametrize(("f", "args"), CASES, ids=NAMES)
def test_gradcheck(f: Any, args: tuple[Any, ...]) -> None:
    """Finite differences, along a random direction."""
    given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    with faults.strict():
        assert torch.autograd.gradcheck(lt.script(f), given, fast_mode=True, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("f", "args"), [*CASES, *SHARP], ids=lambda v: getattr(v, "__name__", ""))
def test_single_precision_and_strides(f: Any, args: tuple[Any, ...]) -> None:
    def spread(t: Tensor) -> Tensor:
        if not t.is_floating_point():
            return t
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=torch.float32)
        wide[..., 1::2] = t
        return wide[..., 1::2]

    args = tuple(map(spread, args))
    same(f, *args, rtol=2e-3, atol=2e-3)


def edges(x: Tensor, w: Tensor, a: Tensor):
    """A factor of the sum over edges is known only once columns are cut out of `cat`."""
    h = x @ w
    source = torch.arange(90) % x.size(0)
    target = (torch.arange(90) * 7) % x.size(0)
    return (torch.cat([h[source], h[target]], 1) * a).sum()


def test_factors_found_late() -> None:
    same(edges, randn(40, 3), randn(3, 2, seed=1), randn(4, seed=2))


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize(
    "f", [columns, padded, broadcast_rows, pieces, clamped, chosen, losses, mixed, logs]
)
def test_small_sizes(f: Any, n: int) -> None:
    args = [randn(n, 6, seed=k) for k in range(f.__code__.co_argcount)]
    same(f, *args, compiled_whole=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("f", [affine, log_sums, clamped, joined, two_layers, normed])
def test_half_precision(f: Any, dtype: torch.dtype) -> None:
    args = next(a for g, a in CASES if g is f)
    args = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    same(f, *args, rtol=0.1, atol=0.1)


def test_mixed_dtypes() -> None:
    same(mixed, X, rtol=1e-5, atol=1e-5)


def test_a_new_size_compiles_nothing() -> None:
    compiled = lt.script(smoothed)
    for n, m in ((40, 50), (400, 300), (100, 1000)):
        args = [randn(n, 3).requires_grad_(), randn(m, 3).requires_grad_(), randn(m, 4)]
        before = lt.cache_stats()
        compiled(*args).sum().backward()
        done = lt.cache_stats() - before
        if n != 40:
            assert done.specialisations == done.compiles == 0


@pytest.mark.parametrize("zeros", [0, 1, 2])
@pytest.mark.parametrize("form", ["whole", "rows"])
def test_an_infinite_cotangent_of_a_product(form: str, zeros: int) -> None:
    def mean(x: Tensor):
        return (torch.prod(x) if form == "whole" else torch.prod(x, 1)).pow(1 / 3).sum()

    found: list[Tensor | None] = []
    for f in (mean, lt.script(mean)):
        x = torch.tensor([[2.0, 3.0, 4.0]])
        x[0, :zeros] = 0
        f(x.requires_grad_()).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
