"""Whatever is computed twice is the same value, bit for bit; `tests/fuzz/same_value` has more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults


@pytest.fixture(autouse=True)
def faults_are_raised() -> Iterator[None]:
    with faults.strict():
        yield


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def places(n: int, m: int) -> Tensor:
    return torch.arange(n) * 7 % m


def ranks_of_the_diagonal(a: Tensor, b: Tensor, t: Tensor):
    scores = a @ b.T
    own = scores.diagonal()
    return (scores == own[:, None]).sum(1) - 1, (scores - own[:, None]).abs().amin(1)


def largest_by_its_place(a: Tensor, b: Tensor, t: Tensor):
    s = torch.relu(a @ b.T) + a.sum(1, keepdim=True)
    return (s > s.gather(1, s.argmax(1)[:, None])).sum(1)


def rank_of_a_target(a: Tensor, b: Tensor, t: Tensor):
    s = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    own = s.gather(1, t[:, None])
    return (s == own).sum(1) - 1


def some_rows(a: Tensor, b: Tensor, t: Tensor):
    s = a @ b.T
    rows = s[t[:3]]
    return (s[:, None] == rows[None]).all(2).any(0).sum() - 3


def two_columns_of_one(a: Tensor, b: Tensor, t: Tensor):
    s = a @ b.T
    return (s[torch.arange(s.shape[0]), t] != s[torch.arange(s.shape[0]), t * 1 + 0]).sum()


@pytest.mark.parametrize(
    "fn",
    [ranks_of_the_diagonal, largest_by_its_place, rank_of_a_target, some_rows, two_columns_of_one],
    ids=lambda fn: fn.__name__,
)
def test_elements_of_a_sum(fn: Callable[..., object]) -> None:
    found = lt.script(fn)(randn(130, 64), randn(130, 64, seed=1), places(130, 130))
    for x in found if isinstance(found, tuple) else (found,):
        assert (x == 0).all(), x


def slopes(a: Tensor, b: Tensor, t: Tensor, c: Tensor):
    s = F.linear(a, b)
    own = s.gather(1, t[:, None])
    return torch.relu(s - own + c).sum(), (s > own).sum(1, keepdim=True)


def test_the_backward_pass_computes_what_the_forward_pass_has_seen() -> None:
    """At the element itself the slope is 0, and there are as many of 1 as were counted."""
    c = torch.zeros(700, 1, requires_grad=True)
    a, b = randn(700, 300).requires_grad_(), randn(700, 300, seed=1).requires_grad_()
    loss, counted = lt.script(slopes)(a, b, places(700, 700), c)
    loss.backward()
    assert c.grad is not None
    assert (c.grad == counted).all()


def test_no_tensor_of_pairs_for_it() -> None:
    a, b = (torch.empty(10_000, 64, device="meta") for _ in range(2))
    t = torch.empty(10_000, dtype=torch.int64, device="meta")
    for fn in (ranks_of_the_diagonal, rank_of_a_target):
        assert lt.script(fn).memory(a, b, t).peak_bytes < 16 << 20


def sums_written_twice(x: Tensor):
    total = x.sum()
    return (x - total).sum(0) - (x - x.sum()).sum(0), x.sum(0) - (x * 1).sum(0), total


@pytest.mark.parametrize("shapes", [[(5, 513), (255, 3), (257, 17)], [(700, 300)]])
def test_sums_that_are_written_twice(shapes: list[tuple[int, int]]) -> None:
    """The first of the two is a result, so that they are two tensors."""
    compiled = lt.script(sums_written_twice)
    for shape in shapes:
        x = randn(*shape)
        inner, outer, total = compiled(x)
        assert (inner == 0).all()
        assert (outer == 0).all()
        torch.testing.assert_close(total, x.sum())


def places_written_twice(x: Tensor):
    most, least = x.max(1), x.min(1)
    return x.argmax(1), most.values, most.indices, x.argmin(1), least.values, least.indices


@pytest.mark.parametrize("shape", [(1, 3), (1, 40), (4, 1), (1, 1)])
def test_places_that_are_written_twice_along_a_dim_of_size_1(shape: tuple[int, int]) -> None:
    x = randn(*shape)
    for a, b in zip(lt.script(places_written_twice)(x), places_written_twice(x), strict=True):
        assert torch.equal(a, b)
