"""Calls of which the data decide what they take are done in pieces: bounded closely whatever the
data are, with the results and gradients of PyTorch."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import lowtide as lt
from lowtide.pipeline.driver import BlockPlan
from tests.memory.contract import asked_bytes, assert_budget_kept, assert_within_contract


def exponentials(x: Tensor) -> Tensor:
    return torch.matrix_exp(x)


def exponentials_by_method(x: Tensor) -> Tensor:
    return x.matrix_exp()


def along_rows(x: Tensor) -> Tensor:
    return torch.cumprod(x, 1)


def along_columns(x: Tensor) -> Tensor:
    return x.cumprod(dim=0)


def matrices(shape: tuple[int, ...], low: float, high: float, dtype: Any = torch.float32) -> Tensor:
    """Of norms from 10^low to 10^high."""
    made = torch.randn(shape, dtype=dtype)
    count = made[..., 0, 0].numel()
    norms = torch.logspace(low, high, count, dtype=dtype).view(*shape[:-2], 1, 1)
    return made / made.abs().sum(-2, keepdim=True).amax(-1, keepdim=True) * norms


def with_zeros(shape: tuple[int, ...], share: float) -> Tensor:
    made = torch.rand(shape) + 0.5
    made[torch.rand(shape) < share] = 0
    return made


def alike() -> Tensor:
    return matrices((120, 48, 48), 0.9, 1)


def mixed() -> Tensor:
    return matrices((120, 48, 48), -1.5, 1.5)


def tiny_and_huge() -> Tensor:
    """Of turned planes, whose exponentials are no larger than they."""
    made = torch.randn(4000, 4, 4)
    return (made - made.mT) * torch.logspace(-5, 4, 4000)[:, None, None]


def in_two_dims() -> Tensor:
    return matrices((3, 70, 40, 40), -1, 1, torch.float64)


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]] = {
    "alike": (exponentials, alike),
    "mixed": (exponentials, mixed),
    "tiny and huge": (exponentials, tiny_and_huge),
    "in two dims": (exponentials_by_method, in_two_dims),
    "no zeros": (along_rows, lambda: with_zeros((800, 3000), 0)),
    "some zeros": (along_rows, lambda: with_zeros((800, 3000), 0.001)),
    "columns": (along_columns, lambda: with_zeros((800, 3000), 0)),
    "columns with zeros": (along_columns, lambda: with_zeros((800, 3000), 0.001)),
    "lying otherwise": (along_columns, lambda: with_zeros((1500, 1600), 0.001).t()),
}


def backward(run: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    y = run(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return y.detach(), gradient


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_pytorch(name: str) -> None:
    run, make = CALLS[name]
    torch.manual_seed(0)
    x = make()
    compiled: Any = lt.script(run)
    torch.testing.assert_close(compiled(x), run(x))
    assert compiled(x).stride() == run(x).stride()
    x.requires_grad_()
    for got, want in zip(backward(compiled, x), backward(run, x), strict=True):
        largest = want.abs().max().item()
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_predictions_are_close_whatever_the_data_are(name: str, grad: bool) -> None:
    run, make = CALLS[name]
    torch.manual_seed(0)
    x = make().requires_grad_(grad)
    compiled: Any = lt.script(run)

    def call() -> object:
        return backward(compiled, x) if grad else compiled(x)

    call()
    predicted = compiled.memory(x).peak_bytes
    assert_within_contract(asked_bytes(call), predicted, library_ops=False)


@pytest.mark.parametrize("name", ["mixed", "columns with zeros"])
def test_budgets_are_kept(name: str) -> None:
    run, make = CALLS[name]
    torch.manual_seed(0)
    x = make().requires_grad_()

    def scaled(x: Tensor) -> Tensor:
        return run(x * 0.5).square()

    unbounded = lt.script(scaled).memory(x).peak_bytes
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(scaled, budget=1)(x)
    least = refused.value.least_bytes
    for budget in (least, (least + unbounded) // 2):
        limited: Any = lt.script(scaled, budget=budget)
        assert limited.memory(x).peak_bytes <= budget
        got, want = backward(limited, x), backward(scaled, x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * want[1].abs().max().item())
        asked = asked_bytes(functools.partial(backward, limited, x))
        assert_budget_kept(asked, budget, library_ops=False)


def test_a_gradient_of_a_gradient_is_pytorchs() -> None:
    torch.manual_seed(0)
    x = (torch.randn(40, 32, 32) / 10).requires_grad_()

    def twice(run: Callable[[Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    torch.testing.assert_close(twice(lt.script(exponentials)), twice(exponentials))


def test_where_no_axis_is_free_it_is_done_as_one() -> None:
    x = (torch.rand(400_000) + 0.5).requires_grad_()
    compiled: Any = lt.script(along_columns)
    got, want = backward(compiled, x), backward(along_columns, x)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert compiled.memory(x).peak_bytes > 8 * x.nbytes


def test_it_is_told_once() -> None:
    (line,) = lt.script(exponentials).explain(torch.rand(200, 40, 40)).torch_ops
    assert line.op == "matrix_exp"


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(along_rows, x * 2, use_reentrant=False) * 2


@pytest.mark.parametrize("run", [exponentials, checkpointed])
def test_a_section_made_in_a_call_is_planned_once(run: Callable[[Tensor], Tensor]) -> None:
    x = (torch.randn(120, 32, 32) / 10).requires_grad_()
    compiled: Any = lt.script(run)
    counts: list[int] = []
    for _ in range(4):
        backward(compiled, x)
        gc.collect()
        counts.append(sum(type(made) is BlockPlan for made in gc.get_objects()))
    assert counts[1] == counts[-1]


@pytest.mark.parametrize("shape", [(300, 20, 30), (200_000,)])
def test_what_pytorch_refuses_it_refuses_as_ever(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError) as eager:
        torch.matrix_exp(torch.rand(shape))
    with pytest.raises(RuntimeError) as told:
        lt.script(exponentials)(torch.rand(shape))
    assert str(eager.value) in str(told.value)
