"""The rounding of long float sums: over several axes, some of them short, or of fixed extent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lowtide as lt

Fn = Callable[[Tensor], Tensor]


def over_three(x: Tensor) -> Tensor:
    return (x * 1).sum((0, 1, 2))


def fixed_and_long(x: Tensor) -> Tensor:
    return (x.view(50000, 4) * 1).sum(0)


def fixed_pair(x: Tensor) -> Tensor:
    return (x.view(64, 64, 64) * 1).sum((0, 1))


def beside_rows(x: Tensor) -> Tensor:
    """The first sum is updated in memory, term by term."""
    rows = (x * 2).exp().sum((1, 2, 3))
    return (x * 1).sum((0, 1, 2)) + 0 * rows.amax()


def rows(x: Tensor) -> Tensor:
    """One chain, if it were not for blocks."""
    return (x * 1.1).sum(0)


def rows_and_columns(x: Tensor) -> Tensor:
    return (x * 1.1).sum((0, 1))


def fixed_pixels(x: Tensor) -> Tensor:
    return (x.view(64, 80, 80, 19) * 1).sum((1, 2)).flatten()


def squares(x: Tensor) -> Tensor:
    """The sum of many tiles, in one thread's accumulator."""
    return (x * x).sum()


def squares_of_rows(x: Tensor) -> Tensor:
    return (x * x).sum(1)


def squares_of_columns(x: Tensor) -> Tensor:
    return (x * x).sum(0)


def pairs_both_ways(x: Tensor) -> Tensor:
    y = x.flatten()
    near = (-(y[:, None] - y[None, :300]).abs()).exp()
    return torch.cat([near.sum(0), near.sum(1)])


def beside_fixed_rows(x: Tensor) -> Tensor:
    y = x.view(4, 3000, 19)
    return (y * 1).sum(1).flatten() + 0 * (y * 2).exp().sum(2).amax()


@pytest.mark.parametrize(
    ("fn", "shape"),
    [
        (over_three, (2000, 5, 5, 3)),
        (over_three, (32, 16, 16, 19)),
        (fixed_and_long, (50000, 4)),
        (fixed_pair, (64, 64, 64)),
        (beside_rows, (32, 16, 16, 19)),
        (rows, (2000, 33)),
        (rows_and_columns, (1024, 3, 5)),
        (fixed_pixels, (64, 80, 80, 19)),
        (beside_fixed_rows, (4, 3000, 19)),
        (squares, (5, 300_000)),
        (squares_of_rows, (5, 300_000)),
        (squares_of_columns, (100_000, 7)),
        (pairs_both_ways, (20_000, 1)),
    ],
)
def test_partial_sums(fn: Fn, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    truth = fn(x.double())
    got = (lt.script(fn)(x) - truth).abs()
    eager = (fn(x) - truth).abs().max()
    assert (got <= 4 * eager + 4 * torch.finfo(torch.float32).eps * truth).all()


@pytest.mark.parametrize("shape", [(2000, 17), (3, 300_000), (50_000, 9)])
@pytest.mark.parametrize("dims", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("value", [0.1, 0.7, 1 / 3])
def test_sums_of_equal_terms(shape: tuple[int, ...], dims: tuple[int, ...], value: float) -> None:
    """As in the gradient of a mean. Each addition is rounded in the same direction."""
    x = torch.full(shape, value)
    truth = x.double().sum(dims)
    got = (lt.script(sum_over)(x, dims) - truth).abs()
    eager = (sum_over(x, dims) - truth).abs().max()
    assert (got <= 4 * eager + 4 * torch.finfo(torch.float32).eps * truth).all()


def test_a_sum_along_an_axis_that_grows() -> None:
    """Kernels for few terms add up tiles in float32; many terms get others."""
    fn = lt.script(sum_over)
    for n in (64, 70, 3_000_000):
        x = torch.full((3, n), 0.1)
        truth = x.double().sum(1)
        assert ((fn(x, (1,)) - truth).abs() <= 4 * torch.finfo(torch.float32).eps * truth).all()


def sum_over(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.sum(dims)


def test_the_gradient_of_a_bias() -> None:
    x = torch.rand(300, 4, 7, 19, generator=torch.Generator().manual_seed(0))
    found: list[Tensor] = []
    for fn, dtype in ((scaled, torch.float64), (scaled, None), (lt.script(scaled), None)):
        scale = torch.ones(19, dtype=dtype, requires_grad=True)
        fn(x.to(dtype or x.dtype), scale).sum().backward()
        assert scale.grad is not None
        found.append(scale.grad)
    truth, eager, got = found
    most = 4 * (eager - truth).abs().max() + 4 * torch.finfo(torch.float32).eps * truth
    assert ((got - truth).abs() <= most).all()


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    return x.exp() * scale
