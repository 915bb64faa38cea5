"""Forty programs like those that people write, as users compile them; `python -m tests.fuzz` runs
more, and prints a program that fails as one that runs by itself."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.sketch import widened
from tests.fuzz.usual import generate
from tests.fuzz.usual_check import check
from tests.fuzz.verdict import difference, sharing


@pytest.mark.parametrize("seed", range(40))
def test_program(seed: int) -> None:
    sketch = generate(seed)
    wrong = check(sketch)
    assert not wrong, f"{wrong}\n{sketch}"


def _none() -> list[torch.Tensor | None]:
    return []


def test_floats_are_judged_by_the_error_of_comparable_elements() -> None:
    truth = torch.tensor([1.0, 2.0, 3e-6], dtype=torch.float64)
    eager = (truth + torch.tensor([1e-6, 0.0, 0.0])).float()
    near = (truth + torch.tensor([0.0, 3e-6, 0.0])).float()
    assert not difference(near, eager, truth, _none)
    far = (truth + torch.tensor([0.0, 6e-6, 0.0])).float()
    assert "1 of 3 wrong, first at [1]" in difference(far, eager, truth, _none)
    small = (truth + torch.tensor([0.0, 0.0, 1e-6])).float()
    assert "1 of 3 wrong, first at [2]" in difference(small, eager, truth, _none)


def test_ends_are_eagers_or_the_truths() -> None:
    eager = torch.tensor([torch.inf, torch.nan, 1.0])
    truth = torch.tensor([1e300, torch.nan, 1.0], dtype=torch.float64)
    assert not difference(eager.clone(), eager, truth, _none)
    assert "first at [2]" in difference(torch.tensor([torch.inf, torch.nan, torch.nan]), eager,
                                        truth, _none)  # fmt: skip
    assert "first at [1]" in difference(torch.tensor([torch.inf, 0.0, 1.0]), eager, truth, _none)
    assert not difference(torch.tensor([-torch.inf, torch.nan, 1.0]), eager, truth,
                                        _none)  # fmt: skip


def test_whole_numbers_and_layouts_are_eagers() -> None:
    eager = torch.arange(6).reshape(2, 3)
    assert "1 of 6 wrong" in difference(eager.clone().index_fill_(0, torch.tensor([1]), 0)
                                        .copy_(torch.tensor([[0, 1, 2], [3, 4, 6]])), eager,
                                        None, _none)  # fmt: skip
    assert "strides" in difference(eager.t().contiguous().t(), eager, None, _none)
    assert "int32" in difference(eager.int(), eager, None, _none)
    x = torch.zeros(4)
    assert sharing({"x": x, "y": x[1:], "z": torch.zeros(2)}) == {"y": "x from 1"}


def test_widened() -> None:
    assert widened("x.half() + torch.zeros(2, dtype=torch.bfloat16)") == (
        "x.double() + torch.zeros(2, dtype=torch.float64)"
    )
