"""Control flow of the IR: a step may forget what it is given, and a caller may end a loop."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from lowtide.ir import structured
from lowtide.ir.core import Block
from lowtide.ir.parser import parse_function

LOOP = """\
def f(%x: Tensor, %n: int) -> Tensor:
  %true: bool = const {value=True}
  %r: Tensor = loop(%n, %true, %x)
    block(%i: int, %a: Tensor):
      %b: Tensor = torch.exp(%a)
      yield(%true, %b)
  return(%r)
"""


def test_a_loop_holds_no_value_of_the_step_before() -> None:
    fn = parse_function(LOOP)
    op = fn.block.ops[1]
    x, n = fn.params
    seen: list[tuple[int, bool]] = []

    def run(values: list[Any]) -> list[Any]:
        step, a = values
        values.clear()
        made, ref = a + 1, weakref.ref(a)
        del a
        seen.append((step, ref() is None))
        return [True, made]

    def enter(blocks: Sequence[Block]) -> list[structured.RunBlock]:
        del env[x]
        return [run] * len(blocks)

    env = {x: torch.zeros(2), n: 3, op.operands[1]: True}
    (found,) = structured.loop(op, env, enter)
    assert found.tolist() == [3.0, 3.0]
    assert seen == [(0, True), (1, True), (2, True)]


def test_a_caller_may_end_a_loop() -> None:
    fn = parse_function(LOOP)
    op = fn.block.ops[1]
    x, n = fn.params
    env = {x: 0, n: 10, op.operands[1]: True}

    def goes_on(done: int, trips: int, state: list[Any]) -> bool:
        return done < 4 and trips == 10 and state[0]

    found = structured.loop(op, env, lambda _: [lambda given: [True, given[1] + 1]], goes_on)
    assert found == [4]
