"""The verifier: each rule, broken once; the message names the pass and marks the op."""

from __future__ import annotations

import pytest

from lowtide.errors import VerifyError
from lowtide.ir.core import Function, Op
from lowtide.ir.parser import parse_function
from lowtide.ir.verify import verify
from lowtide.passes.run import only_with, run

GOOD = """\
def f(%x: Tensor, %n: int) -> Tensor:
  %1: int = const {value=1}
  %c: bool = py.lt(%n, %1)
  %y: Tensor = torch.add(%x, %n, %1)
  %r: Tensor = if(%c)
    block():
      yield(%y)
    block():
      %z: Tensor = torch.sin(%y)
      yield(%z)
  %l: Tensor = loop(%n, %c, %r)
    block(%i: int, %a: Tensor):
      yield(%c, %a)
  return(%l)
"""


def test_good() -> None:
    verify(parse_function(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("torch.add(%x, %n, %1)", "torch.add(%x, %n)", "takes 3 operands"),
        ("torch.add(%x, %n, %1)", "torch.add(%x, %n, %x)", "for the parameter alpha"),
        ("torch.add(", "torch.nothing(", "not in the table of torch ops"),
        ("%y: Tensor = torch.add", "%y: int = torch.add", "has results (Tensor)"),
        ("py.lt(%n, %1)", "py.lt(%n, %x)", "py.lt takes no (int, Tensor)"),
        ("%c: bool = py.lt", "%c: int = py.lt", "py.lt has one result"),
        ("py.lt(%n, %1)", "py.nothing(%n, %1)", "is not an op"),
        ("const {value=1}", "const", "expected"),
        ("      yield(%y)\n", "      return(%y)\n", "must end in one yield"),
        ("      yield(%y)\n", "      yield(%n)\n", "where Tensor is expected"),
        ("      yield(%y)\n", "      yield(%y, %y)\n", "2 values where 1 are expected"),
        ("yield(%c, %a)", "yield(%a, %a)", "where bool is expected"),
        ("%i: int, %a: Tensor", "%i: int", "expected"),
        ("%i: int, %a: Tensor", "%i: bool, %a: Tensor", "arguments and the results of a loop"),
        ("  return(%l)\n", "", "must end in one return"),
        ("  return(%l)\n", "  return(%n)\n", "where Tensor is expected"),
        ("if(%c)", "if(%n)", "where bool is expected"),
    ],
)
def test_faults(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    with pytest.raises(Exception) as caught:
        verify(parse_function(GOOD.replace(old, new)))
    assert fault in str(caught.value)


def test_dominance() -> None:
    fn = parse_function(GOOD)
    inner = fn.block.ops[3].blocks[1].ops[0].result
    fn.block.terminator.operands = [inner]
    with pytest.raises(VerifyError, match="out of sight"):
        verify(fn)


def test_single_assignment() -> None:
    fn = parse_function(GOOD)
    fn.block.ops.insert(1, fn.block.ops[0])
    with pytest.raises(VerifyError, match="made twice"):
        verify(fn)


def test_a_failing_pass_is_named_and_the_op_marked() -> None:
    def break_it(fn: Function) -> Function:
        fn.block.ops.insert(1, Op(name="torch.sin", operands=[fn.params[1]], results=[]))
        return fn

    with pytest.raises(VerifyError) as caught:
        run(parse_function(GOOD), [break_it])
    assert "the IR of 'f' is broken after pass 'break_it'" in str(caught.value)
    assert "  torch.sin(%n)\n  ^^^^^^^^^^^^^ %n: int for the parameter " in str(caught.value)


def test_a_pass_about_an_op_leaves_functions_without_it() -> None:
    given: list[Function] = []

    @only_with("loop")
    def note(fn: Function) -> Function:
        given.append(fn)
        return fn

    looping = parse_function(GOOD)
    straight = parse_function("def f(%x: Tensor) -> Tensor:\n  return(%x)\n")
    assert run(straight, [note]) is straight
    assert run(looping, [note]) is looping
    assert given == [looping]
    broken = parse_function("def f(%x: int) -> Tensor:\n  return(%x)\n")
    with pytest.raises(VerifyError, match="after pass 'note'"):
        run(broken, [note])
