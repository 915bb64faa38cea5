"""A few random programs' predicted peaks; `python -m tests.fuzz --memory` runs more."""

from __future__ import annotations

import pytest

from tests.fuzz.generate import generate
from tests.fuzz.memory_check import check_one

SEEDS = [*range(200, 206), *(pytest.param(s, marks=pytest.mark.long) for s in range(206, 230))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("grad", [False, True], ids=["plain", "grad"])
def test_a_random_program_takes_what_is_predicted(seed: int, grad: bool) -> None:
    program = generate(seed)
    wrong = check_one(program, grad)
    assert not wrong, f"{wrong}\n{program}"
