"""A few random programs' resident peaks; `python -m tests.fuzz --resident` runs more."""

from __future__ import annotations

import pytest

from lowtide.memory.measure import can_measure_resident
from tests.fuzz.generate import generate
from tests.fuzz.resident_check import check

SEEDS = [2021, *(pytest.param(s, marks=pytest.mark.slow) for s in (2011, 2013, 2063, 2082))]


@pytest.mark.skipif(not can_measure_resident(), reason="needs Linux's /proc")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program_is_resident_with_what_is_predicted(seed: int) -> None:
    program = generate(seed)
    wrong = check(program)
    assert not wrong, f"{wrong}\n{program}"
