"""Loops that PyTorch's capture and `lt.trace` unroll: found again, with eager's results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.compiler import simplified
from lowtide.diagnostics import faults
from lowtide.frontend.dynamo import convert
from lowtide.ir.core import Function
from tests.dynamo.unrolled import CASES, STEPS, Case
from tests.passes.unrolled_programs import B, D, T, function, source


def leaves(model: Callable[..., Any]) -> list[torch.Tensor]:
    return list(model.parameters()) if isinstance(model, torch.nn.Module) else []


def run(model: Callable[..., Any], x: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[Any]:
    """The results, and the gradients of the input and the parameters."""
    torch.manual_seed(5)
    x = x.clone().requires_grad_()
    found = model(x)
    results = list(found) if isinstance(found, tuple) else [found]
    loss = sum((r * torch.linspace(1, 2, r.numel()).view(r.shape)).sum() for r in results)
    return [*results, *torch.autograd.grad(loss, [x, *weights], allow_unused=True)]


def loops(program: Function) -> int:
    return sum(op.name == "loop" for op in program.walk())


def check(case: Case, compiled: Callable[..., Any], x: torch.Tensor) -> None:
    _, model, _ = case
    with faults.strict():
        got = run(compiled, x, leaves(model))
    for a, b in zip(got, run(model, x, leaves(model)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_captured(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    programs: list[Function] = []

    def kept(fn: Function, unrolled: bool) -> Function:
        programs.append(simplified(fn, unrolled=unrolled))
        return programs[-1]

    monkeypatch.setattr(convert, "simplified", kept)
    torch._dynamo.reset()
    torch.manual_seed(0)
    _, model, count = case
    x = torch.rand(12, STEPS, 3)
    compiled = lt.compile(model, fullgraph=True)
    check(case, compiled, x)
    assert [loops(p) for p in programs] == [count]


@pytest.mark.parametrize("case", CASES, ids=[c[0] for c in CASES])
def test_traced(case: Case) -> None:
    torch.manual_seed(0)
    _, model, count = case
    x = torch.rand(12, STEPS, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = lt.trace(model, (x,), check_trace=False)
    program = (traced.forward if isinstance(model, torch.nn.Module) else traced).program()
    assert loops(program) == count
    check(case, traced, x)


@pytest.mark.parametrize("seed", [4, 8, 9, 13, 28, 31])
def test_random_loops(seed: int) -> None:
    """A few of the programs that `tests/passes` interprets, compiled and differentiated."""
    torch.manual_seed(seed)
    given = [torch.rand(T, B, D), torch.rand(D, D), torch.rand(B, D)]
    eager = function(source(seed))
    traced = lt.trace(eager, tuple(given), check_trace=False)
    assert loops(traced.program())
    found: list[list[Any]] = []
    for fn in (eager, traced):
        args = [x.clone().requires_grad_() for x in given]
        torch.manual_seed(1)
        with faults.strict():
            results = fn(*args)
            loss = sum((r * torch.linspace(1, 2, r.numel()).view(r.shape)).sum() for r in results)
            grads = torch.autograd.grad(loss, args, allow_unused=True)
        found.append([*results, *grads])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_an_inner_loop_that_reads_something_else_once() -> None:
    """Loops that are ops of an outer one are the same only if their ops read the same."""

    def model(c1: torch.Tensor, c2: torch.Tensor):
        for k in range(6):
            for _ in range(5):
                a, b = torch.cos(c1), torch.sin(c2)
                c1, c2 = a * (c2 if k == 5 else b), b
            c1 = c1 + 1
        return c1, c2

    given = [torch.linspace(0.1, 1, 4), torch.linspace(1, 2, 4)]
    for got, want in zip(lt.trace(model, tuple(given))(*given), model(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
