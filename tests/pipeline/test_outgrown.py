"""Kernels planned at a small first call are planned anew where they would store values of pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from lowtide.execute import replan
from lowtide.tile import axes, strips
from tests.grad.eager_gradients import close, randn

LARGE = (1500, 1300, 64)
PAIRS_BYTES = 1500 * 1300 * 8


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Half a MiB is much here, and products of 64 terms are long."""
    monkeypatch.setattr(replan, "_SPARE_BYTES", 1 << 19)
    for module, name in ((axes, "LONG"), (strips, "FEWEST"), (strips, "MOST")):
        monkeypatch.setattr(module, name, 64)
    with faults.strict():
        yield


def cross_entropy(x: Tensor, w: Tensor):
    return F.cross_entropy(x @ w.t(), torch.arange(x.shape[0]) * 7 % w.shape[0])


def neighbours(x: Tensor, w: Tensor):
    return torch.softmax(x @ w.t(), -1) @ w


def inputs(n: int, m: int, c: int) -> list[Tensor]:
    return [randn(n, c).requires_grad_(), (randn(m, c, seed=1) * 0.3).requires_grad_()]


def gradients(fn: Callable[..., Tensor], args: list[Tensor]) -> tuple[Tensor, ...]:
    found = fn(*args)
    return torch.autograd.grad(found, args, torch.ones_like(found))


@pytest.mark.parametrize("fn", [cross_entropy, neighbours])
@pytest.mark.parametrize(
    "first", [(40, 36, 64), pytest.param((150, 130, 64), marks=pytest.mark.long)]
)
def test_as_little_as_if_it_had_come_first(
    fn: Callable[..., Tensor], first: tuple[int, int, int]
) -> None:
    compiled, args = lt.script(fn), inputs(*LARGE)
    gradients(compiled, inputs(*first))
    for found, want in zip(gradients(compiled, args), gradients(fn, args), strict=True):
        close(found, want)
    peak = compiled.memory(*args).peak_bytes
    assert peak <= 1.1 * lt.script(fn).memory(*args).peak_bytes
    assert peak < PAIRS_BYTES


def test_both_plans_are_kept_and_explained() -> None:
    compiled, small, large = lt.script(cross_entropy), inputs(40, 36, 64), inputs(*LARGE)
    before = compiled.memory(*small).peak_bytes
    gradients(compiled, small)
    assert replan.OUTGROWN not in str(compiled.explain(*small))
    assert replan.OUTGROWN in str(compiled.explain(*large))
    assert compiled.memory(*small).peak_bytes == before
    for args in (small, large):
        pairs = zip(gradients(compiled, args), gradients(cross_entropy, args), strict=True)
        assert all(torch.allclose(found, want) for found, want in pairs)


def test_a_plan_that_is_as_good_stays() -> None:
    def doubled(x: Tensor) -> Tensor:
        return torch.sort(x * 2).values.cumsum(0) + x

    compiled = lt.script(doubled)
    compiled(randn(40))
    large = randn(1 << 20)
    close(compiled(large), doubled(large))
    assert replan.OUTGROWN not in str(compiled.explain(large))


def test_a_plan_that_cannot_be_made_leaves_the_one_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> bool:
        raise AssertionError("no plan")

    compiled, args = lt.script(neighbours), inputs(*LARGE)
    gradients(compiled, inputs(40, 36, 64))
    monkeypatch.setattr(replan.Plan, "is_outgrown", fails)
    with faults.strict(False), pytest.warns(RuntimeWarning, match="those for smaller ones run"):
        found = gradients(compiled, args)
    for x, want in zip(found, gradients(neighbours, args), strict=True):
        close(x, want)
