"""Pairs that an op of PyTorch's or `print` stands between are computed twice, and not stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak

N, M = 1601, 1403  # pairs of 9 MB


def squared(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1)


def printed(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    print("largest", d.max())
    e = torch.exp(-d)
    print(f"mean {e.mean().item():.3f}")
    return e.sum(1)


def warned(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    if d.amin().item() < 0.5:
        print("some are near", d.amax() > 0.5)
    return d.sqrt().mean(1)


def raises(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    if torch.isnan(d).any():
        raise ValueError(f"NaN in {d.shape[0]} rows, {int(torch.isnan(d).sum())} times")
    if d.amin() < 1:
        print(d.mean() < 1)
    return d.amin(1)


def counted(a: Tensor, b: Tensor) -> Tensor:
    d = squared(a, b)
    limit = d.mean().item() * 0.5
    near = int((d < limit).sum())
    return d.amin(1) * float(near)


def both_ways(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    values, places = d.topk(3, dim=1, largest=False)
    return values, places, d.amin(0), d.mean()


def at_least_as_near(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b).sqrt()
    third = d.topk(3, dim=1, largest=False)[0][:, -1:]
    near = d <= third
    return near.sum(), near.sum(0), (d == third).sum(0)


def assigned(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    cost = squared(a, b)
    match = torch.zeros_like(cost).scatter_(1, cost.topk(4, dim=1, largest=False)[1], 1.0)
    several = match.sum(0) > 1
    match = torch.where(several[None], (cost == cost.amin(0)).to(cost.dtype), match)
    return match.sum(1), match.argmax(0), (cost * match).sum(0)


def changed(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    print(d.min() < 0)
    d += 1
    print(d.max() < 0)
    return d.sum(1), d.amin(0)


def kept(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    d = squared(a, b)
    print(d.min() < 0)
    return d, d.sum(1)


def dynamic(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    cost = squared(a, b)
    near, places = cost.topk(10, dim=1, largest=False)
    chosen = torch.arange(10)[None] < near.sum(1)[:, None].long().clamp(min=1)
    match = torch.zeros_like(cost, dtype=torch.bool).scatter_(1, places, chosen)
    return match.sum(0), (cost * match).sum(1)


FUNCTIONS = [printed, warned, raises, counted, both_ways, at_least_as_near, assigned, dynamic]


def points(d: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(d)
    a, b = (torch.rand(n, d, generator=generator, dtype=dtype) for n in (N, M))
    return a, b


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_pairs_are_not_stored(fn: Any, capsys: Any) -> None:
    compiled: Any = lt.script(fn)
    for d in (3, 5, 2):
        a, b = points(d)
        torch.testing.assert_close(compiled(a, b), fn(a, b), rtol=1e-4, atol=1e-5)
    measured = measure_peak(lambda: compiled(a, b))[0].peak_bytes
    assert measured < 6 << 20
    assert compiled.memory(a, b).peak_bytes < 16 << 20


@pytest.mark.parametrize("d", [1, 3, 4, 7])
def test_both_kernels_compute_the_same_bits(d: int) -> None:
    compiled: Any = lt.script(at_least_as_near)
    for n in (N, 1200):
        for k in (d, d + 1, d):  # the size becomes a symbol
            a, b = (x[:n] for x in points(k))
            near, _, equal = compiled(a, b)
            assert near >= 3 * n
            assert equal.sum() >= n


@pytest.mark.parametrize("fn", [printed, warned, raises, both_ways, assigned])
def test_gradients(fn: Any, capsys: Any) -> None:
    args = [x.requires_grad_() for x in points(dtype=torch.float64)]
    found, expected = (
        torch.autograd.grad(sum(y.sin().sum() for y in _floats(f(*args))), args)
        for f in (lt.script(fn), fn)
    )
    torch.testing.assert_close(found, expected)


def _floats(found: Any) -> list[Tensor]:
    found = found if isinstance(found, tuple) else [found]
    return [x for x in found if x.is_floating_point() and x.requires_grad]


@pytest.mark.parametrize("fn", [kept, changed])
def test_pairs_that_are_results_or_written(fn: Any, capsys: Any) -> None:
    a, b = points()
    torch.testing.assert_close(lt.script(fn)(a, b), fn(a, b), rtol=1e-4, atol=1e-5)
    found, expected = capsys.readouterr().out.splitlines(), []
    fn(a, b)
    expected = capsys.readouterr().out.splitlines()
    assert found[: len(expected)] == expected


def test_prints_in_order_and_nan(capsys: Any) -> None:
    a, b = points()
    a[3, 1] = float("nan")
    compiled = lt.script(printed)
    found = compiled(a, b), capsys.readouterr().out
    expected = printed(a, b), capsys.readouterr().out
    assert found[1] == expected[1]
    torch.testing.assert_close(found[0], expected[0], equal_nan=True, rtol=1e-4, atol=1e-5)


def test_what_a_branch_raises() -> None:
    a, b = points()
    a[3, 1] = float("nan")
    with pytest.raises(ValueError, match=f"NaN in {N} rows, {M} times"):
        lt.script(raises)(a, b)


class Codebook(torch.nn.Module):
    """Changes a buffer and a number between uses of the pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", points()[1])
        self.register_buffer("mean", torch.zeros(()))
        self.codes: Tensor
        self.mean: Tensor
        self.last = 0.0

    def forward(self, a: Tensor) -> Tensor:
        d = squared(a, self.codes)
        self.mean.mul_(0.9).add_(d.mean(), alpha=0.1)
        self.last = d.amax().item()
        return d.amin(1) + self.mean


class MovingCodebook(Codebook):
    """Changes what the pairs are made of."""

    def forward(self, a: Tensor) -> Tensor:
        d = squared(a, self.codes)
        self.codes.mul_(1 + d.amin())
        self.last = d.amax().item()
        return d.amin(1) + self.mean


@pytest.mark.parametrize("kind", [Codebook, MovingCodebook])
def test_buffers_that_change_between(kind: type[Codebook]) -> None:
    plain, compiled = kind(), lt.script(kind())
    a, _ = points()
    for _ in range(3):
        torch.testing.assert_close(compiled(a), plain(a), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled.mean, plain.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(compiled.codes, plain.codes, rtol=1e-4, atol=1e-5)
        assert compiled.last == pytest.approx(plain.last, rel=1e-4)
    if kind is Codebook:
        assert measure_peak(lambda: compiled(a))[0].peak_bytes < 1 << 20


def test_explain_says_why_a_program_with_writes_is_compiled_again() -> None:
    net = torch.nn.Sequential(Codebook(), torch.nn.Identity())
    compiled: Any = lt.script(net)
    a, _ = points()
    compiled(a)
    net[1] = torch.nn.ReLU()
    compiled(a)
    (again,) = compiled.explain(a).compiled_again
    assert again.facts == ("`self.1` was Identity, is ReLU",)
