"""Chunks of every set of axes give what the plain call gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from tests.scale.every_plan import check


def chamfer(a: Tensor, b: Tensor):
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def reductions(a: Tensor, b: Tensor):
    d = a @ b.T
    return (
        (d.argmin(1), d.amin(0), d.sum(), torch.any(d > 2, dim=1), d.logsumexp(1)),
        (d.flatten().max(), d.min(), d.mean(1, True), d.max(dim=0, keepdim=True), d.sum((0, 1))),
        (d.all(), d.sum(0, dtype=torch.float64), torch.amax(d, (0, 1)), d.std(1), a.norm()),
    )  # fmt: skip


def positions(d: Tensor):
    return d.argmin(), d.argmax(1), d.argmin(0, True), d.max(), d.min(0), d.max(1, True)


def flat_positions(d: Tensor):
    flat = d.flatten()
    return flat.argmin(), flat.max(0), d.reshape(26, 5).argmin(0), flat.topk(3).indices


def gram(x: Tensor):
    return x.T @ x, x.mean(0), x.sum(), (x * x).sum(0) / x.shape[0]


def attention(q: Tensor, k: Tensor, v: Tensor):
    p = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
    return p @ v


def attention_and_weights(q: Tensor, k: Tensor, v: Tensor):
    p = torch.softmax(q @ k.transpose(-2, -1), dim=-1)
    return p @ v, p.sum()


def similar(a: Tensor, b: Tensor):
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T


def counts(a: Tensor):
    return torch.bincount((a * 5).abs().long()), torch.histc(a, 5, -1.0, 1.0)


def views(a: Tensor):
    return a.squeeze().sum(1), a.reshape(-1), a[:5], a.flip(0), a.T


def rows(a: Tensor):
    some = F.layer_norm(a, (4,)), F.softmax(a, 0), a.cumsum(1), a.sort(1), a.std(1)
    joined = torch.cat([a, a * 2], 1), torch.stack([a, a + 1]), a.unsqueeze(1).expand(9, 3, 4)
    return some, joined, torch.where(a > 0, a, 0 * a).count_nonzero()


def ints(a: Tensor):
    i = (a * 10).long()
    some = i.sum(), i.sum(0), i.amax(0), i.argmin(1), i.any(), i.all(0), (i > 2).sum(0), i.min(0)
    return some, i.min(), (i > 2).amax(0), i.to(torch.int32).sum(0), i.to(torch.uint8).any(0)


def half(a: Tensor):
    h = a.half()
    return h.sum(0), h.mean(1), h.amax(0), h.bfloat16().mean(), h.sum(), h.argmin(0)


def masked(a: Tensor, m: Tensor):
    return a[m > 0].sum(), a[a > 0].sum()


def positioned(a: Tensor):
    return (a + torch.arange(9)[:, None]).sum(0), a.sum(1)


def branched(a: Tensor):
    s = a.sum()
    if s > 0:
        return a.sum(0)
    return a.sum(0) * 2


def nested(a: Tensor):
    xs = [a, a * 2]
    xs.append(a.sum(1, keepdim=True))
    return torch.cat(xs, 1).sum(0), {"x": a.sum(0), "y": [a.amax(1)]}


CASES: list[tuple[Callable[..., Any], tuple[tuple[int, ...], ...], int]] = [
    (chamfer, ((13, 3), (10, 3)), 6),
    (reductions, ((13, 3), (10, 3)), 6),
    (positions, ((13, 10),), 6),
    (flat_positions, ((13, 10),), 2),
    (gram, ((13, 4),), 2),
    (attention, ((2, 9, 4), (2, 11, 4), (2, 11, 5)), 10),
    (attention_and_weights, ((2, 9, 4), (2, 11, 4), (2, 11, 5)), 10),
    (similar, ((9, 4), (11, 4)), 6),
    (counts, ((17,),), 2),
    (views, ((9, 4),), 1),
    (rows, ((9, 4),), 2),
    (ints, ((9, 4),), 2),
    (half, ((9, 4),), 2),
    (masked, ((9, 4), (9,)), 2),
    (positioned, ((9, 4),), 2),
    (branched, ((9, 4),), 2),
    (nested, ((9, 4),), 2),
]


@pytest.mark.parametrize(("f", "shapes", "least"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_chunks_give_what_the_call_gives(
    f: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], least: int
) -> None:
    torch.manual_seed(0)
    check(f, *(torch.randn(*shape) for shape in shapes), sizes=(3, 8), least=least)


def test_compiled_tasks_give_it_too() -> None:
    torch.manual_seed(0)
    check(chamfer, torch.randn(50, 3), torch.randn(40, 3), sizes=(33,), least=2, compiled=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8])
def test_of_equal_extremes_the_first_wins(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    check(positions, torch.randint(0, 3, (13, 10)).to(dtype), sizes=(1, 3), least=6)


def test_a_nan_wins_and_the_first_one_is_found() -> None:
    torch.manual_seed(0)
    d = torch.randn(13, 10)
    d[4:6, 3] = d[9, 3] = d[2, 7:] = math.nan
    check(positions, d, sizes=(1, 3), least=6)
    d[:, 0] = -math.inf
    check(reductions, d, torch.randn(5, 10), sizes=(3,), least=2)


def test_keys_without_weight_do_not_count() -> None:
    def f(s: Tensor, v: Tensor):
        return torch.softmax(s, -1) @ v

    torch.manual_seed(0)
    s, v = torch.randn(5, 12), torch.randn(12, 3)
    s[1, :4] = s[2, 3:] = -math.inf
    check(f, s, v, sizes=(3, 4), least=4)
    s[3] = -math.inf
    s[4, 2] = math.inf
    check(f, s, v, sizes=(3, 4), least=4)


def test_topk_of_parts() -> None:
    def f(d: Tensor):
        return d.topk(3, 1).values, torch.topk(d, k=4, dim=0, largest=False)[0]

    def places(d: Tensor):
        return d.topk(3, 1).indices

    torch.manual_seed(0)
    d = torch.randint(0, 5, (13, 10)).float()
    check(f, d, sizes=(1, 2, 3, 8), least=8)
    check(places, torch.randperm(130).view(13, 10).float(), sizes=(1, 2, 3), least=6)


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (1, 1), (1, 7), (2, 3)])
def test_few_points(sizes: tuple[int, int]) -> None:
    def f(a: Tensor, b: Tensor):
        d = ((a[:, None] - b[None]) ** 2).sum(-1)
        return d.sum(0), d.sum(), d.mean(1), (d > 1).any(0), d.logsumexp(0)

    a, b = torch.randn(sizes[0], 3), torch.randn(sizes[1], 3)
    torch.testing.assert_close(lt.map_chunks(f, a, b, budget="1MB"), f(a, b), equal_nan=True)
    check(f, a, b, sizes=(1,), least=0)


def test_a_minimum_of_nothing_raises_as_in_pytorch() -> None:
    def f(a: Tensor, b: Tensor):
        return torch.cdist(a, b).min(1).values

    with pytest.raises((IndexError, RuntimeError, lt.LowtideError)):
        lt.map_chunks(f, torch.randn(4, 3), torch.randn(0, 3), budget="1MB")


def test_an_argument_that_is_read_twice_is_cut_twice() -> None:
    def f(x: Tensor):
        y = x / x.norm(dim=1, keepdim=True)
        return (y @ y.T).topk(2, 1).values

    torch.manual_seed(0)
    x = torch.randn(2000, 4)
    plan = lt.plan_chunks(f, x, budget="4 MB")
    assert plan.tasks > 1
    torch.testing.assert_close(lt.map_chunks(f, x, budget="4 MB"), f(x))


def test_modules_are_computed_in_chunks() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2)
    ).eval()
    x = torch.randn(1001, 4)
    compiled = lt.script(net)
    plan = lt.plan_chunks(compiled, x, budget=20_000)
    assert plan.tasks > 2
    torch.testing.assert_close(lt.map_chunks(compiled, x, budget=20_000), net(x))
    with pytest.raises(lt.CompileError, match="in place"):
        lt.plan_chunks(lt.script(net.train()), x, budget=20_000)
