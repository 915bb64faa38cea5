"""Random loops: what is left of them computes the same, to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from lowtide.compiler import simplified
from lowtide.ir.core import Function, print_function
from lowtide.ir.interpret import run as interpret
from lowtide.ir.parser import parse_function
from lowtide.ir.verify import verify
from lowtide.passes.reroll import reroll
from tests.passes.unrolled_programs import B, D, T, function, recorded, source


def results(fn: Callable[..., object]) -> object:
    torch.manual_seed(3)
    return fn(torch.rand(T, B, D), torch.rand(D, D), torch.rand(B, D))


def interpreted(fn: Function) -> object:
    assert not fn.captures
    return results(lambda *given: interpret(fn, *given))


@pytest.mark.parametrize(
    "block", [0, 1, 2, *(pytest.param(k, marks=pytest.mark.long) for k in range(3, 8))]
)
def test_random_loops(block: int) -> None:
    rolled = 0
    for seed in range(block * 25, block * 25 + 25):
        text = source(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            eager = function(text)
            before = recorded(eager)
        printed = print_function(before)
        after = reroll(before)
        verify(after, after="reroll")
        assert print_function(before) == printed
        assert str(parse_function(print_function(after))) == str(after)
        want = results(eager)
        for fn in (before, after, simplified(before, unrolled=True)):
            got = interpreted(fn)
            torch.testing.assert_close(got, want, rtol=0, atol=0, msg=f"{seed}\n{text}")
        rolled += any(op.name == "loop" for op in after.walk())
    assert rolled > 8
