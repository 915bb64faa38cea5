"""Covariances, correlations, `pdist` and triangles: matrices of pairs that are only reduced."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.memory.measure import measure_peak

N = 1500  # pairs of 9 MB


def points(n: int = N, d: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.rand(n, d, generator=generator, dtype=dtype)


def covariance(x: Tensor) -> Tensor:
    return torch.cov(x).abs().mean(1)


def biased(x: Tensor) -> Tensor:
    return torch.cov(x, correction=0).square().sum()


def decorrelated(x: Tensor) -> Tensor:
    c = torch.corrcoef(x) - torch.eye(x.shape[0], dtype=x.dtype)
    return c.square().sum(0)


def uniform(x: Tensor) -> Tensor:
    return torch.pdist(x).pow(2).mul(-2).exp().mean().log()


def nearest(x: Tensor) -> tuple[Tensor, Tensor]:
    d = torch.nn.functional.pdist(x, p=1.0)
    return d.min(), d.max()


def triangle(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
    return (1 / (1 + (x[i] - x[j]).norm(dim=-1))).mean()


def lower_triangle(x: Tensor) -> Tensor:
    d = torch.cdist(x, x)
    pairs = torch.tril_indices(len(x), len(x), -1)
    return torch.exp(-d[pairs[0], pairs[1]]).mean()


def similar(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(x), len(x), 2)
    return (x[i] * x[j]).sum(-1).square().mean()


def rows_and_columns(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(x), 7, -2)
    return (i * 10 + j).sum()


FUNCTIONS = [
    covariance, biased, decorrelated, uniform, triangle, lower_triangle, similar,
]  # fmt: skip


def check_gradient(fn: Any, x: Tensor) -> None:
    """The gradient is as near to float64 as eager's."""
    found, eager, exact = (
        torch.autograd.grad(f(y).sum(), [y])[0].double()
        for f, y in (
            (lt.script(fn), x.clone().requires_grad_()),
            (fn, x.clone().requires_grad_()),
            (fn, x.double().requires_grad_()),
        )
    )
    most = 4 * (eager - exact).abs().max() + 1e-6 * exact.abs().max()
    assert (found - exact).abs().max() <= most


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_pairs_are_not_stored(fn: Any) -> None:
    x = points()
    compiled: Any = lt.script(fn)
    torch.testing.assert_close(compiled(x), fn(x), rtol=1e-4, atol=1e-5)
    assert measure_peak(lambda: compiled(x))[0].peak_bytes < 1 << 20
    assert compiled.memory(x).peak_bytes < 1 << 20
    assert compiled.memory(x.requires_grad_()).peak_bytes < 4 << 20


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("n", [5, N])
def test_gradients(fn: Any, n: int) -> None:
    check_gradient(fn, points(n, 9))


@pytest.mark.parametrize("fn", [*FUNCTIONS, rows_and_columns, nearest])
@pytest.mark.parametrize("n", [4, 33, N + 1])
def test_values_of_odd_sizes_and_both_precisions(fn: Any, n: int) -> None:
    for dtype in (torch.float32, torch.float64):
        x = points(n, 17, dtype)
        torch.testing.assert_close(lt.script(fn)(x), fn(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fn", [covariance, decorrelated, uniform, triangle, nearest])
def test_nan_infinity_and_ties(fn: Any) -> None:
    x = points()
    x[3] = x[7]  # a distance of 0
    x[11] = 0.5  # a variance of 0
    torch.testing.assert_close(lt.script(fn)(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    for bad in (float("nan"), float("inf")):
        x[5, 1] = bad
        torch.testing.assert_close(lt.script(fn)(x), fn(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def same(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(len(x), len(x), 1)
    return (x[i] - x[j]).norm(dim=-1).sum() + torch.pdist(x).sum()


def test_gradients_at_a_distance_of_zero() -> None:
    x = points()
    x[1::2] = x[::2]
    found, expected = (
        torch.autograd.grad(f(y), [y])[0]
        for f, y in ((lt.script(same), x.clone().requires_grad_()), (same, x.requires_grad_()))
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def one_row(x: Tensor) -> tuple[Tensor, ...]:
    return torch.cov(x), torch.corrcoef(x), torch.cov(x[:1]), torch.corrcoef(x[0])


def weighted(x: Tensor) -> Tensor:
    return torch.cov(x, aweights=torch.arange(x.shape[1], dtype=x.dtype))


def test_a_vector_one_row_and_weights() -> None:
    for x in (points(6, 8), points(1, 8)):
        torch.testing.assert_close(lt.script(one_row)(x), one_row(x))
        torch.testing.assert_close(lt.script(weighted)(x), weighted(x))
    torch.testing.assert_close(
        lt.script(covariance)(torch.arange(12.0).view(3, 4)),
        covariance(torch.arange(12.0).view(3, 4)),
    )


@pytest.mark.filterwarnings("ignore:cov")
def test_too_few_observations_are_torchs() -> None:
    for x in (points(6, 1), points(6, 0)):
        torch.testing.assert_close(lt.script(covariance)(x), covariance(x), equal_nan=True)


def listed(x: Tensor) -> tuple[Tensor, Tensor, int]:
    d = torch.pdist(x)
    i, j = torch.triu_indices(len(x), len(x), 1)
    return d * 2, (x[i] - x[j]).sum(-1), len(i)


def test_lists_of_pairs_are_results() -> None:
    for n in (1, 2, N):
        x = points(n)
        torch.testing.assert_close(lt.script(listed)(x), listed(x))


def closest(x: Tensor) -> Tensor:
    return torch.pdist(x).sort()[0][:10].sum()


def test_lists_of_pairs_have_gradients() -> None:
    check_gradient(closest, points())
