"""Values of pairs that ops of PyTorch's read: the same results, in a few MB."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.budget import in_chunks
from lowtide.diagnostics import faults
from lowtide.memory.measure import measure_peak

INF = float("inf")


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def top(a: Tensor, b: Tensor) -> Any:
    values, indices = squared(a, b).topk(3, dim=1, largest=False)
    return values.sqrt(), indices


def top_of_itself(a: Tensor, b: Tensor) -> Any:
    norms = (a**2).sum(1, keepdim=True)
    return (norms - 2 * a @ a.t() + norms.t()).topk(4, dim=-1, largest=False)[0]


def sort(a: Tensor, b: Tensor) -> Tensor:
    return squared(a, b).sort(dim=1)[0][:, :3]


def sort_the_other_way(a: Tensor, b: Tensor) -> Tensor:
    return squared(a, b).argsort(dim=0)[:2]


def middle(a: Tensor, b: Tensor) -> Any:
    d = torch.cdist(a, b)
    return d.median(dim=1)[0], d.kthvalue(3, dim=1)


def quantile(a: Tensor, b: Tensor) -> Tensor:
    return torch.quantile(squared(a, b), 0.25, dim=1)


def histogram(a: Tensor, b: Tensor) -> Tensor:
    return torch.histc(squared(a, b), bins=20, min=0.0, max=9.0)


def counts(a: Tensor, b: Tensor) -> Tensor:
    places = squared(a.round(), b.round()).long().clamp(max=50)
    return torch.bincount(places.flatten(), minlength=8)


def weighted_counts(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a.round(), b.round())
    return torch.bincount(d.long().clamp(max=50).view(-1), d.view(-1))


def running(a: Tensor, b: Tensor) -> Tensor:
    return torch.cumsum(torch.exp(-squared(a, b)), 1)[:, -1]


def phases(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(1j * (a[:, None, 0] * b[None, :, 0])).sum(1).abs()


def cross(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.cross(a[:, None], b[None]).norm(dim=-1).amin(1)


def others(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, a)
    d.fill_diagonal_(INF)
    return d.argmin(1)


def masked(a: Tensor, b: Tensor) -> Any:
    d = squared(a, b)
    d[d > 2] = 2.0
    return d.mean(1), d.topk(2, dim=1)[0]


def selected(a: Tensor, b: Tensor) -> Any:
    d = squared(a, b)
    return d[d < 1].mean(), d[d < 2].sum()


def scattered(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    rows = torch.arange(a.shape[0])
    d.scatter_(1, torch.stack([rows % 7, rows % 1500, rows // 4], 1), INF)
    return d.amin(1)


def one_of_each_row(a: Tensor, b: Tensor) -> Any:
    d = squared(a, b)
    d[torch.arange(a.shape[0]), torch.arange(a.shape[0]) % b.shape[0]] = 0.0
    return d.sum(1)


def nearest_of_itself(a: Tensor, b: Tensor) -> Tensor:
    return torch.cdist(a, a).topk(4, dim=1, largest=False)[0][:, 1:]  # eager: not 0 to itself


def nearest_others(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, a)
    d.fill_diagonal_(INF)
    return d.topk(3, dim=1, largest=False)[0]


def largest_later(a: Tensor, b: Tensor) -> Any:
    d = squared(a, a)
    return torch.triu(d, diagonal=1).topk(3, dim=1)[0], d.tril_(-2).topk(2, dim=1)[0]


def without_itself(a: Tensor, b: Tensor) -> Any:
    inner = a @ a.t()
    mask = torch.eye(a.shape[0], dtype=torch.bool)
    return (inner - torch.eye(a.shape[0])).topk(2)[0], inner.masked_fill(mask, -INF).topk(2)[0]


def passed(a: Tensor, b: Tensor) -> Tensor:
    opacity = torch.exp(-squared(a, b))
    opacity = torch.where(opacity > 0.01, opacity, torch.zeros_like(opacity))
    return torch.cumprod(torch.cat([torch.ones(a.shape[0], 1), 1 - opacity], 1), 1)[:, -1]


def between(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    low, high = torch.stack([d.amin(), d.amax()])
    return ((d - low) / (high - low)).mean(1)


def triangle(a: Tensor, b: Tensor) -> Any:
    i, j = torch.triu_indices(len(a), len(a), 1)
    lower = torch.tril_indices(a.shape[0], a.shape[0], -1)
    d = torch.cdist(a, a, compute_mode="donot_use_mm_for_euclid_dist")
    return (1 / (1 + (a[i] - a[j]).norm(dim=-1))).mean(), d[lower[0], lower[1]].amax()


FUNCTIONS = [
    triangle,
    between, nearest_of_itself, nearest_others, largest_later, without_itself, passed,
    scattered, one_of_each_row,
    top, top_of_itself, sort, sort_the_other_way, middle, quantile, histogram, counts,
    weighted_counts, running, phases, cross, others, masked, selected,
]  # fmt: skip
DIFFERENTIABLE = [
    between,
    nearest_of_itself,
    nearest_others,
    largest_later,
    without_itself,
    passed,
    scattered,
    one_of_each_row,
    top,
    top_of_itself,
    running,
    phases,
    cross,
    masked,
    selected,
]


def inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator) for n in (3300, 1600)]  # pairs of 21 MB


def results(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [y for x in found for y in results(x)]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_results_are_those_of_eager(fn: Callable[..., Any]) -> None:
    with faults.strict():
        found = results(lt.script(fn)(*inputs()))
    for x, y in zip(found, results(fn(*inputs())), strict=True):
        if not x.is_floating_point() and x.shape == y.shape and x.dim() == 2:  # ties
            assert (x != y).double().mean() < 1e-3
        else:
            torch.testing.assert_close(x, y, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_no_pairs_are_stored(fn: Callable[..., Any]) -> None:
    """Of 21 MB; of 42 MB where they are complex, or indices."""
    f, args = lt.script(fn), inputs()
    f(*args)
    assert measure_peak(lambda: f(*args))[0].peak_bytes < 16_000_000
    if fn not in (counts, weighted_counts):  # how many there are depends on the data
        assert f.memory(*args).peak_bytes < 16_000_000


@pytest.mark.parametrize("fn", DIFFERENTIABLE, ids=lambda fn: fn.__name__)
def test_gradients_are_those_of_eager(fn: Callable[..., Any]) -> None:
    found: list[tuple[Tensor, ...]] = []
    for run in (lt.script(fn), fn):
        args = [x.requires_grad_() for x in inputs()]
        total = sum(x.sum() for x in results(run(*args)) if x.requires_grad)
        assert isinstance(total, Tensor)
        given = torch.autograd.grad(total, args, allow_unused=True)
        found.append(tuple(g for g in given if g is not None))
    assert len(found[0]) == len(found[1])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-2)


def written_between(a: Tensor, b: Tensor) -> Tensor:
    a = a.clone()
    row = a[0]
    d = squared(a, b)
    a.mul_(2.0)
    shift = row.sum() + a.sum(1, keepdim=True)  # of what has been written
    return (d + shift).topk(3, dim=1)[0]


def test_small_ops_stay_behind_writes() -> None:
    args = inputs()
    torch.testing.assert_close(lt.script(written_between)(*args), written_between(*args))


def scaled_top(a: Tensor, b: Tensor, scale: float, offset: int) -> Tensor:
    return (squared(a, b) * scale + offset).topk(2, dim=1)[0]


def test_plans_are_searched_for_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = in_chunks.ChunkedDriver._search  # pyright: ignore[reportPrivateUsage]

    def counted(self: Any, args: Any) -> Any:
        searched.append(1)
        return search(self, args)

    monkeypatch.setattr(in_chunks.ChunkedDriver, "_search", counted)
    f, (a, b) = lt.script(scaled_top), inputs()
    for k in range(6):  # a float that changes
        torch.testing.assert_close(f(a, b, 0.5 + k, 1), scaled_top(a, b, 0.5 + k, 1))
    assert len(searched) == 1
    for k in range(20):  # no pairs: a counter, and a size that grows
        small = b[: 100 + k]
        torch.testing.assert_close(f(a, small, 1.0, k), scaled_top(a, small, 1.0, k))
    assert len(searched) <= 4


def last_of_top(a: Tensor, b: Tensor) -> Tensor:
    return squared(a, b).topk(3, dim=1)[0][:, -1]


def test_views_of_small_results_are_views() -> None:
    assert lt.script(last_of_top)(*inputs()).stride() == (3,)


def given(x: Tensor) -> Tensor:
    return x.exp().topk(3, dim=1)[0]


def test_what_is_given_is_not_cut() -> None:
    """What is as large as an argument is no value of pairs."""
    assert lt.script(given).memory(torch.rand(1700, 1600)).peak_bytes > 4 * 1700 * 1600


def too_many(a: Tensor, b: Tensor) -> Tensor:
    return squared(a, b).topk(2000, dim=1)[0]


def negative(a: Tensor, b: Tensor) -> Tensor:
    return torch.bincount(squared(a, b).long().flatten() - 1)


@pytest.mark.parametrize("fn", [too_many, negative])
def test_errors_are_those_of_eager(fn: Callable[..., Tensor]) -> None:
    with pytest.raises(RuntimeError) as expected:
        fn(*inputs())
    with pytest.raises(RuntimeError) as found:
        lt.script(fn)(*inputs())
    assert str(found.value) == str(expected.value)


def some_without_a_graph(a: Tensor, b: Tensor) -> Any:
    d, e = squared(a, b), squared(a.detach(), b.detach())
    h = torch.histc(d, 20, 0.0, 9.0)
    return d.topk(2)[0], e.topk(2)[0], (d.detach() + 1).kthvalue(2)[0], h


def test_only_what_has_a_graph_requires_gradients() -> None:
    made = [
        results(run(*(x.requires_grad_() for x in inputs())))
        for run in (some_without_a_graph, lt.script(some_without_a_graph))
    ]
    given, found = ([(x.requires_grad, x.is_leaf) for x in row] for row in made)
    assert given == found == [(True, False), *[(False, True)] * 3]


@pytest.mark.parametrize("budget", [None, "500MB"])
def test_no_search_saves_tensors_in_a_checkpoint(budget: str | None) -> None:
    f, saved = lt.script(top, budget=budget), list[bool]()

    def pack(x: Tensor) -> Tensor:
        saved.append(x.is_meta)
        return x

    a, b = (x.requires_grad_() for x in inputs())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        values, _ = f(a, b)
    assert saved
    assert not any(saved)
    values.sum().backward()
