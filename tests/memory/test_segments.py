"""Runs of ops that are computed again as a whole, where no axis cuts the program.

Batch norm in training needs all of its batch; and what it writes, it may write only once. Every
plan on the path of budgets gives what eager gives: results, gradients, buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.budget.effects import ObservedEffects
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer
from lowtide.budget.search import _Least, _Trials, _with_segments, path  # pyright: ignore
from lowtide.budget.segments import Cutter
from lowtide.errors import BudgetError
from lowtide.execute.driver import Driver
from lowtide.execute.section import SECTION
from tests.memory.calls import tensors

MOST_PLANS = 8


class Layers(nn.Module):
    """Convolutions, each with a norm over the batch."""

    def __init__(self, momentum: float | None = 0.1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(8, momentum=momentum)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8, momentum=momentum)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.norm3 = nn.BatchNorm2d(8, momentum=momentum)

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.relu(self.norm2(self.second(x)))
        return torch.relu(self.norm3(self.third(x))).mean((2, 3))


class InPlace(Layers):
    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.norm1(self.first(x)), inplace=True)
        x = F.relu(self.norm2(self.second(x)), inplace=True)
        return self.norm3(self.third(x)).mean((2, 3))


class Dropped(Layers):
    def forward(self, x: Tensor) -> Any:
        x = F.dropout(self.norm1(self.first(x)), 0.4, self.training)
        x = F.dropout2d(self.norm2(self.second(x)), 0.4, self.training)
        return F.dropout(self.norm3(self.third(x)), 0.4, self.training).mean((2, 3))


class NormTwice(Layers):
    """The second time it reads what the first has written."""

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.relu(self.norm1(self.second(x)))
        return torch.relu(self.norm1(self.third(x))).mean((2, 3))


class StatisticsAreRead(Layers):
    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.tanh(x - self.norm1.running_mean[:, None, None])
        x = torch.relu(self.norm2(self.second(x) - self.norm2.running_mean[:, None, None]))
        return torch.relu(self.norm3(self.third(x))).mean((2, 3))


class WrittenLater(Layers):
    """What a segment reads changes after it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.ones(8, 1, 1))

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)) - self.shift)
        self.shift.mul_(1.5)
        x = torch.relu(self.norm2(self.second(x)) - self.shift)
        return torch.relu(self.norm3(self.third(x))).mean((2, 3))


class ResultsWithoutGraph(Layers):
    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)))
        seen = x.detach() * 2
        x = torch.relu(self.norm2(self.second(x)))
        return torch.relu(self.norm3(self.third(x))).mean((2, 3)), seen, x.argmax(1)


class Averages(Layers):
    """Statistics of its own, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        x = torch.relu(self.norm1(self.first(x)))
        self.mean.mul_(0.9).add_(x.detach().mean((0, 2, 3)), alpha=0.1)
        x = torch.relu(self.second(x) - self.mean[:, None, None])
        return torch.relu(self.norm3(self.third(x))).mean((2, 3))


class Instances(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.norm2 = nn.InstanceNorm2d(8, track_running_stats=True)


class Skips(Layers):
    def forward(self, x: Tensor) -> Any:
        a = torch.relu(self.norm1(self.first(x)))
        b = torch.relu(self.norm2(self.second(F.max_pool2d(a, 2))))
        b = F.interpolate(b, scale_factor=2.0) + a
        return torch.relu(self.norm3(self.third(b))).mean((2, 3))


MODELS: list[Callable[[], nn.Module]] = [
    Layers, InPlace, Dropped, NormTwice, StatisticsAreRead, WrittenLater, ResultsWithoutGraph,
    Averages, Instances, Skips, lambda: Layers(momentum=None),
]  # fmt: skip
FAST = (InPlace, Dropped, StatisticsAreRead, ResultsWithoutGraph)
LONG = (Layers, NormTwice, Averages, Skips)  # what others are made of


def variants() -> list[Any]:
    names = [*(model.__name__ for model in MODELS[:-1]), "WithoutMomentum"]
    marks = [
        pytest.mark.long if model in LONG else () if model in FAST else pytest.mark.slow
        for model in MODELS
    ]
    rows = zip(MODELS, names, marks, strict=True)
    return [pytest.param(model, id=name, marks=mark) for model, name, mark in rows]


def made(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return make().double(), torch.randn(6, 3, 30, 30, requires_grad=True, dtype=torch.float64)


def step(model: nn.Module, call: Callable[[], Any], x: Tensor) -> list[Tensor]:
    """Two calls, then their gradients: results, gradients, buffers."""
    torch.manual_seed(1)
    x.grad = None
    model.zero_grad()
    found = [*tensors(call()), *tensors(call())]
    sum(y.square().sum() for y in found if y.requires_grad).backward()
    grads = [p.grad for p in (x, *model.parameters()) if p.grad is not None]
    return [*(y.detach() for y in found), *grads, *(b.clone() for b in model.buffers())]


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize("make", variants())
def test_every_plan_gives_what_eager_gives(make: Callable[[], nn.Module]) -> None:
    model, x = made(make)
    state = copy.deepcopy(model.state_dict())
    forward = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    expected = step(model, lambda: model(x), x)
    with_graph = [y.requires_grad for y in tensors(model(x))]
    for plan in islice(path(Driver(driver.function), values), MOST_PLANS):
        model.load_state_dict(state)
        found = step(model, partial(plan.driver, values), x)
        torch.testing.assert_close(found, expected)
        assert [y.requires_grad for y in tensors(plan.driver(values))] == with_graph


def plans(make: Callable[[], nn.Module]) -> Iterator[Any]:
    model, _ = made(make)
    x = torch.empty(16, 3, 80, 80, device="meta", dtype=torch.float64)
    forward = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    return path(Driver(driver.function), values)


@pytest.mark.parametrize("make", [InPlace, Dropped], ids=lambda make: make.__name__)
def test_less_is_kept(make: Callable[[], nn.Module]) -> None:
    found = plans(make)
    free = next(found)
    assert any(plan.peak_bytes < 0.8 * free.peak_bytes for plan in found)


def test_small_parts_are_in_chunks_before_large_ones_are_in_many() -> None:
    """Single images are slow."""
    in_four: list[int] = []
    for plan in plans(Skips):
        found = [c for op in plan.driver.function.walk() if (c := op.attrs.get("chunks", 1)) > 1]
        if max(found, default=1) > 4:
            break
        if set(found) == {4}:
            in_four.append(len(found))
    else:
        pytest.fail("no plan has parts in more than four chunks")
    assert in_four[0] < max(in_four)


def test_statistics_are_no_operands_that_are_saved() -> None:
    for plan in plans(Layers):
        for op in plan.driver.function.block.ops:
            if op.name == SECTION and "updated" in op.attrs:
                again = op.blocks[1]
                counted = [o.name for o in again.ops if o.name in ("mutate", "torch.batch_norm")]
                assert counted == ["torch.batch_norm"] * len(counted)
                return
    pytest.fail("no plan has a segment with statistics")


@pytest.mark.parametrize("entry", [lt.script, pytest.param(lt.compile, marks=pytest.mark.long)])
def test_training_is_the_same(entry: Any) -> None:
    def trained(budget: int | None) -> list[Tensor]:
        torch.compiler.reset()
        model, x = made(InPlace)
        call = entry(model) if budget is None else entry(model, budget=budget)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            step(model, lambda: call(x), x)
            optimizer.step()
        return [*model.state_dict().values()]

    with pytest.raises(BudgetError) as refused:
        trained(1)
    torch.testing.assert_close(trained(refused.value.least_bytes), trained(None))


def effects(function: Callable[..., Any], *args: Tensor) -> list[Any]:
    compiled = lt.script(function)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    outer = Outer(Driver(driver.function), values)
    return ObservedEffects(outer).rows


def with_a_generator(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randn(x.shape, generator=g) * x


def looked_up(i: Tensor, w: Tensor) -> Tensor:
    return F.embedding(i, w, max_norm=1.0)


def by_another_name(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0]


def test_what_is_written_is_seen() -> None:
    found = effects(looked_up, torch.tensor([1, 2]), torch.rand(4, 5))
    assert any(row.writes for row in found)
    found = effects(by_another_name, torch.rand(4, 5), torch.zeros(5), torch.ones(5))
    assert max(len(row.writes) for row in found) == 2


def test_a_generator_of_the_caller_does_not_give_the_same_again() -> None:
    found = effects(with_a_generator, torch.rand(4), torch.Generator())
    assert not all(row.repeats for row in found)


def attended(x: Tensor) -> Tensor:
    near = (x @ x.mT / 4.0).masked_fill(x[:, :, :1] < 0.1, -1.0)
    x = F.dropout(torch.softmax(near, -1), 0.1) @ x
    return x.square().mean()


def test_a_search_ends_where_chunks_leave_nothing_to_segments() -> None:
    """Kernels build less of a part than its ops make, and so what is left was less than nothing."""
    free: Any = lt.script(attended)
    driver, values = free.resolve(free.bind((torch.rand(48, 128, 16, requires_grad=True),), {}))
    driver = Driver(driver.function)
    outer = Outer(driver, values)
    cutter = Cutter(ObservedEffects(outer))
    chunks = dict.fromkeys(candidates(outer), 16)
    assert chunks
    assert cutter.set_chunked(chunks) >= 0
    found = _with_segments(_Trials(driver, values, ()), cutter, chunks, _Least())
    assert len(list(islice(found, 10))) < 10
