"""A rewrite may change rounding: no overflow, underflow, NaN or wrap-around comes or goes by it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.run.number_ends import check_ends

f32, f64, f16 = torch.float32, torch.float64, torch.float16


def random(*shape: int, dtype: torch.dtype = f32) -> Tensor:
    return torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape))) + 0.5


# ---- factors stay in sums ----------------------------------------------------------------------


def scaled_sum(x: Tensor) -> Tensor:
    return (x / 1000.0).sum(1)


def scaled_mean(x: Tensor) -> Tensor:
    return (x * 1e-3).mean(1)


def scaled_product(x: Tensor, w: Tensor) -> Tensor:
    return (x / 1e6) @ w


def scaled_linear(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.linear(x * 1e-6, w)


def scaled_einsum(x: Tensor, w: Tensor) -> Tensor:
    return torch.einsum("ij,jk->ik", x / 1e6, w)


def safe_norm(x: Tensor) -> Tensor:
    k = x.abs().amax(1, keepdim=True)
    return k[:, 0] * ((x / k) ** 2).sum(1).sqrt()


def by_total(x: Tensor, total: Tensor) -> Tensor:
    return (x / total[:, None]).sum(1)


def times(x: Tensor, total: Tensor) -> Tensor:
    return (x * total[:, None]).sum(1)


@pytest.mark.parametrize("dtype", [f32, f64])
def test_what_is_scaled_down_does_not_overflow(dtype: torch.dtype) -> None:
    large = random(5, 40, dtype=dtype) * (torch.finfo(dtype).max / 20)
    check_ends(scaled_sum, large)
    check_ends(scaled_mean, large)
    for fn in (scaled_product, scaled_linear, scaled_einsum):
        check_ends(fn, large, random(40, 40, dtype=dtype))


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_norm_that_is_scaled_by_the_largest(scale: float) -> None:
    check_ends(safe_norm, random(5, 40) * scale)
    check_ends(safe_norm, random(5, 40) * scale, gradients=True)


@pytest.mark.parametrize("fn", [by_total, times])
@pytest.mark.parametrize("total", [0.0, -0.0, math.inf, math.nan, 1e-38, 1e38])
def test_a_factor_of_a_sum_that_is_no_ordinary_number(fn: Any, total: float) -> None:
    x = random(4, 40)
    x[1, 3], x[2], x[3, :2] = 0.0, 0.0, torch.tensor([math.inf, 0.0])
    check_ends(fn, x, torch.full((4,), total))


def cosines(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    pairs = torch.nn.functional.cosine_similarity(x[:, None], y[None], dim=-1)
    return pairs, torch.nn.functional.cosine_similarity(x, y, dim=0, eps=1e-30)


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1.0, 1e18, 1e20])
def test_the_product_of_two_norms_neither_overflows_nor_vanishes(scale: float) -> None:
    x, y = random(5, 40) - 1, random(5, 40).flip(1) - 1
    check_ends(cosines, x * scale, y * scale)


def weighted(s: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(s, 1) @ v


def weighted_by_hand(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(1, keepdim=True))
    return (e / e.sum(1, keepdim=True)) @ v


def weighted_without_maximum(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s)
    return (e / e.sum(1, keepdim=True)) @ v


def weighted_by_a_part(s: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(s - s.amax(1, keepdim=True))
    return (e / (e * 1e-30).sum(1, keepdim=True)) @ (v * 1e-30)


WEIGHTED = [weighted, weighted_by_hand, weighted_without_maximum, weighted_by_a_part]


@pytest.mark.parametrize("fn", WEIGHTED)
def test_weights_of_scores_that_are_infinite(fn: Any) -> None:
    s, v = random(5, 40) * 20, random(40, 6)
    s[1], s[2, 4], s[3, :39] = -math.inf, math.nan, -math.inf
    check_ends(fn, s, v)
    s[4, 7] = math.inf
    check_ends(fn, s, v)
    v[3, 2] = math.inf
    check_ends(fn, s, v)


@pytest.mark.parametrize("fn", WEIGHTED)
def test_weights_of_scores_that_are_small_and_large(fn: Any) -> None:
    s, v = random(5, 40), random(40, 6)
    check_ends(fn, s - 90, v * 1e-20)
    check_ends(fn, s * 30, v * 1e30, gradients=fn is not weighted_by_a_part)


def kernel_mean(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    k = torch.exp(-(x[:, None] - y[None]).square().sum(-1))
    return (k @ v) / k.sum(1, keepdim=True)


def test_gradients_of_a_kernel_mean_whose_weights_are_tiny() -> None:
    x, y = random(7, 3) + 4.5, random(40, 3)
    check_ends(kernel_mean, x, y, random(40, 4) * 1e-10, gradients=True)


# ---- quotients stay quotients ------------------------------------------------------------------


def rows_with_their_maximum(x: Tensor) -> Tensor:
    s = x / 3.0
    return (s == s.amax(1, keepdim=True)).sum(1)


def rows_with_their_minimum(x: Tensor) -> Tensor:
    s = x / math.sqrt(x.shape[1])
    return (s == s.min(1, keepdim=True).values).sum(1)


def maximum_of_quotients(x: Tensor, c: Tensor) -> Tensor:
    return (x / c).amax(1)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("fn", [rows_with_their_maximum, rows_with_their_minimum])
def test_an_extreme_is_one_of_the_elements(fn: Any, dtype: torch.dtype) -> None:
    check_ends(fn, random(200, 49, dtype=dtype) * 7)


def loss_of_the_best(x: Tensor) -> Tensor:
    s = x / 0.07
    return torch.logsumexp(s, 1) - s.amax(1)


def test_a_loss_of_certain_answers_is_not_negative() -> None:
    x = random(200, 40) * 30
    x[torch.arange(200), torch.arange(200) % 40] += 40
    check_ends(loss_of_the_best, x)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("divisor", [4.0, -0.5, 0.0, math.inf, 3.0, math.nan])
def test_quotients_by_one_divisor(divisor: float, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    x = random(4, 40, dtype=dtype)
    x[1] *= info.max
    x[2] *= info.smallest_normal
    x[3, :3] = torch.tensor([math.inf, -0.0, -math.inf], dtype=dtype)
    for c in (divisor, info.max / 2, info.smallest_normal, info.smallest_normal * info.eps * 4):
        check_ends(maximum_of_quotients, x, torch.tensor(c, dtype=dtype))


# ---- constants are folded as tensors are computed ----------------------------------------------


def bytes_that_wrap(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = torch.full((40,), 200, dtype=torch.uint8)
    b = torch.zeros(40, dtype=torch.uint8)
    return (a + 100 > 250) & (x > 0), b - 5, a * 2, -(b + 1)


def ints_that_wrap(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = torch.full((40,), 2147483647, dtype=torch.int32)
    b = torch.full((40,), -2147483648, dtype=torch.int32)
    return (a + 1 > a) & (x > 0), a * a, b.abs(), -b


def longs_that_wrap(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a = torch.full((40,), 9223372036854775807)
    b = torch.full((40,), -9223372036854775808)
    return (a + 1 > a) & (x > 0), a * a, b.abs(), (b - 1).float()


def floats_that_round(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a = torch.full((40,), 0.1)
    b = torch.full((40,), 16777216.0)
    return a * 3.0 == 0.3, b + 1.0 + x * 0, torch.full((40,), 1e38) * 10 - 1e38


def halves_that_round(x: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.full((40,), 2048.0, dtype=f16)
    b = torch.full((40,), 256.0, dtype=torch.bfloat16)
    return a + 1.0 + x.half() * 0, (b + 1.0) - 256.0


def truths_that_are_added(x: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.ones(40, dtype=torch.bool)
    return a + a, (a * a) & (x > 0)


@pytest.mark.parametrize(
    "fn",
    [
        bytes_that_wrap, ints_that_wrap, longs_that_wrap, floats_that_round, halves_that_round,
        truths_that_are_added,
    ],
)  # fmt: skip
def test_constants_are_folded_in_their_dtype(fn: Any) -> None:
    check_ends(fn, random(40))


def scores_and_their_weights(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k = torch.nn.functional.linear(x, w).split(4, dim=-1)
    scores = q @ k.transpose(-2, -1)
    return k, scores, scores.softmax(-1)


def test_gradients_of_weights_that_are_divided_by_their_total_twice() -> None:
    torch.manual_seed(0)
    x, w = (torch.randn(s, dtype=f64, requires_grad=True) for s in ((7, 12, 4), (8, 4)))

    def slopes(fn: Any) -> tuple[Tensor, ...]:
        found = fn(x, w)
        return torch.autograd.grad(found, (x, w), [torch.ones_like(y) for y in found])

    for got, want in zip(
        slopes(lt.script(scores_and_their_weights)), slopes(scores_and_their_weights), strict=True
    ):
        torch.testing.assert_close(got, want)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e15])
def test_gradients_behind_weights_of_small_and_large_values(size: float) -> None:
    """The weight is multiplied in behind the sum over channels, as eager mode does."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 40, 16) for _ in range(3))
    cotangent = torch.randn(2, 40, 16) * size

    def slopes(fn: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [x.detach().to(dtype).requires_grad_() for x in (4 * q, k, v * size)]
        return torch.autograd.grad(fn(*leaves), leaves, cotangent.to(dtype))

    for got, eager, want in zip(
        slopes(lt.script(attended), f32), slopes(attended, f32), slopes(attended, f64), strict=True
    ):
        error = (got - want).abs().max()
        assert error <= 4 * (eager - want).abs().max() + 1e-6 * want.abs().max()


# ---- zeros -------------------------------------------------------------------------------------


def held_at_zero(x: Tensor, low: float) -> tuple[Tensor, ...]:
    at_most = [x.clamp(max=0.0), (-x).clamp(max=-0.0), torch.nn.functional.hardtanh(x, -1.0, 0.0)]
    at_least = [x.relu(), x.clamp(min=0), x.clamp(0, 1), (-x).clamp(min=-0.0), x.clamp(min=low)]
    return *at_most, *at_least, torch.nn.functional.relu6(x)


@pytest.mark.parametrize("size", [1, 33])
def test_a_bound_that_is_a_zero_keeps_the_sign_of_a_zero(size: int) -> None:
    x = torch.full((size,), -0.0)
    for got, want in zip(lt.script(held_at_zero)(x, 0.0), held_at_zero(x, 0.0), strict=True):
        assert torch.equal(got.signbit(), want.signbit())


def slopes_at_ends(x: Tensor) -> tuple[Tensor, ...]:
    return torch.sinc(x), x**1.5


def test_slopes_of_the_smallest_numbers_and_of_infinity() -> None:
    x = torch.tensor([1e-40, -1e-45, 0.0, 1e-30, -math.inf, math.inf, 4.0])
    found: list[tuple[Tensor, ...]] = []
    for fn in (lt.script(slopes_at_ends), slopes_at_ends):
        given = x.clone().requires_grad_()
        found.append(tuple(torch.autograd.grad(y.sum(), given)[0] for y in fn(given)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
