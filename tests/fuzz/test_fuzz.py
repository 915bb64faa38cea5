"""A fixed set of random programs, compiled against eager; `python -m tests.fuzz` runs more.

What the long run once found is in tests/run/test_once_wrong.py, as source: a seed means another
program as soon as the generator changes.
"""

from __future__ import annotations

import pytest

from tests.fuzz import alias_check, aliases, gradients, loop_check, loops, same_value
from tests.fuzz.check import check
from tests.fuzz.generate import generate


@pytest.mark.parametrize("seed", range(12))
def test_random_program(seed: int) -> None:
    program = generate(seed)
    wrong = check(program)
    assert not wrong, f"{wrong}\n{program}"


@pytest.mark.parametrize("seed", range(100, 108))
def test_gradients_of_a_random_program(seed: int) -> None:
    program = generate(seed)
    wrong = gradients.check(program)
    assert not wrong, f"{wrong}\n{gradients.in_double(program)}"


@pytest.mark.parametrize("seed", [13, 18, 100, 102])
def test_loops_of_a_random_program(seed: int) -> None:
    program = loops.generate(seed)
    wrong = loop_check.check(program)
    assert not wrong, f"{wrong}\n{program}"


@pytest.mark.parametrize("seed", [6, 7, *range(20, 38)])
def test_lists_of_a_random_program(seed: int) -> None:
    program = aliases.generate(seed)
    wrong = alias_check.check(program)
    assert not wrong, f"{wrong}\n{program}"


@pytest.mark.parametrize("seed", range(20))
def test_a_value_equals_itself(seed: int) -> None:
    program = same_value.generate(seed)
    wrong = same_value.check(program)
    assert not wrong, f"{wrong}\n{program}"
