"""`lt.compare`: rows, differences, and callables that fail."""

from __future__ import annotations

import json
import math

import pytest
import torch

import lowtide as lt
from lowtide.errors import LowtideError
from lowtide.tools.comparison import Comparison

X = torch.arange(6, dtype=torch.float32)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def compared(**others: object) -> Comparison:
    return lt.compare({"eager": double, **others}, (X,), repeats=2)  # type: ignore[dict-item]


def test_rows_are_measured_and_checked_against_the_first() -> None:
    found = compared(same=lambda x: x + x, other=lambda x: x * 3)
    assert [row.name for row in found.rows] == ["eager", "same", "other"]
    for row in found.rows:
        assert row.min_ms is not None
        assert row.median_ms is not None
        assert row.first_call_ms is not None
        assert row.peak_bytes is not None
        assert row.min_ms <= row.median_ms
    assert found["eager"].agrees is None
    assert found["same"].agrees is True
    assert found["other"].agrees is False
    assert found["other"].max_abs == 5
    assert found["other"].max_rel == 0.5


def test_a_callable_that_raises_gets_a_row() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no room\nfor details")

    found = compared(fails=fails)
    assert found["fails"].error == "RuntimeError: no room"
    assert found["fails"].min_ms is None
    assert found["eager"].min_ms is not None
    assert "RuntimeError: no room" in str(found)


def test_a_callable_that_raises_later_gets_a_row() -> None:
    calls = 0

    def fails_third(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls >= 3:
            raise ValueError("worn out")
        return x * 2

    assert compared(fails=fails_third)["fails"].error == "ValueError: worn out"


def test_the_reference_is_the_first_that_works() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    found = lt.compare({"fails": fails, "a": double, "b": lambda x: x * 3}, (X,), repeats=1)
    assert found["a"].agrees is None
    assert found["b"].agrees is False


def test_tolerance_can_be_given() -> None:
    off = {"eager": double, "off": lambda x: x * 2 + 0.1}
    assert lt.compare(off, (X,), repeats=1)["off"].agrees is False
    assert lt.compare(off, (X,), repeats=1, atol=0.2)["off"].agrees is True


def test_it_prints_and_becomes_json() -> None:
    found = compared(wrong=lambda x: x[:2])
    text = str(found)
    assert text.splitlines()[0].split()[:4] == ["name", "min", "median", "peak"]
    assert text.splitlines()[3].endswith("NO")
    assert text.splitlines()[4] == "wrong: shape [2], not [6]"
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(json.dumps(found.to_dict()))["rows"][0]["name"] == "eager"


def test_nothing_to_compare() -> None:
    with pytest.raises(LowtideError, match="at least one"):
        lt.compare({}, ())
    with pytest.raises(KeyError):
        compared()["absent"]


def test_a_result_that_is_an_argument_is_not_compared_with_itself() -> None:
    def changes(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    found = lt.compare({"same": lambda x: x, "changes": changes}, (torch.zeros(8),), repeats=1)
    assert found["changes"].agrees is False
    assert "changes its arguments" in found["changes"].note
    assert not found["same"].note
    assert "changes its arguments" in str(found)


def test_a_buffer_that_each_call_writes_to() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = torch.zeros(4)

        def forward(self, x: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
            return {"count": (self.count.add_(1),)}

    model = Counter()
    found = lt.compare({"first": model, "again": model}, (X,), repeats=1)
    assert found["again"].agrees is False


def test_args_are_a_sequence() -> None:
    with pytest.raises(lt.LowtideError, match=r"pass a tuple of arguments"):
        lt.compare({"eager": double}, X)  # type: ignore[arg-type]


def test_variants_have_names() -> None:
    with pytest.raises(lt.LowtideError, match=r"pass a dict of functions by name"):
        lt.compare(double, (X,))  # type: ignore[arg-type]


def test_variants_are_functions() -> None:
    with pytest.raises(lt.LowtideError, match=r"variants\['a'\] is of type int, not a function"):
        lt.compare({"a": 3}, (X,))  # type: ignore[dict-item]


@pytest.mark.parametrize("tolerance", [{"rtol": math.nan}, {"atol": -1.0}])
def test_tolerances_that_nothing_can_be_within_are_refused(tolerance: dict[str, float]) -> None:
    calls = dict.fromkeys(("one", "other"), lambda: torch.ones(3))
    with pytest.raises(lt.LowtideError, match="not negative"):
        lt.compare(calls, **tolerance)


def test_random_numbers_are_the_same_for_all() -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5, True)

    state = torch.get_rng_state()
    found = lt.compare({"a": dropped, "b": dropped, "c": lt.script(dropped)}, (torch.ones(1000),))
    assert found["b"].agrees
    assert found["c"].agrees
    assert torch.equal(torch.get_rng_state(), state)
