"""A few random programs within budgets; `python -m tests.fuzz --budgets` runs more."""

from __future__ import annotations

import pytest

from tests.fuzz.budget_check import check
from tests.fuzz.generate import generate

SEEDS = [2021, *(pytest.param(s, marks=pytest.mark.long) for s in (2011, 2013, 2063, 2082))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_keeps_to_its_budgets(seed: int) -> None:
    program = generate(seed)
    wrong = check(program)
    assert not wrong, f"{wrong}\n{program}"
