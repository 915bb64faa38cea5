"""The first plan of a path that keeps to a budget is taken."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowtide as lt
from lowtide.budget import search as search_module
from lowtide.budget.memory import MemoryPlan
from lowtide.budget.search import Plan, path, search
from lowtide.errors import BudgetError
from lowtide.execute.driver import Driver

pytestmark = pytest.mark.long  # plans of many parts; `test_budget` has some of each

KIB = 1 << 10


class Skips(nn.Module):
    """A small U-Net with batch norm: small parts and large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.down, self.norm2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last, self.norm3 = nn.Conv2d(32, 16, 3, padding=1), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.first(x)))
        y = torch.relu(self.norm2(self.down(nn.functional.max_pool2d(x, 2))))
        y = nn.functional.interpolate(y, scale_factor=2.0)
        return torch.relu(self.norm3(self.last(torch.cat([x, y], 1))))


def chunks_in(driver: Driver) -> int:
    counts = (op.attrs.get("chunks", 1) for op in driver.function.walk())
    return sum(count for count in counts if isinstance(count, int) and count > 1)


def resolved(model: nn.Module) -> tuple[Driver, Any]:
    x = torch.empty(8, 3, 64, 64, device="meta")
    forward: Any = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    return Driver(driver.function), values


@pytest.mark.parametrize("records", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_smaller_budget_never_gives_a_larger_peak(records: bool) -> None:
    with torch.set_grad_enabled(records):
        driver, values = resolved(Skips())
        plans = [plan for plan in path(driver, values) if chunks_in(plan.driver)]
        peaks = [min(p.peak_bytes for p in plans[: k + 1]) for k in range(len(plans))]
        found_before = None
        reached = [p for p, least in zip(plans, peaks, strict=True) if p.peak_bytes == least]
        for plan in (*reached[:-1:4], reached[-1]):
            found = search(driver, values, plan.peak_bytes)
            assert found.peak_bytes <= plan.peak_bytes
            assert found_before is None or found.peak_bytes <= found_before
            found_before = found.peak_bytes
            again = search(driver, values, found.peak_bytes)
            assert again.peak_bytes == found.peak_bytes
        with pytest.raises(BudgetError) as refused:
            search(driver, values, 1)
        assert refused.value.least_bytes == found_before


@pytest.mark.slow
def test_results_are_the_same() -> None:
    torch.manual_seed(0)
    model = Skips().double()
    x = torch.randn(8, 3, 48, 48, dtype=torch.float64, requires_grad=True)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(BudgetError) as refused:
        lt.script(model, budget=1)(x)
    found: list[list[Tensor]] = []
    for budget in (None, refused.value.least_bytes, refused.value.least_bytes * 5 // 4):
        model.load_state_dict(state)
        call = lt.script(model) if budget is None else lt.script(model, budget=budget)
        y = call(x)
        grads = torch.autograd.grad(y.square().sum(), [x, *model.parameters()])
        found.append([y.detach(), *grads, *(b.clone() for b in model.buffers())])
    for others in found[1:]:
        torch.testing.assert_close(others, found[0])


def same(x: Tensor) -> Tensor:
    return x


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[int], int], int]:
    """Searches a path of plans with these peaks."""
    compiled: Any = lt.script(same)
    driver, values = compiled.resolve(compiled.bind((torch.ones(3),), {}))

    def found(peaks: Sequence[int], budget: int) -> int:
        def path_of(*_: object) -> Iterator[Any]:
            for peak in peaks:
                memory = MemoryPlan(peak_bytes=peak, formula="", buffers=())
                plan = Plan(
                    driver=driver,
                    memory=memory,
                    ends="",
                )
                yield plan

        monkeypatch.setattr(search_module, "_path", path_of)
        try:
            return search(driver, values, budget).peak_bytes
        except BudgetError as refused:
            return -refused.least_bytes

    return found


def test_the_least_is_found_among_many_alike(scripted: Callable[[Sequence[int], int], int]) -> None:
    peaks = [1000 * KIB, *(k * KIB for k in range(100, 500, 7))]
    assert scripted(peaks, 1) == -100 * KIB
    assert scripted(peaks[::-1], 1) == -100 * KIB
    assert scripted(peaks, 100 * KIB) == 100 * KIB
    assert scripted(peaks, 110 * KIB) == 100 * KIB


@pytest.mark.parametrize("entry", [lt.script, lt.compile])
def test_a_refused_call_holds_nothing(entry: Any) -> None:
    limited = entry(Skips().eval(), budget=1000)
    alive: list[weakref.ref[Tensor]] = []

    def call() -> None:
        x = torch.rand(2, 3, 16, 16)
        alive.append(weakref.ref(x))
        with pytest.raises(Exception, match="needs at least"):
            limited(x)

    for _ in range(4):
        call()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 4
