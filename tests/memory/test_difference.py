"""How results are compared: the tolerance, special values, structures."""

from __future__ import annotations

import math

import pytest
import torch

from lowtide.tools import difference as module
from lowtide.tools.difference import default_tolerance, difference

NAN, INF = math.nan, math.inf


def test_equal_results_agree_exactly() -> None:
    x = torch.randn(5, 3)
    found = difference((x, [x, {"k": 1}]), (x.clone(), [x.clone(), {"k": 1}]))
    assert found.agrees
    assert found.max_abs == found.max_rel == 0
    assert not found.note


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_tolerance_scales_with_the_dtype(dtype: torch.dtype) -> None:
    x = torch.linspace(1, 2, 7, dtype=torch.float64)
    tolerance = default_tolerance(dtype)
    near, far = x * (1 + tolerance / 4), x * (1 + 8 * tolerance)
    assert difference(x.to(dtype), near.to(dtype)).agrees
    assert not difference(x.to(dtype), far.to(dtype)).agrees


def test_a_small_error_beside_large_elements_agrees() -> None:
    one, other = torch.tensor([1000.0, 1e-6]), torch.tensor([1000.0, 2e-6])
    found = difference(one, other)
    assert found.agrees
    assert found.max_rel == pytest.approx(1.0, rel=1e-3)


def test_integers_and_bools_must_be_equal() -> None:
    assert not difference(torch.tensor([10**9]), torch.tensor([10**9 + 1])).agrees
    assert not difference(torch.tensor([True]), torch.tensor([False])).agrees


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        (NAN, NAN, True),
        (INF, INF, True),
        (-INF, -INF, True),
        (INF, -INF, False),
        (INF, 3e38, False),
        (1.0, INF, False),
        (1.0, NAN, False),
        (NAN, 1.0, False),
        (0.0, -0.0, True),
    ],
)
def test_special_values(one: float, other: float, agrees: bool) -> None:
    assert difference(torch.tensor([one]), torch.tensor([other])).agrees is agrees


@pytest.mark.parametrize(
    ("one", "other", "note"),
    [
        (torch.ones(2), torch.ones(3), "shape [3], not [2]"),
        (torch.ones(2), torch.ones(2).long(), "dtype torch.int64, not torch.float32"),
        ((torch.ones(2),), torch.ones(2), "Tensor, not tuple of 1"),
        ((1, 2), (1, 2, 3), "tuple of 3, not tuple of 2"),
        ((1, "a"), (1, "b"), "[1]: 'b', not 'a'"),
        (torch.zeros(4), torch.tensor([0.0, 1, 1, 0]), "2 of 4 elements differ"),
    ],
)
def test_what_differs_is_named(one: object, other: object, note: str) -> None:
    found = difference(one, other)
    assert not found.agrees
    assert found.note == note


def test_pieces_see_every_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PIECE_ELEMENTS", 10)
    one = torch.arange(3 * 7 * 5, dtype=torch.float32).reshape(3, 7, 5).permute(2, 0, 1)
    for at in range(0, one.numel(), 13):
        other = one.clone()
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), one.shape))
        other[index] += 100
        found = difference(one, other)
        assert not found.agrees
        assert found.max_abs == 100


def test_empty_tensors_agree() -> None:
    assert difference(torch.ones(0, 3), torch.ones(0, 3)).agrees
