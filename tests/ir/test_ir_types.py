"""Which type stands for which, and where two branches meet."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch

from lowtide.ir import dtypes
from lowtide.ir.dtypes import DType, nearest
from lowtide.ir.types import is_instance, is_subtype, join, join_all, parse_type, type_of

JOINS = [
    ("int", "int", "int"),
    ("None", "Tensor", "Optional[Tensor]"),
    ("Optional[Tensor]", "Tensor", "Optional[Tensor]"),
    ("Optional[int]", "float", "Optional[number]"),
    ("int", "float", "number"),
    ("int", "Tensor", "Union[int, Tensor]"),
    ("Union[int, Tensor]", "Tensor", "Union[int, Tensor]"),
    ("List[never]", "List[Tensor]", "List[Tensor]"),
    ("(int, None)", "(int, Tensor)", "(int, Optional[Tensor])"),
    ("(int,)", "(int, int)", "Union[(int,), (int, int)]"),
    ("str", "Tensor", "Union[str, Tensor]"),
    ("List[int]", "Tensor", "Union[List[int], Tensor]"),
    ("List[int]", "List[str]", "List[Union[int, str]]"),
    ("Dict[str, int]", "Dict[str, float]", "Dict[str, number]"),
    ("Class['a.B']", "None", "Optional[Class['a.B']]"),
    ("never", "str", "str"),
    ("Any", "str", "Any"),
]


@pytest.mark.parametrize(("a", "b", "expected"), JOINS)
def test_join(a: str, b: str, expected: str) -> None:
    for x, y in ((a, b), (b, a)):
        joined = join(parse_type(x), parse_type(y))
        assert is_subtype(parse_type(a), joined)
        assert is_subtype(parse_type(b), joined)
    assert join(parse_type(a), parse_type(b)) == parse_type(expected)


def test_a_join_of_many_is_any() -> None:
    kinds = ("str", "Tensor", "List[int]", "dtype", "device", "(int,)", "Dict[str, int]")
    assert str(join_all(map(parse_type, kinds))) == "Any"


class Point(NamedTuple):
    x: int
    y: torch.Tensor


class Plain:
    pass


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.ones(1), "Tensor"),
        (True, "bool"),
        (1, "int"),
        (None, "None"),
        ((1, torch.ones(1)), "(int, Tensor)"),
        ([1, 2], "List[int]"),
        ([], "List[never]"),
        (torch.ones(2, 3).shape, "List[int]"),
        (torch.float32, "dtype"),
        (
            torch.ones(2, 2).max(0),
            "NamedTuple['torch.return_types.max'](values: Tensor, indices: Tensor)",
        ),
    ],
)
def test_type_of(value: object, expected: str) -> None:
    assert str(type_of(value)) == expected


def test_objects_have_the_type_of_their_class() -> None:
    for value in (Plain(), Point(1, torch.ones(1)), {"a": [Plain()]}, [1, "a"]):
        found = type_of(value)
        assert found is not None
        assert parse_type(str(found)) == found
        assert is_instance(value, found)
    assert type_of(torch) is None  # a module
    assert type_of([torch]) is None


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.is_float], ids=repr)
def test_nearest_numbers_are_those_of_pytorch(dtype: DType) -> None:
    digits = [k / 2048 for k in range(1025, 4096, 9)]
    exponents = (-150, -134, -133, -127, -26, -25, -24, -15, -2, 0, 9, 15, 16, 127, 128)
    values = [sign * d * 2.0**e for sign in (1, -1) for d in digits for e in exponents]
    values += [0.0, -0.0, 0.1, math.inf, -math.inf, 65519.9, 65520.0, 3.3961e38, 3.4028235e38]
    of_pytorch = torch.tensor(values, dtype=torch.float64).to(dtype.torch).tolist()
    assert [repr(nearest(v, dtype)) for v in values] == [repr(v) for v in of_pytorch]
    assert math.isnan(nearest(math.nan, dtype))
