"""Segments within chunks: each chunk runs some of itself again once more."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.ir.core import Op, Value
from lowtide.pipeline.budget import budgeted
from lowtide.pipeline.budget.search import Plan, path, search
from lowtide.pipeline.budget.section import SECTION
from lowtide.pipeline.budget.within import LEAST
from lowtide.pipeline.driver import Driver
from lowtide.runtime import heap
from tests.memory.contract import asked_bytes, assert_within_contract

pytestmark = pytest.mark.long  # plans of many parts; `test_budget` has some of each


class Skips(nn.Module):
    """Norms and activations between products; what is skipped gets a sum of two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.second, self.norm2 = nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16)
        self.third, self.norm3 = nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(2, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.norm1(self.first(x)))
        b = torch.relu(self.norm2(self.second(F.max_pool2d(a, 2))))
        b = torch.relu(self.norm3(self.third(b)))
        return self.last(torch.cat([a, self.up(b)], 1))


def made(size: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Skips().to(dtype), torch.randn(8, 3, size, size, dtype=dtype, requires_grad=True)


def resolved(model: nn.Module, x: Tensor) -> tuple[Driver, list[Any]]:
    forward: Any = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    return Driver(driver.function), values


def sections(op: Op) -> list[Op]:
    """Those that its blocks run again."""
    return [o for block in op.blocks for o in block.ops if o.name == SECTION]


def is_within(plan: Plan) -> bool:
    return any(
        op.name == SECTION and op.attrs["chunks"] > 1 and sections(op)
        for op in plan.driver.function.walk()
    )


def step(call: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, and gradients of it twice, and of the input's gradient."""
    wanted = [x, *model.parameters()]
    y = call()
    once = torch.autograd.grad(y.square().sum(), wanted, retain_graph=True)
    (first,) = torch.autograd.grad(y.square().sum(), [x], create_graph=True)
    second = torch.autograd.grad(first.square().sum(), wanted, allow_unused=True)
    return [y.detach(), *once, *(g for g in second if g is not None)]


@pytest.mark.usefixtures("small_ones_reused")
def test_every_plan_gives_what_eager_gives() -> None:
    model, x = made(32, torch.float64)
    expected = step(lambda: model(x), model, x)
    driver, values = resolved(model, x)
    plans = list(islice(filter(is_within, path(driver, values)), 3))
    assert plans
    for plan in plans:
        found = step(lambda plan=plan: plan.driver(values), model, x)
        torch.testing.assert_close(found, expected)


def test_they_come_after_the_chunks_that_they_are_in() -> None:
    """And free less than that, but no more than budgets count on."""
    model, x = made(32)
    driver, values = resolved(model, x)
    chunks = None
    seen = 0
    for plan in islice(path(driver, values), 24):
        if is_within(plan):
            assert chunks is not None
            if plan.peak_bytes < chunks.peak_bytes:  # else it keeps some chunks, too
                seen += 1
                assert plan.peak_bytes >= LEAST * chunks.peak_bytes
                assert search(driver, values, plan.peak_bytes).peak_bytes <= plan.peak_bytes
        else:
            chunks = plan
    assert seen


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Tensor, Plan]:
    """A model under a plan with segments within chunks."""
    model, x = made(128)
    driver, values = resolved(model, x)
    plan = next(filter(is_within, path(driver, values)))
    monkeypatch.setattr(budgeted, "search", lambda *_: plan)
    return lt.script(model, budget=plan.peak_bytes), x, plan


def test_the_peak_is_as_predicted(within: tuple[Any, Tensor, Plan]) -> None:
    limited, x, plan = within

    def run() -> None:
        x.grad = None
        y = limited(x)
        y.backward(torch.ones_like(y))

    run()
    x.grad = None
    limited.zero_grad()
    assert_within_contract(asked_bytes(run), plan.peak_bytes, library_ops=True)


@pytest.fixture
def growths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which is known of each section when its backward pass ends; -1 for none."""
    found: list[int] = []

    def check(trimmer: heap.Trimmer, op: Any = None) -> None:
        if isinstance(op, tuple) and isinstance(op[1], Value):
            found.append(trimmer._growths.get(op, -1))

    monkeypatch.setattr(heap.Trimmer, "check", check)
    return found


def test_room_is_looked_for_before_sums_with_gradients_of_others(
    within: tuple[Any, Tensor, Plan], growths: list[int]
) -> None:
    """The engine makes them when a section is done: after all ops in it."""
    limited, x, _ = within
    limited(x).sum().backward()
    skipped_bytes = x[:, 0].nbytes * 8 // 4  # a chunk of two images, of 8 channels
    assert max(growths) >= skipped_bytes // 2
    assert min(growths) >= 0


class Checkpoints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def part(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(self.part, x, use_reentrant=False) + x
        return x


def test_the_growth_of_a_checkpoint_is_known_too(growths: list[int]) -> None:
    x = torch.randn(2048, 64, requires_grad=True)
    model = Checkpoints()
    free: Any = lt.script(model)
    limited: Any = lt.script(model, budget=free.memory(x).peak_bytes)
    limited(x).sum().backward()
    assert len(growths) == 3
    assert min(growths) >= 0
