"""Forty modules that keep state, called and changed in turns; `python -m tests.fuzz --states` runs
more, and makes small what fails."""

from __future__ import annotations

import pytest

from tests.fuzz.state_check import check
from tests.fuzz.states import generate


@pytest.mark.parametrize("seed", range(40))
def test_story(seed: int) -> None:
    story = generate(seed)
    wrong = check(story)
    assert not wrong, f"{wrong}\n{story}"
