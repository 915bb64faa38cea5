"""Printing and parsing: the same thing comes back; broken text names its line."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowtide.ir.core import print_function
from lowtide.ir.literals import parse_attrs, parse_literal, print_literal, same_literal
from lowtide.ir.parser import ParseError, parse_function
from lowtide.ir.types import NONE, TENSOR, ListType, OptionalType, TupleType, parse_type

TEXT = """\
def f(%x: Tensor, %n: int = 3, %s: (int, str) = (1, 'a, )#')) -> (Tensor, Optional[Tensor]):
  %0: int = const {value=1}                                      # a b.py:12
  %d: dtype = const {value=torch.float32}
  %t: str = const {value="it's } # %x"}                          # b.py:13
  %c: bool = py.lt(%n, %0)
  %y: Tensor, %y.1: Tensor = if(%c)
    block():
      %z: Tensor = torch.getitem(%x, %n, %0) {spec=('int', 'int')}
      yield(%x, %z)
    block():
      yield(%x, %x)
  %true: bool = const {value=True}
  %r: Tensor = loop(%n, %true, %y)
    block(%i: int, %a: Tensor):
      %b: Tensor = mutate(%a, %i) {target='operator.iadd', kwnames=()}
      yield(%true, %b)
  %p: (Tensor, Optional[Tensor]) = tuple.make(%r, %y.1)
  return(%p)
"""


def test_round_trip() -> None:
    fn = parse_function(TEXT)
    printed = print_function(fn, full_paths=True)
    assert print_function(parse_function(printed), full_paths=True) == printed
    assert parse_function(printed) == fn
    assert fn.defaults == {"n": 3, "s": (1, "a, )#")}
    assert fn.block.ops[0].loc.file == "a b.py"
    assert fn.block.ops[0].loc.line == 12
    assert fn.block.ops[2].attrs == {"value": "it's } # %x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected `def"),
        ("def f(%x: Tensor) -> Tensor:\n  return(%y)", "line 2: expected a value made before"),
        ("def f(%x: Foo) -> Tensor:", "line 1: expected a type"),
        ("def f() -> int:\n  %a: int = const {value=open('x')}", "line 2: expected attributes"),
        ("def f() -> int:\n  %a: int = const {value=__import__}", "line 2: expected attributes"),
        ("def f(%a: int) -> int:\n  %a: int = py.neg(%a)", "line 2: expected a new name"),
        ("def f(%a: int) -> int:\n      return(%a)", "line 2: expected an op"),
        ("def f(%a: int) -> int:\n  return(%a) nonsense", "line 2: expected the end of the line"),
    ],
)
def test_broken_text(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_function(text)
    assert message in str(caught.value)


_LITERALS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text()
    | st.sampled_from([torch.float32, torch.bool, torch.strided, torch.channels_last])
    | st.sampled_from([torch.device("cpu"), torch.device("cuda", 1)]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
)


# The same examples in every run, however slow the machine is.
@settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(_LITERALS)
def test_literals_round_trip(value: object) -> None:
    text = print_literal(value)
    assert print_literal(parse_literal(text)) == text
    attrs = parse_attrs(f"value={text}, other=1")
    assert same_literal(attrs["value"], value)


def test_literals_are_told_apart() -> None:
    assert not same_literal(1, 1.0)
    assert not same_literal(1, True)
    assert not same_literal(0.0, -0.0)
    assert same_literal(math.nan, math.nan)


@pytest.mark.parametrize("text", ["open('x')", "x", "[1]", "torch.load", "1 + 2", "f'a'"])
def test_only_constants_are_read(text: str) -> None:
    with pytest.raises(ValueError):
        parse_literal(text)


@pytest.mark.parametrize(
    "text",
    [
        *("Tensor", "(Tensor, int)", "(int,)", "()", "List[Optional[Tensor]]", "None"),
        *("(values: Tensor, indices: Tensor)", "Optional[(a: int, b: List[int])]"),
        "Union[int, Tensor]",
    ],
)
def test_types_round_trip(text: str) -> None:
    assert str(parse_type(text)) == text


def test_types_are_values() -> None:
    assert parse_type("Optional[List[Tensor]]") == OptionalType(ListType(TENSOR))
    assert parse_type("(None,)") == TupleType((NONE,))
    with pytest.raises(ValueError):
        parse_type("List[int")
