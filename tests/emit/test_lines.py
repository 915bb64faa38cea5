"""Sums over lines that are short and many: tasks are of whole lines, and what waits for the sums is
a kernel of its own. Read off the planned kernels; the results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.specialise.signature import SMALL
from lowtide.texpr.sizes import likely

LINES = 60_001
f32 = torch.float32


def grids(fn: Callable[..., Any], *args: Tensor) -> list[tuple[int, ...]]:
    """For each kernel the sizes of the axes that its tasks are cut along."""
    compiled: Any = lt.script(fn)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    (step,) = (s for s in DryRun(driver, values).steps if isinstance(s, KernelStep))
    executable = step.executable()
    sizes = dict(zip(executable.symbols, (n for n in args[0].shape if n > SMALL), strict=True))
    return [tuple(likely(t.axis.extent, sizes) for t in p.grid) for p in executable.first.plans]


def with_gradient(fn: Callable[..., Any], x: Tensor) -> tuple[Tensor, Tensor]:
    """The result, and the gradient of its weighted sum."""
    x = x.detach().requires_grad_()
    y = fn(x)
    weights = torch.arange(y.numel(), dtype=torch.float64).sin().view(y.shape)
    (gradient,) = torch.autograd.grad(y, x, weights.to(y.dtype).contiguous())
    return y.detach(), gradient


def total(x: Tensor) -> Tensor:
    return x.sum(0)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def shares(x: Tensor) -> Tensor:
    return torch.softmax(x, 0)


def deviation(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0) + 0.1).sqrt()


def farthest(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.argmax(0), x.amin(0), (x > 2).any(0)


def apart(x: Tensor) -> Tensor:
    return (x[:, :, None] - x[:, None, :]).abs().sum(0)


def of_three(x: Tensor) -> Tensor:
    return (x[:, :, None, None] * x[:, None, :, None] + x[:, None, None, :]).sum(0)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(1, 2), -1) @ v


def normed(x: Tensor) -> Tensor:
    return torch.relu(F.batch_norm(x, None, None, None, None, training=True))


@pytest.mark.skipif(torch.get_num_threads() < 2, reason="one thread shares nothing")
@pytest.mark.parametrize(
    ("fn", "columns", "expected"),
    [
        (total, 20, [(LINES,)]),
        (total, 4000, [(4000,)]),
        (centred, 20, [(LINES,), (LINES,)]),
        (centred, 4000, [(4000,)]),
        (shares, 48, [(LINES,), (LINES,), (LINES,)]),
    ],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_tasks_are_of_whole_lines(fn: Any, columns: int, expected: Any) -> None:
    assert grids(fn, torch.ones(LINES, columns)) == expected


def test_few_points_stay_one_kernel() -> None:
    assert len(grids(centred, torch.ones(50, 20))) == 1


def test_what_lies_the_other_way_stays_one_kernel() -> None:
    turned = torch.ones(20, LINES).t()
    assert len(grids(centred, turned)) == 1


def test_pairs_are_not_stored_for_a_small_operand_that_lies_so() -> None:
    """Its rows' maxima lie side by side, but they are few."""
    assert len(grids(attention, *(torch.ones(2, 256, 64) for _ in range(3)))) == 1


@pytest.mark.skipif(torch.get_num_threads() not in (2, 4), reason="what is enough depends on them")
@pytest.mark.parametrize(
    ("fn", "columns", "expected"),
    [(apart, 200, (200,)), (apart, 16, (100_000,)), (of_three, 200, (200, 200))],
    ids=lambda v: v.__name__ if callable(v) else "",
)
def test_results_of_pairs_are_not_made_by_each_thread(fn: Any, columns: int, expected: Any) -> None:
    """The sums that a thread keeps to itself are few, however many short axes they have."""
    assert grids(fn, torch.ones(100 if columns > 16 else 100_000, columns)) == [expected]


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(1, f32), (16, f32), (300, f32), (20, torch.float64), (20, torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("fn", [total, centred, shares, deviation], ids=lambda f: f.__name__)
def test_values(fn: Any, columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(LINES, columns, generator=torch.Generator().manual_seed(0)).to(dtype)
    compiled: Any = lt.script(fn)
    found = with_gradient(compiled, x)
    tolerance = 0.02 if dtype == torch.bfloat16 else 1e-3
    for got, want in zip(found, with_gradient(fn, x.double()), strict=True):
        torch.testing.assert_close(got, want.to(dtype), rtol=tolerance, atol=0.1 * tolerance)


@pytest.mark.parametrize("columns", [1, 20])
def test_what_is_no_sum(columns: int) -> None:
    """The first of equal elements, wherever tasks part."""
    x = torch.randint(0, 3, (LINES, columns), generator=torch.Generator().manual_seed(0)).float()
    for got, want in zip(lt.script(farthest)(x), farthest(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("channels", [3, 16, 40])
def test_images_that_lie_channels_last(channels: int) -> None:
    x = torch.randn(3, channels, 61, 70, generator=torch.Generator().manual_seed(0))
    x = x.to(memory_format=torch.channels_last)
    compiled: Any = lt.script(normed)
    found = with_gradient(compiled, x)
    for got, want in zip(found, with_gradient(normed, x.double()), strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want.float(), rtol=1e-4, atol=1e-4)
