"""Forty programs of numbers, strings, containers and tensors; `python -m tests.fuzz --mixed` runs
more, and makes small what fails."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.diagnostics import faults
from tests.fuzz.mixed import generate
from tests.fuzz.mixed_check import check


@pytest.mark.parametrize("seed", range(40))
def test_mixed_program(seed: int) -> None:
    program = generate(seed)
    wrong = check(program)
    assert not wrong, f"{wrong}\n{program}"


def test_tensor_of_a_list_that_a_loop_has_made() -> None:
    def f(x: Tensor, ys: list[float]) -> Tensor:
        y = x * 2
        for _ in range(3):
            ys = torch.where(y > 0.5, x, 0.5)[0].tolist()
        return torch.tensor(ys).sum() + y

    x = torch.rand(2, 3)
    with faults.strict():
        torch.testing.assert_close(lt.script(f)(x, [1.0]), f(x, [1.0]))
