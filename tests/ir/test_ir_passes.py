"""Passes: text before → text after."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowtide.ir.core import Function, print_function
from lowtide.ir.parser import parse_function
from lowtide.passes.asked_again import ask_again
from lowtide.passes.common_subexpressions import eliminate_common_subexpressions
from lowtide.passes.constants import fold_constants
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.run import run

DCE, CSE, FOLD = eliminate_dead_code, eliminate_common_subexpressions, fold_constants
CASES: list[tuple[str, Callable[[Function], Function], str, str]] = [
    (
        "unused",
        DCE,
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %a: Tensor = torch.exp(%x)
  %b: int = py.floordiv(%n, %n)
  %c: Tensor = call_torch(%x) {target='torch.rand_like', kwnames=()}
  print(%n)
  %d: Tensor = mutate(%x, %n) {target='operator.iadd', kwnames=()}
  %e: Tensor = torch.sin(%x)
  return(%e)
""",
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %c: Tensor = call_torch(%x) {target='torch.rand_like', kwnames=()}
  print(%n)
  %d: Tensor = mutate(%x, %n) {target='operator.iadd', kwnames=()}
  %e: Tensor = torch.sin(%x)
  return(%e)
""",
    ),
    (
        "carried for nobody",
        DCE,
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %t: bool = const {value=True}
  %u: Tensor, %v: Tensor, %w: Tensor, %k: int = loop(%n, %t, %x, %x, %x, %n)
    block(%i: int, %a: Tensor, %b: Tensor, %c: Tensor, %d: int):
      %e: Tensor = torch.sin(%a)
      %g: Tensor = torch.mul(%b, %d)
      yield(%t, %e, %g, %c, %d)
  %s: Tensor = torch.mul(%u, %w)
  return(%s)
""",
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %t: bool = const {value=True}
  %u: Tensor = loop(%n, %t, %x)
    block(%i: int, %a: Tensor):
      %e: Tensor = torch.sin(%a)
      yield(%t, %e)
  %s: Tensor = torch.mul(%u, %x)
  return(%s)
""",
    ),
    (
        "branches for nobody",
        DCE,
        """
def f(%x: Tensor, %c: bool) -> Tensor:
  %u: Tensor, %v: Tensor = if(%c)
    block():
      %e: Tensor = torch.sin(%x)
      yield(%e, %x)
    block():
      yield(%x, %x)
  %w: Tensor = if(%c)
    block():
      yield(%u)
    block():
      yield(%v)
  return(%v)
""",
        """
def f(%x: Tensor, %c: bool) -> Tensor:
  return(%x)
""",
    ),
    (
        "equal ops",
        CSE,
        """
def f(%x: Tensor, %n: int, %c: bool) -> Tensor:
  %1: int = const {value=1}
  %t: bool = const {value=True}
  %a: Tensor = torch.add(%x, %n, %1)
  %2: int = const {value=1}
  %r: Tensor = if(%c)
    block():
      %b: Tensor = torch.add(%x, %n, %2)
      %d: Tensor = torch.exp(%b)
      yield(%d)
    block():
      %e: Tensor = torch.exp(%a)
      yield(%e)
  return(%r)
""",
        """
def f(%x: Tensor, %n: int, %c: bool) -> Tensor:
  %0: int = const {value=1}
  %t: bool = const {value=True}
  %a: Tensor = torch.add(%x, %n, %0)
  %r: Tensor = if(%c)
    block():
      %d: Tensor = torch.exp(%a)
      yield(%d)
    block():
      %e: Tensor = torch.exp(%a)
      yield(%e)
  return(%r)
""",
    ),
    (
        "not across a mutation",
        CSE,
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %s: List[int] = torch.shape(%x)
  %a: Tensor = torch.exp(%x)
  %m: Tensor = mutate(%x, %n) {target='operator.iadd', kwnames=()}
  %b: Tensor = torch.exp(%x)
  %t: List[int] = torch.shape(%x)
  %c: bool = py.eq(%s, %t)
  assert(%c)
  %r: Tensor = torch.mul(%a, %b)
  return(%r)
""",
        """
def f(%x: Tensor, %n: int) -> Tensor:
  %s: List[int] = torch.shape(%x)
  %a: Tensor = torch.exp(%x)
  %m: Tensor = mutate(%x, %n) {target='operator.iadd', kwnames=()}
  %b: Tensor = torch.exp(%x)
  %c: bool = py.eq(%s, %s)
  assert(%c)
  %r: Tensor = torch.mul(%a, %b)
  return(%r)
""",
    ),
    (
        "constants",
        FOLD,
        """
def f(%x: Tensor) -> Tensor:
  %2: int = const {value=2}
  %0: int = const {value=0}
  %n: int = py.mul(%2, %2)
  %z: int = py.floordiv(%n, %0)
  %p: (Tensor, int) = tuple.make(%x, %n)
  %q: Tensor = tuple.get(%p) {index=0}
  %c: bool = py.gt(%n, %2)
  %r: Tensor = if(%c)
    block():
      %e: Tensor = torch.exp(%q)
      yield(%e)
    block():
      yield(%x)
  %l: Tensor = loop(%0, %c, %r)
    block(%i: int, %a: Tensor):
      yield(%c, %a)
  return(%l)
""",
        """
def f(%x: Tensor) -> Tensor:
  %0: int = const {value=2}
  %1: int = const {value=0}
  %n: int = const {value=4}
  %z: int = py.floordiv(%n, %1)
  %p: (Tensor, int) = tuple.make(%x, %n)
  %c: bool = const {value=True}
  %e: Tensor = torch.exp(%x)
  return(%e)
""",
    ),
    (
        "sizes asked again",
        ask_again,
        """
def f(%x: Tensor) -> Tensor:
  %0: int = const {value=0}
  %1: int = const {value=1}
  %t: bool = const {value=True}
  %n: int = torch.size.dim(%x, %0)
  %m: int = py.sub(%n, %1)
  %a: Tensor = loop(%n, %t, %x)
    block(%i: int, %b: Tensor):
      %c: Tensor = torch.mul(%b, %m)
      yield(%t, %c)
  %d: Tensor = loop(%n, %t, %a)
    block(%j: int, %e: Tensor):
      %g: Tensor = torch.mul(%e, %m)
      yield(%t, %g)
  return(%d)
""",
        """
def f(%x: Tensor) -> Tensor:
  %0: int = const {value=0}
  %1: int = const {value=1}
  %t: bool = const {value=True}
  %n: int = torch.size.dim(%x, %0)
  %m: int = py.sub(%n, %1)
  %a: Tensor = loop(%n, %t, %x)
    block(%i: int, %b: Tensor):
      %c: Tensor = torch.mul(%b, %m)
      yield(%t, %c)
  %2: int = const {value=0}
  %n.1: int = torch.size.dim(%x, %2)
  %t.1: bool = const {value=True}
  %3: int = const {value=1}
  %m.1: int = py.sub(%n.1, %3)
  %d: Tensor = loop(%n.1, %t.1, %a)
    block(%j: int, %e: Tensor):
      %g: Tensor = torch.mul(%e, %m.1)
      yield(%t.1, %g)
  return(%d)
""",
    ),
]


@pytest.mark.parametrize(("rewrite", "before", "after"), [c[1:] for c in CASES],
                         ids=[c[0] for c in CASES])  # fmt: skip
def test_rewrite(rewrite: Callable[[Function], Function], before: str, after: str) -> None:
    fn = parse_function(before)
    kept = print_function(fn)
    assert print_function(run(fn, [rewrite])) == after.lstrip()
    assert print_function(fn) == kept
