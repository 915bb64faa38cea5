"""What a plan says, and what it refuses, before anything runs."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import lowtide as lt


def chamfer(a: Tensor, b: Tensor):
    d = ((a[:, None] - b[None]) ** 2).sum(-1)
    return d.min(1).values.mean() + d.min(0).values.mean()


def similar(a: Tensor, b: Tensor):
    return a @ b.T


def ranked(a: Tensor, b: Tensor):
    d = torch.cdist(a, b)
    return d.flatten().sort().values


def meta(*shape: int) -> Tensor:
    return torch.empty(shape, device="meta")


def test_a_plan_of_data_that_no_machine_has() -> None:
    plan = lt.plan_chunks(similar, meta(10**7, 64), meta(10**7, 64), budget="500MB")
    assert 5 * 10**5 < plan.tasks < 10**7
    assert plan.task_peak_bytes <= 500_000_000
    assert set(plan.axes) == {"a.shape[0]", "b.shape[0]"}
    rows = 4 * plan.chunk_shape["a.shape[0]"] * plan.chunk_shape["b.shape[0]"]
    assert plan.task_peak_bytes >= rows
    assert "10,000,000 by" in str(plan)
    assert plan._repr_html_().startswith("<pre>")


def test_what_fits_is_one_task() -> None:
    plan = lt.plan_chunks(chamfer, meta(2_000_000, 3), meta(2_000_000, 3), budget="200MB")
    assert plan.tasks == 1
    assert plan.axes == {}


def test_tasks_for_several_workers() -> None:
    plan = lt.plan_chunks(chamfer, meta(10**6, 3), meta(10**6, 3), budget="200MB", tasks=64)
    assert plan.tasks >= 64
    assert plan.task_peak_bytes <= 200_000_000
    assert all("min over" in how for how in plan.combine.values())


def test_a_budget_that_is_too_small_names_the_least() -> None:
    a, b = meta(4000, 3), meta(3000, 3)
    with pytest.raises(lt.BudgetError) as caught:
        lt.plan_chunks(chamfer, a, b, budget=1000)
    least = caught.value.least_bytes
    assert least > 1000
    assert lt.plan_chunks(chamfer, a, b, budget=least).task_peak_bytes <= least


def test_a_dependent_axis_is_named_with_its_line() -> None:
    with pytest.raises(lt.BudgetError) as caught:
        lt.plan_chunks(ranked, meta(4000, 3), meta(3000, 3), budget="1MB")
    assert re.search(r"test_chunk_plans\.py:\d+: `return d\.flatten\(\)", str(caught.value))


def test_writes_are_refused_at_their_line() -> None:
    def f(a: Tensor):
        a[0] = 1
        return a.sum(0)

    with pytest.raises(lt.CompileError, match=r"a\[0\] = 1"):
        lt.plan_chunks(f, torch.ones(4, 3), budget="1MB")


def test_random_numbers_are_drawn_once() -> None:
    def f(a: Tensor):
        return (a + torch.rand(3)).sum(0)

    a = torch.rand(1000, 3)
    torch.manual_seed(3)
    expected = f(a)
    torch.manual_seed(3)
    torch.testing.assert_close(lt.map_chunks(f, a, budget="1MB", tasks=4), expected)


def test_there_are_as_many_tasks_as_can_be() -> None:
    a, b = meta(40, 3), meta(30, 3)
    assert lt.plan_chunks(similar, a, b, budget="1MB", tasks=10**9).tasks == 40 * 30 * 3
    for tasks in (0, -1, 2.5):
        with pytest.raises(lt.LowtideError, match="is not a number of tasks"):
            lt.plan_chunks(similar, a, b, budget="1MB", tasks=tasks)  # pyright: ignore[reportArgumentType]


def test_shapes_that_disagree_are_told_with_their_line() -> None:
    a, b = torch.rand(40, 3), torch.rand(30, 2)
    with pytest.raises(lt.LowtideError, match=r"test_chunk_plans\.py:\d+: `matmul` fails"):
        lt.map_chunks(similar, a, b, budget="1MB")
    with pytest.raises(lt.LowtideError, match=r"`return a @ b\.T` is not known"):
        lt.map_chunks(similar, [[1.0]], b, budget="1MB")
