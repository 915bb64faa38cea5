"""Products whose results are kept where chunks are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lowtide as lt
from lowtide.budget.search import Plan, path
from lowtide.execute.driver import Driver
from lowtide.execute.section import SECTION
from tests.memory.calls import tensors
from tests.memory.contract import assert_within_contract, requested_bytes

pytestmark = pytest.mark.long  # plans of many parts; `test_budget` has some of each


class Layers(nn.Module):
    """Most operations at the low resolution, most bytes at the high one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm1 = nn.GroupNorm(2, 8)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, 16)
        self.third = nn.ConvTranspose2d(16, 8, 2, 2)

    def forward(self, x: Tensor) -> Any:
        a = torch.relu(self.norm1(self.first(x)))
        b = torch.relu(self.norm2(self.second(F.max_pool2d(a, 2))))
        return (self.third(b) + a).square().mean((2, 3))


class WrittenInto(Layers):
    """What follows a convolution writes into its result, of which there is another name: it is not
    there any more."""

    def forward(self, x: Tensor) -> Any:
        a = self.first(x)
        rows = a.view(a.shape[0], -1)
        torch.relu_(a)
        b = torch.relu(self.norm2(self.second(F.max_pool2d(a, 2))))
        return self.third(b).square().mean((2, 3)) + a.mean((2, 3)) + rows.mean()


class Dropped(Layers):
    def forward(self, x: Tensor) -> Any:
        a = F.dropout(self.norm1(self.first(x)), 0.4)
        b = F.dropout(self.norm2(self.second(F.max_pool2d(a, 2))), 0.4)
        return (self.third(b) + a).square().mean((2, 3))


class HandedOut(Layers):
    """The caller gets the result of a convolution, and may write into it."""

    def forward(self, x: Tensor) -> Any:
        a = self.first(x)
        return a, self.second(F.max_pool2d(torch.relu(self.norm1(a)), 2)).square()


MODELS = [Layers, WrittenInto, Dropped, HandedOut]


def planned(model: nn.Module, x: Tensor) -> tuple[Iterator[Any], list[Any]]:
    """The plans that keep products, each found when it is asked for; what their drivers take."""
    forward = lt.script(model).forward
    driver, values = forward.resolve(forward.bind((x,), {}))
    plans = path(Driver(driver.function), values)
    return (p for p in plans if any(map(_kept, p.driver.function.walk()))), values


def _kept(op: Any) -> int:
    return op.attrs.get("products", 0) if op.name == SECTION else 0


def made(kind: type[Layers], size: int = 32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = kind().double()
    return model, torch.randn(8, 3, size, size, dtype=torch.float64, requires_grad=True)


def gradients(call: Any, model: nn.Module, x: Tensor) -> list[Tensor]:
    """Results; gradients of them, twice; and gradients of gradients."""
    torch.manual_seed(1)
    wanted = [x, *model.parameters()]
    y = tensors(call())
    loss = sum(z.square().sum() for z in y)
    some = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
    again = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
    (first,) = torch.autograd.grad(loss, [x], create_graph=True)
    second = torch.autograd.grad(first.square().sum(), wanted, allow_unused=True)
    return [*(z.detach() for z in y), *(g for g in (*some, *again, *second) if g is not None)]


@pytest.mark.usefixtures("small_ones_reused")
@pytest.mark.parametrize(
    "kind",
    [Dropped, *(pytest.param(m, marks=pytest.mark.long) for m in MODELS if m is not Dropped)],
    ids=lambda kind: kind.__name__,
)
def test_every_plan_gives_what_eager_gives(kind: type[Layers]) -> None:
    model, x = made(kind)
    plans, values = planned(model, x)
    first = next(plans)
    expected = None if kind is Dropped else gradients(lambda: model(x), model, x)
    for plan in (first, *islice(plans, 5)):
        found = gradients(lambda driver=plan.driver: driver(values), model, x)
        expected = expected or found  # dropout: each chunk has masks of its own
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [WrittenInto, HandedOut], ids=lambda kind: kind.__name__)
def test_what_others_write_into_is_not_kept(kind: type[Layers]) -> None:
    plans, _ = planned(*made(kind))
    most = max(_kept(op) for plan in plans for op in plan.driver.function.walk())
    assert most == (2 if kind is WrittenInto else 1)


def convolutions(run: Any) -> int:
    """How many kernels of them run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    kernels = ("mkldnn_convolution", "slow_conv_transpose2d", "_slow_conv2d_forward")
    return sum(event.name.removeprefix("aten::") in kernels for event in profile.events())


def test_they_are_not_computed_again() -> None:
    model, x = made(Layers)
    found, values = planned(model, x)
    plans = list(found)
    assert plans
    for plan in plans:
        (section,) = [op for op in plan.driver.function.walk() if op.name == SECTION]
        chunks, kept = section.attrs["chunks"], section.attrs.get("kept", 0)
        y = plan.driver(values)
        once = convolutions(lambda driver=plan.driver: driver(values))
        assert once == 3 * chunks
        again = convolutions(lambda y=y: y.sum().backward())
        assert again == (3 - _kept(section)) * (chunks - kept)


def test_the_peak_is_as_predicted() -> None:
    model, x = made(Layers, 256)
    found, values = planned(model, x)
    plans = list(found)

    def run(plan: Plan) -> None:
        x.grad = None
        model.zero_grad()
        y = plan.driver(values)
        y.sum().backward()

    for plan in plans[:: max(len(plans) // 3, 1)]:
        run(plan)
        x.grad = None
        model.zero_grad()
        asked = requested_bytes(partial(run, plan))
        assert_within_contract(asked, plan.peak_bytes, library_ops=True)


def test_an_op_that_asks_the_data_for_a_number_is_no_product() -> None:
    def loss(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return F.gaussian_nll_loss(x.tanh(), y, v.exp())  # raises if a variance is negative

    mine, theirs = ([torch.rand(300, 70).requires_grad_() for _ in range(3)] for _ in range(2))
    for x, y in zip(mine, theirs, strict=True):
        x.data.copy_(y.data)
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(loss, budget=1)(*mine)
    limited: Any = lt.script(loss, budget=refused.value.least_bytes)
    limited(*mine).backward()
    loss(*theirs).backward()
    for x, y in zip(mine, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad)
