"""Variances and deviations, with gradients, as good as PyTorch's: taken in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from tests.run.number_ends import check_ends


def deviation(x: Tensor) -> Tensor:
    return x.std(1)


def variance(x: Tensor) -> Tensor:
    return x.var(0, correction=0)


def variance_of_all(x: Tensor) -> Tensor:
    return x.var()


def deviation_over_two(x: Tensor) -> Tensor:
    return torch.std(x.reshape(4, 2, -1), (0, 2), keepdim=True)


def with_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    spread, mean = torch.std_mean(x, 1, correction=2)
    return spread, mean


def without_freedom(x: Tensor) -> Tensor:
    return torch.var(x, 1, correction=x.shape[1])


def standardised(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e18, 1e30])
@pytest.mark.parametrize("fn", [deviation, deviation_over_two, with_mean])
def test_deviations_of_small_and_large_numbers(fn: Callable[..., Any], scale: float) -> None:
    x = torch.randn(8, 70, generator=torch.Generator().manual_seed(0)) * scale
    check_ends(fn, x, gradients=True)


@pytest.mark.parametrize("fn", [variance, variance_of_all])
def test_variances_of_small_and_large_numbers(fn: Callable[..., Any]) -> None:
    x = torch.randn(8, 70, generator=torch.Generator().manual_seed(0))
    for scale in (1e-18, 1e18, 1e30):
        check_ends(fn, x * scale, gradients=scale < 1e30)


@pytest.mark.parametrize(
    "fn", [deviation, variance, variance_of_all, deviation_over_two, with_mean, standardised]
)
def test_a_mean_far_from_zero_takes_no_digits_away(fn: Callable[..., Any]) -> None:
    x = torch.randn(8, 70, generator=torch.Generator().manual_seed(0)) + 1e5
    check_ends(fn, x)


def test_equal_numbers_do_not_deviate() -> None:
    for fn in (deviation, variance, variance_of_all, with_mean):
        check_ends(fn, torch.full((8, 70), 0.1), gradients=True)


def test_without_degrees_of_freedom() -> None:
    check_ends(without_freedom, torch.randn(3, 9))
    check_ends(without_freedom, torch.full((3, 9), 0.1))


def fewer_than_the_correction(x: Tensor) -> Tensor:
    return x.var(1, correction=2) + x.std(1, correction=2.5)


def test_gradients_of_fewer_elements_than_the_correction() -> None:
    """PyTorch divides by size - correction, a negative number, and gives no NaN."""
    compiled = lt.script(fewer_than_the_correction)
    for n in (1, 2, 40):
        x = torch.randn(3, n)
        ours, theirs = (x.clone().requires_grad_() for _ in range(2))
        torch.testing.assert_close(
            compiled(ours), fewer_than_the_correction(theirs), equal_nan=True
        )
        compiled(ours).sum().backward()
        fewer_than_the_correction(theirs).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_deviations_in_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(8, 70, generator=torch.Generator().manual_seed(0)) * 100
    check_ends(deviation, x.to(dtype))
    check_ends(deviation, (x + 1000).to(dtype))
