"""Runs a call in chunks of every set of axes and of several sizes; compares with the plain call."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from lowtide.budget.torch_rules import Dependent
from lowtide.execute.driver import Driver
from lowtide.scale.chunk_plan import ChunkPlan, Sizing
from lowtide.scale.cutting import cutting
from lowtide.scale.engines import run_here
from lowtide.scale.job import Job
from lowtide.scale.map_chunks import Call

HUGE = 1 << 60


def every_plan(call: Any, sizes: tuple[int, ...], most: int = 2) -> Iterator[ChunkPlan]:
    """Yield the plan of each set of axes, with parts of each of these sizes."""
    with torch.no_grad():
        planner = call.planner(HUGE, None)
        axes = planner.axes
        for count in range(1, most + 1):
            for chosen in itertools.permutations(axes, count):
                split = cutting(planner.outer, chosen)
                sizing = Sizing(planner, split)
                if not split.joins:
                    continue
                for size in sizes:
                    if any(size >= axis.extent for axis in chosen):
                        continue
                    try:
                        found = sizing.choice((size,) * count)
                    except Dependent:
                        continue
                    if found is not None:
                        yield planner.made(found)


class Eager(Driver):
    """Runs a task by PyTorch: what is tested is what becomes of the parts."""

    def __call__(self, args: Any) -> Any:
        return self.run_eager(args)


def check(
    f: Callable[..., Any],
    *args: Any,
    sizes: tuple[int, ...] = (1, 3, 8),
    least: int = 1,
    compiled: bool = False,
) -> list[ChunkPlan]:
    """Compare all plans with the plain call; there must be at least this number of plans."""
    expected = tree_leaves(f(*args))
    call = Call(f, args)
    plans = []
    for plan in every_plan(call, sizes):
        if not compiled:
            plan = replace(plan, driver=Eager(plan.cutting.task))
        job = Job(plan, call.sources, call.values, None)
        with torch.no_grad():
            run_here(job, lambda _: None)
            found = tree_leaves(job.finish())
        assert len(found) == len(expected)
        for k, (x, y) in enumerate(zip(found, expected, strict=True)):
            if not isinstance(y, torch.Tensor):
                assert x == y
                continue
            assert x.shape == y.shape, (k, str(plan))
            torch.testing.assert_close(
                x, y, equal_nan=True, msg=lambda m, k=k, plan=plan: f"{k}: {m}\n{plan}"
            )
        plans.append(plan)
    assert len(plans) >= least, f"only {len(plans)} plans"
    return plans
