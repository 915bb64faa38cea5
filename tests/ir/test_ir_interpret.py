"""The reference interpreter: single ops; errors that keep their type and gain the user's line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lowtide.frontend.script.script import script_function
from lowtide.ir.interpret import LOC, run, run_block, run_op
from lowtide.ir.parser import parse_function

LOOP = """\
def f(%x: Tensor, %n: int = 2) -> Tensor:
  %true: bool = const {value=True}
  %r: Tensor = loop(%n, %true, %x)
    block(%i: int, %a: Tensor):
      %1: int = const {value=1}
      %b: Tensor = torch.add(%a, %i, %1)
      yield(%true, %b)
  return(%r)
"""


def test_ops_and_blocks_on_their_own() -> None:
    fn = parse_function(LOOP)
    x = torch.zeros(2)
    env: dict[Any, Any] = {fn.params[0]: x, fn.params[1]: 4}
    for op in fn.block.ops[:-1]:
        run_op(op, env)
    assert torch.equal(env[fn.block.terminator.operands[0]], x + 6)
    assert torch.equal(run_block(fn.block, {fn.params[0]: x, fn.params[1]: 4})[0], x + 6)
    assert torch.equal(run(fn, x), x + 1)


def test_argument_errors() -> None:
    fn = parse_function(LOOP)
    with pytest.raises(TypeError, match="missing argument: 'x'"):
        run(fn)
    with pytest.raises(TypeError, match="takes 2 arguments, 3 were given"):
        run(fn, 1, 2, 3)


def inner(x, y):
    return x @ y


def outer(x, y):
    z = x + 1
    return inner(z, y)


def test_torch_errors_keep_their_type_and_point_at_the_line() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        run(script_function(outer), torch.ones(2, 3), torch.ones(2, 3))
    loc = getattr(caught.value, LOC)
    assert (loc.file, loc.function, loc.text.strip()) == (__file__, "inner", "return x @ y")
    assert loc.caller.function == "outer"


def raising(x, n: int):
    assert n < 5, f"n is {n}"
    if n == 3:
        raise KeyError("three", n)
    a, b = x
    return [a, b][n]


@pytest.mark.parametrize(
    ("n", "error", "message"),
    [
        (9, AssertionError, "n is 9"),
        (3, KeyError, "three"),
        (2, IndexError, "list index out of range"),
    ],
)
def test_python_errors(n: int, error: type[Exception], message: str) -> None:
    fn = script_function(raising)
    with pytest.raises(error, match=message) as caught:
        run(fn, torch.ones(2), n)
    assert getattr(caught.value, LOC).function == "raising"
    with pytest.raises(ValueError, match="too many values to unpack"):
        run(fn, torch.ones(3), 0)
