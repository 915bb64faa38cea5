"""What a mask selects of pairs is computed with all pairs, masked: no list of them is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.torch_private.pytree import tensors_in

N = 1500  # pairs of 9 MB


def points(seed: int = 0, n: int = N) -> Tensor:
    return torch.rand(n, 3, generator=torch.Generator().manual_seed(seed))


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def reduced(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    close = d[d < 0.02]
    spread = close.std(), close.var(unbiased=False), close.var(correction=2)
    return close.sum(), close.mean(), *spread, (close < 0.01).any(), (close < 0.02).all()


def computed(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    mask = (d < 0.02) & (d > 0.001)
    near, scale = d[mask], d.mean()
    kernel = torch.exp(-near / scale) + torch.sqrt(near) * torch.masked_select(d + 1, mask)
    return kernel.sum(), torch.logsumexp(kernel, 0), F.relu(near.detach() - 0.01).mean()


def extremes(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    far = d[d > 1.0]
    return far.max(), far.amin(), (far * 2).amax(0), far.min()


def edges(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    i, j = torch.where(d < 0.01)
    p, q = torch.nonzero(d < 0.01, as_tuple=True)
    lengths = (a[i] - b[j]).square().sum(-1).sqrt()
    return d[i, j].sum(), lengths.mean(), a[p].sum(), (b[q].sum(-1) * d[p, q]).sum()


def indices(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    i, j = torch.where(d < 0.01)
    return d.sum(), i.max(), j.min(), (i - j).sum(), (i == j).any()


def converted(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    near = d[d < 0.5]
    return near.double().sum(), (near * 10).long().sum(), near.to(torch.float64).mean()


def by_labels(x: Tensor, labels: Tensor) -> Tensor:
    s = x @ x.t()
    same = labels[:, None] == labels[None]
    positive, negative = s[same.triu(1)], s[same.logical_not().triu(1)]
    weight = F.relu(1.25 - positive.detach())
    up = torch.logsumexp(-weight * (positive - 0.75), 0)
    return F.softplus(up + torch.logsumexp(negative - 0.25, 0))


def kinks(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)  # 0 on the diagonal if a is b, where the root has no slope
    return torch.sqrt(d[d > 0.0]).mean() + torch.log(d[d > 0.001]).sum() / len(a) ** 2


def check(fn: Callable[..., Any], *args: Tensor, most_bytes: int = 1 << 20) -> None:
    compiled: Any = lt.script(fn)
    assert compiled.memory(*args).peak_bytes < most_bytes
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("fn", [reduced, computed, extremes, edges, indices, converted])
def test_pairs_that_a_mask_selects_are_not_stored(fn: Any) -> None:
    check(fn, points(), points(1))


def gradients(fn: Any, *args: Tensor) -> list[Tensor]:
    wanted = [x for x in dict.fromkeys(args) if x.requires_grad]
    return [*torch.autograd.grad(torch.stack(tensors_in(fn(*args))).sum(), wanted)]


def check_gradients(fn: Any, *args: Tensor) -> None:
    found, expected = gradients(lt.script(fn), *args), gradients(fn, *args)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-5 * y.abs().max().item())


@pytest.mark.parametrize("fn", [computed, edges, kinks, extremes])
def test_gradients_of_what_a_mask_selects(fn: Any) -> None:
    check_gradients(fn, points().requires_grad_(), points(1).requires_grad_())


def test_gradients_where_what_is_not_selected_has_infinite_slopes() -> None:
    a = points().requires_grad_()
    check_gradients(kinks, a, a)


def test_labels_select_with_gradients() -> None:
    x, labels = F.normalize(points()).requires_grad_(), torch.arange(N) % 50
    compiled: Any = lt.script(by_labels)
    assert compiled.memory(x, labels).peak_bytes < 1 << 20
    check_gradients(by_labels, x, labels)


def histograms(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = squared(a, b)
    mask = (d > 0.1) & (d < 1.5)
    bins = (d[mask] / 0.1).long()
    return torch.bincount(bins, minlength=20), torch.histc(d[mask], bins=50, min=0.0, max=2.0)


def grouped(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    some = d[d < 1.0]
    pairs = some[: some.numel() // 2 * 2].view(-1, 2).sum(1)
    return torch.histc(pairs, bins=50, min=0.0, max=2.0)


def of_two(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    mask = d < 1.0
    apart = d[mask] - d[mask.flip(0)]  # as many, elsewhere
    return torch.histc(apart, bins=50, min=-1.0, max=1.0)


def test_histograms_of_what_a_mask_selects_are_added_up_in_chunks() -> None:
    check(histograms, points(), points(1), most_bytes=16 << 20)
    for fn in (grouped, of_two):
        check(fn, points(), points(1), most_bytes=1 << 30)


def whole(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, int]:
    d = squared(a, b)
    close = d[d < 0.01]
    return close, close.sum(), close.shape[0]


def sorted_edges(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = squared(a, b)
    i, j = torch.where(d < 0.001)
    return torch.stack([i, j]), d[i, j].sort()[0]


def changed(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    d = squared(a, b)
    mask = d < 0.01
    close = d[mask]
    d.mul_(2)
    mask.logical_not_()
    close += 1
    return close.sum(), d[mask].mean()


def by_two_masks(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    return (d[d < 0.5] * d[~(d >= 0.5)]).sum()


def by_a_list(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    close = d[d < 0.0005]
    return (close * torch.ones(close.shape[0])).sum()


def integers(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    k = (squared(a, b) * 4).long()
    some = k[k > 0]
    return (12 // some).sum(), some.max()


@pytest.mark.parametrize("fn", [whole, sorted_edges, changed, by_two_masks, by_a_list, integers])
def test_selections_that_are_needed_as_such(fn: Any) -> None:
    check(fn, points(), points(1), most_bytes=1 << 30)


def test_nothing_is_selected() -> None:
    a = points()
    far: Any = lt.script(extremes)
    with pytest.raises(RuntimeError, match="max"):
        far(a * 0, a * 0)
    torch.testing.assert_close(far(a, a), extremes(a, a))


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_statistics_of_nothing() -> None:
    a, near = points(), lt.script(reduced)
    torch.testing.assert_close(near(a, a + 10), reduced(a, a + 10), equal_nan=True)


def test_what_is_not_selected_has_no_effect() -> None:
    a, b = points(), points(1)
    a[3] = math.inf
    check(extremes, a, b)
    a[3] = math.nan
    check(computed, a, b)
    a.requires_grad_()
    compiled: Any = lt.script(edges)
    found, expected = (torch.autograd.grad(f(a, b)[1], [a])[0] for f in (compiled, edges))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, equal_nan=True)
