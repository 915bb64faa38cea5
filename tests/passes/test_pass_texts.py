"""Each pass over Functions by texts: before, after, and both interpreted. See tests/texts.py."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from lowtide.ir import interpret
from lowtide.ir.core import Function, print_function
from lowtide.ir.parser import parse_function
from lowtide.opt import PASSES
from lowtide.passes.run import run
from lowtide.tools.explain_command import parse_shape
from tests import house
from tests.texts import Case, cases_of

FOLDER = Path(__file__).parent / "text"
CASES = cases_of(FOLDER)
RUNS = 4
USUAL: dict[str, tuple[Any, ...]] = {  # of parameters that are not given, by type and run
    "Tensor": ("4x3",),
    "int": (3, 4, 1, 0),
    "bool": (True, False),
    "float": (0.5, -1.0, float("nan"), 0.5),
}


def test_each_pass_has_a_file() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == PASSES.keys()


def test_lowtide_opt_knows_the_passes_of_the_page() -> None:
    assert PASSES.keys() == house.passes()


def arguments(fn: Function, case: Case, number: int) -> list[Any]:
    """The same in each run of this number."""
    generator = torch.Generator().manual_seed(number)
    found: list[Any] = []
    for p in fn.params:
        kind = str(p.type)
        given = case.given.get(p.name)
        value = USUAL[kind][number % len(USUAL[kind])] if given is None else given
        if kind == "Tensor":
            found.append(torch.randn(parse_shape(value), generator=generator, dtype=torch.float64))
        else:
            found.append({"int": int, "float": float, "bool": bool}[kind](value))
    return found


def outcome(fn: Function, args: list[Any]) -> tuple[Any, list[Any]]:
    """What a call gives, or raises, and what it leaves of its arguments."""
    args = copy.deepcopy(args)
    torch.manual_seed(0)
    try:
        return interpret.run(fn, *args), args
    except Exception as error:
        return {"raised": repr(type(error))}, args


def same(a: Any, b: Any) -> bool:
    """Equal in all bits but those of NaN."""
    if isinstance(a, torch.Tensor):
        nans = bool(((a != a) == (b != b)).all())
        return a.dtype == b.dtype and nans and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pass(case: Case, request: pytest.FixtureRequest) -> None:
    fn = parse_function(case.before)
    assert print_function(fn).strip() == case.before.strip()
    made = run(fn, [PASSES[case.name]])
    assert print_function(fn).strip() == case.before.strip()  # it is not changed itself
    after = print_function(made, locs=False)
    case.check(after, request.config.getoption("--update-golden"))
    assert parse_function(after) == made
    raised = 0
    for number in range(RUNS):
        args = arguments(fn, case, number)
        before = outcome(fn, args)
        raised += isinstance(before[0], dict)
        assert same(outcome(made, args), before)
    assert raised < RUNS or "raise" in case.title, "all runs raise: give other inputs"
