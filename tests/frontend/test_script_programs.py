"""Script programs: IR in the reference interpreter gives what Python gives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from script_programs import PROGRAMS

from lowtide.compiler import simplified
from lowtide.frontend.script.script import script_function
from lowtide.ir.core import print_function
from lowtide.ir.interpret import run
from lowtide.ir.parser import parse_function
from lowtide.ir.python_text import python_text
from lowtide.ir.types import type_of

CASES = [
    pytest.param(fn, args, id=f"{fn.__name__}-{k}")
    for fn, argument_lists in PROGRAMS
    for k, args in enumerate(argument_lists)
]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for v in value:
            yield from _flat(v)
    else:
        yield value


def _check_same(found: Any, expected: Any) -> None:
    a, b = list(_flat(found)), list(_flat(expected))
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        if isinstance(y, torch.Tensor):
            assert x.dtype == y.dtype
            assert torch.equal(x, y) or torch.equal(x.isnan(), y.isnan())
        else:
            assert type(x) is type(y)
            assert x == y


@pytest.mark.parametrize(("fn", "args"), CASES)
def test_interpreter_gives_what_python_gives(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    expected = fn(*copy.deepcopy(args))
    program = script_function(fn, [type_of(a) for a in args])
    assert parse_function(print_function(program)) == program
    _check_same(run(program, *copy.deepcopy(args)), expected)
    tidied = simplified(program)
    assert parse_function(print_function(tidied)) == tidied
    _check_same(run(tidied, *copy.deepcopy(args)), expected)
    assert python_text(tidied).startswith("def ")


SHOWN = [
    "intersection",
    "nested_early_return",
    "while_break",
    "elif_chain",
    "return_in_branch",
    "optional_mask",
    "loss_from_zero",
    "in_place_chain",
    "buffer_in_loop",
    "subscripts",
    "shapes",
    "list_append_in_loop",
    "comprehensions",
    "iteration",
    "inlined",
    "named_tuples",
    "left_to_torch",
    "tensor_condition",
    "raises_in_branch",
    "rnn",
    "fstring",
]


@pytest.mark.parametrize("name", SHOWN)
def test_golden(name: str, golden: Any) -> None:
    fn, argument_lists = next(p for p in PROGRAMS if p[0].__name__ == name)
    program = simplified(script_function(fn, [type_of(a) for a in argument_lists[0]]))
    golden(name, f"{print_function(program, locs=False)}\n{python_text(program)}")
