"""Loops whose first step is done before them: the values of Python, and scans where they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.passes import first_step_programs as p


@pytest.fixture(autouse=True)
def strictly() -> Iterator[None]:
    with faults.strict():
        yield


def arguments(n: int) -> list[Tensor]:
    torch.manual_seed(n)
    return [torch.randn(n, 4, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64) * 0.3]


def flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [x for part in found for x in flat(part)]


def with_gradients(fn: Callable[..., Any], given: list[Tensor]) -> list[Tensor | None]:
    leaves = [x.clone().requires_grad_() for x in given]
    found = flat(fn(*leaves))
    loss = torch.stack([y.square().sum() for y in found]).sum()
    return [*(y.detach() for y in found), *torch.autograd.grad(loss, leaves, allow_unused=True)]


def check(fn: Callable[..., Any], compiled: Any, n: int) -> None:
    given = arguments(n)[: 1 if isinstance(fn, torch.nn.Module) else 2]
    pairs = zip(with_gradients(compiled, given), with_gradients(fn, given), strict=True)
    for found, want in pairs:
        if want is None:
            assert found is None or not found.any()
        else:
            torch.testing.assert_close(found, want)


@pytest.mark.parametrize("fn", p.SCANS, ids=lambda f: f.__name__)
def test_is_a_scan(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (40, 2, 1):
        check(fn, compiled, n)
    report = str(compiled.explain(*arguments(40)))
    assert "once for each of" in report
    assert ", 0 ops left to PyTorch" in report


def test_a_cell_that_begins_with_none() -> None:
    fn = p.CellOfNone()
    compiled = lt.script(fn)
    check(fn, compiled, 40)
    report = str(compiled.explain(arguments(40)[0]))
    assert "once for each of" in report
    assert ", 0 ops left to PyTorch" in report


def test_a_sum_that_begins_as_a_number() -> None:
    compiled = lt.script(p.added_to_a_number)
    for n in (40, 2, 1):
        check(p.added_to_a_number, compiled, n)
    assert ", 0 ops left to PyTorch" in str(compiled.explain(*arguments(40)))
    found = compiled(torch.randn(0, 4, 6), torch.randn(6, 6))
    assert isinstance(found, int)
    assert found == 0


@pytest.mark.parametrize("fn", p.OTHERS, ids=lambda f: f.__name__)
def test_like_python(fn: Callable[..., Any]) -> None:
    compiled = lt.script(fn)
    for n in (34, 2):
        check(fn, compiled, n)


def test_no_step_at_all() -> None:
    compiled = lt.script(p.none_at_first)
    assert compiled(torch.randn(0, 4, 6), torch.randn(6, 6)) is None
    assert compiled(torch.randn(40, 4, 6), torch.randn(6, 6)) is not None


def test_an_error_of_the_first_step_names_its_line() -> None:
    compiled = lt.script(p.none_at_first)
    with pytest.raises(RuntimeError, match="multiplied") as caught:
        compiled(torch.randn(40, 4, 6), torch.randn(5, 6))
    lines = [frame.line for frame in traceback.extract_tb(caught.tb)]
    assert "h = x[t] @ w" in lines
