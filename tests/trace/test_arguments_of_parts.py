"""What compiled functions and modules are handed inside a trace: dicts, enums, objects; and what
they put into lists and dicts."""

from __future__ import annotations

import dataclasses
import enum
import io
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035

import pytest
import torch
from agree import agree
from torch import Tensor, nn

import lowtide as lt

X = torch.arange(3.0) + 1


class Mode(enum.Enum):
    PLUS = 1
    MINUS = 2


@dataclasses.dataclass
class Held:
    v: Tensor


@lt.script
def doubled(d: Dict[str, Tensor]):  # noqa: UP006
    if d["a"].sum() > 0:
        return d["a"] * 2
    return d["a"]


@lt.script
def nested(p: Tuple[Dict[str, Tensor], List[Dict[int, Tensor]]], k: int):  # noqa: UP006
    return p[0]["a"] * 2 + p[1][0][k] * k


@lt.script
def sized(d: Dict[str, Any]):  # noqa: UP006
    return d["a"] * d["n"]


@lt.script
def perhaps(d: Optional[Dict[str, Tensor]], a: Tensor):  # noqa: UP006, UP045
    return a if d is None else d["a"] * 3


@lt.script
def count(d: Dict[str, Tensor], a: Tensor):  # noqa: UP006
    return a * (len(d) + 1)


@lt.script
def given(d: Dict[str, Tensor]):  # noqa: UP006
    return {"whole": d, "list": [d["a"] + 1]}


@lt.script
def put(d: Dict[str, Tensor]):  # noqa: UP006
    d["b"] = d["a"] + 1


@lt.script
def grow(xs: List[Tensor]):  # noqa: UP006
    xs.append(xs[-1] + 1)


@lt.script
def grow_sizes(ns: List[int]):  # noqa: UP006
    ns.append(ns[0] * 2)


@lt.script
def by_mode(a: Tensor, mode: Mode):
    return a + 1 if mode is Mode.PLUS else a - 1


@lt.script
def of_object(held: Held):
    return held.v * 2


@lt.script
def of_any(d):
    return d["a"] * 2


def puts(a):
    d = {"a": a}
    put(d)
    return d["b"] * 2


def grows(a):
    xs = [a]
    grow(xs)
    grow(xs)
    return xs[1] * xs[2]


def grows_sizes(a):
    ns = [a.shape[0]]
    grow_sizes(ns)
    return a.new_zeros(ns[1])


def returned(a):
    found = given({"a": a * 2})
    return found["whole"]["a"] + found["list"][0]


PROGRAMS = {
    "dict": lambda a: doubled({"a": a - 2}),
    "nested": lambda a: nested(({"a": a}, [{3: a + 1}]), 3),
    "size": lambda a: sized({"a": a, "n": a.shape[0]}),
    "optional": lambda a: perhaps(None, a) + perhaps({"a": a}, a),
    "empty": lambda a: count({}, a),
    "returned": returned,
    "put": puts,
    "grow": grows,
    "grow sizes": grows_sizes,
    "enum": lambda a: by_mode(a, Mode.PLUS) * by_mode(a, Mode.MINUS),
    "object": lambda a: of_object(Held(a)),
    "ordered": lambda a: of_any(OrderedDict(a=a)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_arguments(name: str) -> None:
    fn = PROGRAMS[name]
    traced = lt.trace(fn, (X,))
    file = io.BytesIO()
    lt.save(traced, file)
    file.seek(0)
    for one in (traced, lt.load(file)):
        agree(one, fn, (X,), (-torch.ones(5),))


def test_control_flow_is_kept() -> None:
    assert "= if(" in str(lt.trace(PROGRAMS["dict"], (X,)).graph)


class Inner(nn.Module):
    def forward(self, d: Dict[str, Tensor]) -> Tensor:  # noqa: UP006
        return d["a"] * 3 if bool(d["a"].sum() > 2) else d["a"]


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = lt.script(Inner())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner({"a": x})


def test_modules() -> None:
    module = Outer()
    agree(lt.trace(module, (X,)), module, (X,), (-X,))
