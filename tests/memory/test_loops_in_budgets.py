"""Loops that only carry, in training: written out where they are short, else done in stretches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lowtide as lt
from lowtide.budget.decided import with_unrolled_loops
from lowtide.execute.driver import Driver


def thrice(x, a, b):
    for _ in range(3):
        x = x + F.gelu(x @ a) @ b
    return x


def to_and_fro(u, v):
    for i in range(2):
        for k in range(3):
            u, v = v, torch.sin(u * (i + k)) + v
    return u, v


def many(x, a):
    for _ in range(60):
        x = torch.tanh(x @ a)
    return x


def as_often_as_it_says(x, n: int):
    for _ in range(n):
        x = torch.sin(x) + x
    return x


def until_it_is_large(x):
    for _ in range(4):
        if x.sum() > 1:
            x = x * 0.5
    return x


def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [(torch.randn(shape, dtype=torch.float64) * 0.1).requires_grad_() for shape in shapes]


def gradients(fn: Any, args: list[Tensor]) -> list[Tensor]:
    found = fn(*args)
    return list(
        torch.autograd.grad(
            sum(y.sum() for y in found) if isinstance(found, tuple) else found.sum(), args
        )
    )


def least_of(fn: Any, args: list[Tensor]) -> int:
    with pytest.raises(lt.BudgetError) as refused:
        lt.script(fn, budget=1000)(*args)
    return refused.value.least_bytes


@pytest.mark.parametrize(
    ("fn", "shapes", "share"),
    [
        pytest.param(thrice, [(1000, 64), (64, 256), (256, 64)], 0.5, marks=pytest.mark.long),
        (many, [(800, 128), (128, 128)], 0.5),
    ],
)
def test_much_less_is_enough(fn: Any, shapes: list[tuple[int, ...]], share: float) -> None:
    args = inputs(*shapes)
    free, least = lt.script(fn).memory(*args).peak_bytes, least_of(fn, args)
    assert least < share * free
    for budget in (least, (least + free) // 2):
        limited = lt.script(fn, budget=budget)
        assert limited.memory(*args).peak_bytes <= budget
        for got, want in zip(gradients(limited, args), gradients(fn, args), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def function_of(fn: Any, *args: Any) -> tuple[Driver, Any]:
    compiled: Any = lt.script(fn)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    return Driver(driver.function), values


def loops(function: Any) -> int:
    return sum(op.name == "loop" for op in function.walk())


def test_loops_within_loops_are_written_out() -> None:
    driver, values = function_of(to_and_fro, *inputs((5, 4), (5, 4)))
    assert loops(driver.function)
    made = with_unrolled_loops(driver, values)
    assert not loops(made)
    for got, want in zip(Driver(made)(values), to_and_fro(*values), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(("n", "left"), [(3, 0), (32, 0), (33, 1), (0, 1)])
def test_a_number_of_steps_that_is_an_argument(n: int, left: int) -> None:
    """Plans are kept by it. No step at all is left as it is."""
    x = inputs((5, 4))[0]
    driver, values = function_of(as_often_as_it_says, x, n)
    made = with_unrolled_loops(driver, values)
    assert loops(made) == left
    torch.testing.assert_close(Driver(made)(values), as_often_as_it_says(x, n))


def test_what_the_data_decide_stays() -> None:
    x = torch.rand(300, 200)
    torch.testing.assert_close(lt.script(until_it_is_large, budget="2MB")(x), until_it_is_large(x))
