"""Ints and small sizes that change from call to call: what compiles anew, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lowtide as lt


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def compiled(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]], grad: bool = False) -> int:
    """The number of compilations of a scripted function, one for both passes, with eager's
    results."""
    f = lt.script(fn)
    before = lt.cache_stats()
    for args in calls:
        found: list[Any] = []
        for run in (f, fn):
            given = [
                x.clone().requires_grad_(grad)
                if isinstance(x, torch.Tensor) and x.is_floating_point()
                else x
                for x in args
            ]
            y = run(*given)
            if grad:
                (y * torch.arange(1, y.numel() + 1).reshape(y.shape)).sum().backward()
            found.append([y, *(x.grad for x in given if isinstance(x, torch.Tensor))])
        close(*found)
    return (lt.cache_stats() - before).compiles // (1 + grad)


def attended(x, pos: int):
    return torch.softmax(x[:, : pos + 1], 1) * 2


def picked(x, pos: int):
    return x[:, pos] * 2 + 1


def narrowed(x, pos: int):
    return x.narrow(1, 0, pos + 1).exp().sum(1)


def joined(x, pos: int):
    return torch.cat([x[:, :pos], x[:, :3]], 1).exp()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [attended, picked, narrowed, joined])
def test_positions(fn: Callable[..., Any], grad: bool) -> None:
    torch.manual_seed(0)
    x, short = torch.randn(4, 90), torch.randn(4, 16)
    assert compiled(fn, [(x, pos) for pos in (40, 41, 64, 70, 85)], grad) == 1
    few = [(short, pos) for pos in (3, 4, 7, 12, 15)]
    assert compiled(fn, few, grad) == 2  # the first is a constant


def window(x, start: int, stop: int):
    return x[:, start:stop].exp().sum(1)


def test_signs_ends_and_nothing() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 50)
    bounds = [(0, 5), (1, 7), (5, 5), (7, 3), (-4, 50), (-60, -2), (44, 70), (60, 70), (50, 50)]
    compiled(window, bounds_of(x, bounds))
    compiled(window, bounds_of(x, bounds), grad=True)
    compiled(window, bounds_of(x[:, :1], bounds), grad=True)


def bounds_of(x: torch.Tensor, bounds: Sequence[tuple[int, int]]) -> list[tuple[Any, ...]]:
    return [(x, *b) for b in bounds]


def test_an_index_out_of_range_is_pytorchs_error() -> None:
    f = lt.script(picked)
    x = torch.randn(3, 50)
    for pos in (0, 1, 49, -1, -50, 50, 51, -51, 2):
        if -50 <= pos < 50:
            close(f(x, pos), picked(x, pos))
            continue
        with pytest.raises(IndexError, match=f"index {pos} is out of bounds"):
            f(x, pos)


def counted(x, n: int):
    return (torch.arange(n) + x[:, :n]).sum(0) + torch.zeros(n)


def test_an_int_that_must_be_a_size_is_that_size() -> None:
    """An int and a dim that have to be equal are one symbol, whatever else has their value."""
    torch.manual_seed(0)
    calls = [(torch.randn(m, n), n) for n, m in ((40, 5), (41, 6), (50, 7), (34, 34), (9, 40))]
    assert compiled(counted, calls) <= 3


def crossed(x, y, n: int):
    return x[:, :n] + y, x.sum(1) + n


def test_equal_sizes_by_chance() -> None:
    f = lt.script(crossed)
    for n, rows, width in ((7, 3, 9), (8, 8, 8), (9, 4, 9), (4, 4, 5), (1, 5, 5), (6, 2, 6)):
        x, y = torch.randn(rows, width), torch.randn(rows, n)
        close(f(x, y, n), crossed(x, y, n))
        y = torch.randn(1, n)  # broadcast
        close(f(x, y, n), crossed(x, y, n))


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.k = nn.Linear(8, 8)

    def forward(self, h, k):
        k = torch.cat([k, self.k(h)[:, None]], 1)
        scores = torch.softmax(self.q(h)[:, None] @ k.transpose(1, 2), -1)
        return (scores @ k)[:, 0], k


def test_a_cache_that_grows() -> None:
    torch.manual_seed(0)
    m = Growing()
    f = lt.script(m)
    k = own = torch.zeros(2, 0, 8)
    before = lt.cache_stats()
    with torch.no_grad():
        for _ in range(36):  # 8 is the width, too
            h = torch.randn(2, 8)
            (y, k), (z, own) = m(h, k), f(h, own)
            close(z, y)
            close(own, k)
    assert (lt.cache_stats() - before).compiles == 3  # of none, of one, of any


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 16)
        self.b = nn.Linear(16, 8)

    def forward(self, x, chosen):
        return self.b(F.silu(self.a(x[chosen])))


@pytest.mark.parametrize("grad", [False, True])
def test_experts_of_any_number_of_tokens(grad: bool) -> None:
    torch.manual_seed(0)
    m = Expert()
    f = lt.script(m)
    before = lt.cache_stats()
    for n in (7, 12, 0, 3, 2, 40, 16, 8, 33, 0, 5):
        x = torch.randn(64, 8, requires_grad=grad)
        chosen = torch.randperm(64)[:n]
        chosen = torch.zeros(64, dtype=torch.bool).index_fill(0, chosen, True)
        with torch.set_grad_enabled(grad):
            found = f(x, chosen), m(x, chosen)
        close(*found)
        if grad:
            close(*(torch.autograd.grad(y.exp().sum(), [x, *m.parameters()]) for y in found))
    assert (lt.cache_stats() - before).compiles == 3 + 3 * grad  # of seven, of any, of none


def sliced(x, n: int):
    return x[:, ::n].sum(1)


def test_steps() -> None:
    compiled(sliced, [(torch.randn(3, 40), n) for n in (1, 2, 3, 7, 40, 90)], grad=True)


def test_last_batches() -> None:
    torch.manual_seed(0)
    m = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1))
    f = lt.script(m)
    before = lt.cache_stats()
    for n in (32, 32, 17, 32, 5, 16, 8):
        x = torch.randn(n, 8)
        with torch.no_grad():
            close(f(x), m(x))
    assert (lt.cache_stats() - before).compiles == 2
