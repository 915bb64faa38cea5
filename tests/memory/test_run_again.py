"""What of a section runs again in the backward pass; what nobody reads the values of does not."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.cheapest import cheapest
from lowtide.budget.effects import ObservedEffects
from lowtide.budget.find import candidates
from lowtide.budget.outer import Outer
from lowtide.budget.products import is_product
from lowtide.budget.rewrite import Known, with_sections
from lowtide.budget.search import path
from lowtide.budget.segments import Cutter
from lowtide.execute.candidate import Candidate
from lowtide.execute.driver import Driver
from lowtide.execute.section import SECTION

pytestmark = pytest.mark.usefixtures("small_ones_reused")
f64 = torch.float64


def two(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(F.conv2d(x, v, padding=1))
    y = y - y.mean()
    y = F.conv2d(y, w, padding=1)
    return torch.tanh(y - y.mean())


def dropped(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Random numbers in both, and after both."""
    y = F.dropout(F.conv2d(x, v, padding=1), 0.3)
    y = F.dropout(F.conv2d(y - y.mean(), w, padding=1), 0.3)
    return F.dropout(y - y.mean(), 0.5)


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 40, 40, dtype=f64, requires_grad=True)
    v, w = (torch.randn(8, n, 3, 3, dtype=f64, requires_grad=True) for n in (3, 8))
    return [x, v, w]


class Sections:
    """Of one program, with what the search knows of it."""

    def __init__(self, program: Callable[..., Tensor], args: Sequence[Tensor]) -> None:
        compiled: Any = lt.script(program)
        self.driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
        self.outer = outer = Outer(self.driver, values)
        self.cutter = Cutter(ObservedEffects(outer))
        self.runs = candidates(outer)
        self.known = Known(
            sources=functools.cache(self.cutter.effects.sources),
            form_of=outer.form_of,
            is_product=functools.partial(is_product, outer),
        )

    def ends_of(self, name: str) -> list[int]:
        """Where the ops of this name end."""
        ops = self.outer.ops
        return [k + 1 for k, op in enumerate(ops) if str(op.attrs.get("target")).endswith(name)]

    def planned(self, chunks: dict[Candidate, int]) -> Callable[..., Any]:
        made = Driver(with_sections(self.driver.function, chunks, {}, known=self.known))
        return lambda *given: made(list(given))


def convolutions(run: Callable[[], object]) -> int:
    """How many of them are computed, beside gradients."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    kernels = ("mkldnn_convolution", "_slow_conv2d_forward")
    return sum(event.name.removeprefix("aten::") in kernels for event in profile.events())


def gradients(call: Callable[..., Tensor], args: Sequence[Tensor]) -> list[Tensor]:
    torch.manual_seed(3)
    y = call(*args)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), args), torch.rand(3)]


@pytest.mark.parametrize("program", [two, dropped])
def test_a_convolution_that_comes_last_is_not_computed_again(program: Any) -> None:
    args = inputs()
    sections = Sections(program, args)
    call = sections.planned(dict.fromkeys(sections.runs, 4))
    torch.testing.assert_close(gradients(call, args), gradients(program, args))
    y = call(*args).sum()
    before_others = 1 if program is two else 0  # relu reads the first one's result
    assert convolutions(lambda: y.backward()) == 4 * before_others


@pytest.mark.parametrize("program", [two, dropped])
def test_a_section_that_comes_last_is_not_run(program: Any) -> None:
    """A segment of everything up to the second convolution, which is a section within it."""
    args = inputs()
    sections = Sections(program, args)
    first, second = sections.runs[:2]
    segment = sections.cutter.candidate(0, second.stop)
    assert segment is not None
    call = sections.planned({segment: 1, first: 4, second: 4})
    torch.testing.assert_close(gradients(call, args), gradients(program, args))
    y = call(*args).sum()
    before_others = 1 if program is two else 0
    assert convolutions(lambda: y.backward()) == 4 + 4 * before_others  # the first, for the second
    alone = sections.planned({segment: 1})(*args).sum()
    assert convolutions(lambda: alone.backward()) == 1  # the second comes last


@pytest.mark.parametrize("program", [two, dropped])
def test_segments_within_segments(program: Any) -> None:
    args = inputs()
    sections = Sections(program, args)
    cutter = sections.cutter
    first, last = sections.ends_of("conv2d")
    whole = cutter.candidate(0, len(sections.outer.ops) - 1)
    parts = [
        whole,
        cutter.candidate(0, last),
        cutter.candidate(0, first),
        cutter.candidate(first, last),
    ]
    chosen = [c for c in parts if c is not None]
    assert len(chosen) >= 3
    call = sections.planned(dict.fromkeys(chosen, 1))
    expected = gradients(program, args)
    torch.testing.assert_close(gradients(call, args), expected)
    y = call(*args).square().sum()
    torch.autograd.grad(y, args, retain_graph=True)
    again = torch.autograd.grad(y, args, create_graph=True)
    assert all(g.requires_grad for g in again)


@pytest.mark.parametrize("in_chunks", [False, True])
def test_the_fewer_bytes_the_more_is_computed_again(in_chunks: bool) -> None:
    args = inputs()
    sections = Sections(two, args)
    cutter = sections.cutter
    most_bytes = cutter.set_chunked(dict.fromkeys(sections.runs, 4) if in_chunks else {})
    assert cheapest(cutter, most_bytes * 2) == []
    costs: list[int] = []
    while (segments := cheapest(cutter, most_bytes)) is not None:
        costs.append(cutter.cost(segments))
        for a, b in itertools.combinations(segments, 2):
            apart = a.stop <= b.start or b.stop <= a.start
            assert apart or (a.start <= b.start and b.stop <= a.stop)  # outer ones come first
        most_bytes *= 0.9
    assert len(set(costs)) > (not in_chunks)
    assert costs == sorted(costs)


def test_a_search_holds_no_arguments() -> None:
    compiled: Any = lt.script(two)
    args = inputs()
    driver, values = compiled.resolve(compiled.bind(tuple(args), {}))
    plans = list(itertools.islice(path(Driver(driver.function), values), 12))
    assert any(op.name == SECTION for plan in plans for op in plan.driver.function.walk())
    held = weakref.ref(args[0])
    del args, values
    gc.collect()
    assert held() is None
