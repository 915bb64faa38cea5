"""Which type stands for which, and where two branches meet."""

from __future__ import annotations

import pytest
import torch

from lowtide.ir.types import is_subtype, join, parse_type, type_of

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
    ("(int,)", "(int, int)", None),
    ("str", "Tensor", None),
    ("List[int]", "Tensor", None),
    ("never", "str", "str"),
    ("Any", "str", "Any"),
]


@pytest.mark.parametrize(("a", "b", "expected"), JOINS)
def test_join(a: str, b: str, expected: str | None) -> None:
    for x, y in ((a, b), (b, a)):
        joined = join(parse_type(x), parse_type(y))
        if expected is None:
            assert joined is None
        else:
            assert joined is not None
            assert is_subtype(parse_type(a), joined)
            assert is_subtype(parse_type(b), joined)
    joined = join(parse_type(a), parse_type(b))
    assert expected is None or joined == parse_type(expected)


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
        (torch.ones(2, 2).max(0), "(Tensor, Tensor)"),
    ],
)
def test_type_of(value: object, expected: str) -> None:
    assert str(type_of(value)) == expected


def test_unknown_values_have_no_type() -> None:
    assert type_of(object()) is None
    assert type_of([1, "a"]) is None
