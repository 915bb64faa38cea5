"""Programs in whose strings, numbers and lists TorchScript differs from Python.

In: functions as a user of torch.jit writes them. Out: they are added to `programs.CASES`.
"""

# ruff: noqa
# The code here is what users write.

import math
from typing import Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn

from tests.deploy.torchscript.programs import program, x3

WIDE = torch.randn(2, 2, 3, 30, generator=torch.Generator().manual_seed(1))


@program(
    *((x,) for x in (x3(), x3()[0], x3()[0, 0], torch.arange(12).reshape(2, 2, 3), x3()[:0])),
    *((x,) for x in (WIDE, x3() * 1e6, x3() * 1e-7, torch.tensor([True, False]), x3().half())),
    (torch.tensor([math.nan, 1.5, math.inf]),),
    (torch.tensor([1e-200, 1e200], dtype=torch.float64),),
    (torch.tensor([100_000, 7, -3]),),
    (torch.tensor([12_345_678_901]),),
    (torch.tensor(1e10),),
)
def texts_of_tensors(x: Tensor):
    print(x, [x], x.size())
    return str(x), "{}|{}".format(x, (x, 1)), "%s" % x


@program(
    (2.0, 1 - 2j, {"a": (1, None)}, [True], "q"),
    (-0.0, 0.1j, {"b": (2, 0.5)}, [], "é"),
    (1e18, 1e19 + 1j, {}, [True, False], ""),
)
def texts_of_values(
    x: float, c: complex, d: Dict[str, Tuple[int, Optional[float]]], l: List[bool], s: str
):
    print(x, l, (1,), (s, x), d)
    return str(x), str(c), str(d), str(l), f"{x}|{s}|{c}", "{} {}".format([s], d), "%s %d" % (x, 2)


@program(("a{}{}",), ("{0}",), ("a",))
def formats(s: str):
    return s.format(1.0, True), "{x}{}".format(s), "%s%%%d|%f|%e|%i" % (s, 2.7, 1, 0.5, 3)


@program(("{}{}{}{}",))
def too_few_for_a_format(s: str):
    return s.format(1)


@program(("5",))
def too_many_for_percent(s: str):
    return "%s" % (s, 1)


@program((1.5, 0.0), (-1.5, 0.0), (0.0, 0.0), (-7.5, 2.0), (1.0, -3.0))
def division_of_floats(x: float, y: float):
    return x / y, x // y, x % y, math.fmod(x, y)


@program((1, 0), (-1, 0), (0, 0), (7, 2))
def division_of_ints(x: int, y: int):
    return x / y


@program((0.0,), (-2.0,), (1e4,), (0.5,))
def functions_of_c(x: float) -> List[float]:
    out = [math.log(x), math.sqrt(x), math.exp(x), math.lgamma(x), math.acos(x), math.cosh(x)]
    out += [math.log1p(-1.0 - x), math.log10(x), math.pow(x, 200.0), x**0.5, math.expm1(x)]
    return out + [math.atanh(x), math.acosh(x), math.asin(x), math.sinh(x)]


@program((x3(), 0), (x3(), 4))
def a_factor_by_division(x: Tensor, n: int):
    return x * (1.0 / n), x + 1.0 / x.size(0)


@program(("ébc",), ("abc",), ("",))
def strings_are_bytes(s: str):
    codes = [ord(c) for c in s]
    joined = "".join([c for c in s]) + s[:1] + s[1:]
    places = [len(s), s.find("b"), s.rfind("b")]
    return codes, joined, places, s.upper(), s.isalpha(), s.center(9, "*"), s.split("b"), "b" in s


@program(("éa",), ("ab",))
def half_a_character(s: str):
    return s[0]


@program((195, 169), (104, 105))
def characters_of_bytes(a: int, b: int):
    return chr(a) + chr(b)


@program(([1], [[1], [2]], {"a": [1]}))
def arguments_are_copied(x: List[int], rows: List[List[int]], d: Dict[str, List[int]]):
    x.append(2)
    rows[0].append(3)
    d["a"].append(4)
    return x, rows, d, x


@program(({"a": 1, "b": 2},))
def the_first_item_of_a_dict(d: Dict[str, int]):
    first = d.popitem()
    return first, d


@program((1,), (2,), (3,))
class ReturnsItsLists(nn.Module):
    rows: List[int]
    named: Dict[str, List[int]]

    def __init__(self) -> None:
        super().__init__()
        self.rows = []
        self.named = {"a": [0]}

    def forward(self, n: int):
        self.rows.append(n)
        self.named["a"].append(n)
        return self.rows, (self.named, self.rows)
