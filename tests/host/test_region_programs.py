"""What regions do around their kernels: the text, that it reads back, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.codegen.host.region import PythonRegion, print_region
from lowtide.codegen.host.region_parser import parse_region
from lowtide.errors import VerifyError
from lowtide.ir.parser import ParseError


class Pair(NamedTuple):
    first: Tensor
    count: int


def views(x: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
    y = (x * n).exp()
    return y.t(), y[0], x[1:]


def numbers(x: Tensor, n: int, s: float) -> tuple[Tensor, int, str]:
    half = n // 2 + x.shape[0]
    return x * (s / n) + half, half, f"{n} and {s}"


def containers(x: Tensor, xs: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor], Pair]:
    y = x + xs[1]
    both = [y, y * 2]
    return both, {"y": y, "x": x}, Pair(y, x.shape[0])


def gathered(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


def kept_order(x: Tensor) -> Tensor:
    return x.transpose(0, 1) * 2 + 1


def reshaped(x: Tensor) -> Tensor:
    return (x * 2).reshape(x.shape[0] // 2, -1)[:, 1:]


X = torch.ones(50, 6)
REGIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "views": (views, (X, 3)),
    "numbers": (numbers, (X, 3, 0.5)),
    "containers": (containers, (X, [X, X])),
    "gathered": (gathered, (X, torch.tensor([1, 2]))),
    "kept_order": (kept_order, (X,)),
    "reshaped": (reshaped, (X,)),
}


@pytest.mark.parametrize("name", REGIONS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    fn, args = REGIONS[name]
    compiled: Any = lt.script(fn)
    texts = [text for title, text in compiled.stages(*args) if title.startswith("region")]
    assert texts
    for text in texts:
        again = parse_region(text)
        assert print_region(again) == text
        assert PythonRegion(again, records=False).run().startswith("def run(a, z, sizes):")
    golden(f"region_{name}", "\n\n".join(texts) + "\n")


REFUSED = {
    "v0 = t(v1)\nresult v0": "v1 is read before it is made",
    "result o[0]": "the kernels have no output 0",
    "kernels (a[0]) -> 1 outputs\nresult o[1]": "the kernels have no output 1",
    "kernels (a[0]) -> 1 outputs\nv0 = t(o[0])\nv0 = t(o[0])\nresult v0": "v0 is made twice",
    "v0 = float(a[0])\nkernels (a[0]) -> 1 outputs\nresult v0": "v0 is read before it is made",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(VerifyError, match=REFUSED[text]):
        parse_region(text)


FAULTS = {
    "v0 = t(a[0])": "a last line `result",
    "kernels a[0]\nresult a[0]": "`kernels ",
    "kernels (3) -> 1 outputs\nresult a[0]": "tensors among the live-ins",
    "some thing\nresult a[0]": "`name = op",
    "result a[s0]": "a subscript that is a constant",
    "result b[0][1]": "an item of `a`, `o` or a value",
    "numbers s0\nresult s0 ** 2": "one of",
    "result f(": "an operand",
    "result open('x')": "an operand",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_a_text_show_the_line(text: str) -> None:
    with pytest.raises(ParseError, match=FAULTS[text]):
        parse_region(text)
