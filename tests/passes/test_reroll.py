"""Unrolled loops that are loops again, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowtide.compiler import simplified
from lowtide.ir.core import Function, Op, print_function
from lowtide.ir.interpret import run as interpret
from lowtide.ir.parser import parse_function
from lowtide.passes.dead_code import eliminate_dead_code
from lowtide.passes.reroll import reroll
from lowtide.passes.run import run

HEAD = """
def f(%x: Tensor, %w: Tensor, %v: Tensor) -> {result}:
  %none: None = const {{value=None}}
  %one: int = const {{value=1}}
  %zero: int = const {{value=0}}
{constants}
"""
STEP = """
  %a{i}: Tensor = torch.getitem(%x, %n{i}) {{spec=('int',)}}
  %b{i}: Tensor = torch.mul({h}, %w)
  %h{i}: Tensor = torch.add(%b{i}, %a{i}, %one)
"""
RESULT = "(Tensor, Tensor)"


def text(
    body: str, end: str, result: str = "Tensor", steps: int = 6, index: Callable[[int], int] = int
) -> str:
    """A function of `steps` copies of a body, in which `{i}` is the iteration, `{j}` the one
    before, and `{h}` what is carried, at first `%v`."""
    constants = "\n".join(f"  %n{i}: int = const {{value={index(i)}}}" for i in range(steps))
    made = HEAD.format(result=result, constants=constants)
    for i in range(steps):
        made += body.format(i=i, j=i - 1, h=f"%h{i - 1}" if i else "%v")
    return made + end


def loops(fn: Function) -> list[Op]:
    return [op for op in fn.walk() if op.name == "loop"]


def trips(fn: Function) -> list[object]:
    constants = {op.result: op.attrs["value"] for op in fn.walk() if op.name == "const"}
    return [constants[op.operands[0]] for op in loops(fn)]


def same(before: Function, after: Function) -> None:
    """Both give the same bits, and draw the same random numbers."""
    torch.manual_seed(1)
    given = (torch.rand(30, 3), torch.rand(3), torch.rand(3))
    results: list[object] = []
    for fn in (before, after):
        torch.manual_seed(7)
        results.append(interpret(fn, *(x.clone() for x in given)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def rerolled(source: str) -> Function:
    before = parse_function(source)
    text_before = print_function(before)
    after = run(before, [reroll, eliminate_dead_code])
    assert print_function(before) == text_before
    assert str(parse_function(print_function(after))) == str(after)
    same(before, after)
    same(before, simplified(before, unrolled=True))
    return after


def test_a_recurrence() -> None:
    end = """
  %all: List[Tensor] = list.make(%h0, %h1, %h2, %h3, %h4, %h5)
  %s: Tensor = torch.stack(%all, %zero)
  %r: (Tensor, Tensor) = tuple.make(%s, %h5)
  return(%r)
"""
    got = rerolled(text(STEP, end, RESULT))
    assert print_function(got) == print_function(
        parse_function("""
def f(%x: Tensor, %w: Tensor, %v: Tensor) -> (Tensor, Tensor):
  %all: List[Tensor] = list.make()
  %0: bool = const {value=True}
  %one: int = const {value=1}
  %1: int = const {value=6}
  %v.1: Tensor = loop(%1, %0, %v)
    block(%i: int, %v.2: Tensor):
      %b0: Tensor = torch.mul(%v.2, %w)
      %a0: Tensor = torch.getitem(%x, %i) {spec=('int',)}
      %h0: Tensor = torch.add(%b0, %a0, %one)
      %2: None = list.append(%all, %h0)
      yield(%0, %h0)
  %zero: int = const {value=0}
  %s: Tensor = torch.stack(%all, %zero)
  %r: (Tensor, Tensor) = tuple.make(%s, %v.1)
  return(%r)
""")
    )


LAST = "  return(%h5)\n"
NOISE = "  %a{i}: Tensor = call_torch({h}) {{target='torch.rand_like', kwnames=()}}\n"
TWO = """
  %a{i}: Tensor = torch.mul({h}, %w)
  %b{i}: Tensor = torch.tanh(%a{i})
  %c{i}: Tensor = torch.getitem(%x, %n{i}) {{spec=('int',)}}
  %d{i}: Tensor = torch.exp(%c{i})
  %h{i}: Tensor = torch.sub(%b{i}, %d{i}, %one)
"""
SET = """
  %a{i}: Tensor = torch.mul({h}, %w)
  %b{i}: Tensor = torch.tanh(%a{i})
  %g{i}: Tensor = torch.getitem(%x, %n{i}) {{spec=('int',)}}
  %h{i}: Tensor = torch.add(%b{i}, %g{i}, %one)
  %o{i}: Tensor = mutate({o}, %n{i}, %h{i}) {{kwnames=(), SET}}
""".replace("SET", "target='Tensor.__setitem__', spec=('int',)")
SLICE = """
  %m{i}: int = py.add(%n{i}, %one)
  %a{i}: Tensor = torch.getitem(%x, %n{i}, %m{i}, %none) {{spec=('slice',)}}
  %s{i}: Tensor = torch.select(%a{i}, %zero, %zero)
  %b{i}: Tensor = torch.mul({h}, %s{i})
  %h{i}: Tensor = torch.add(%b{i}, %w, %one)
"""
ROLLED = [
    ("evenly", text(STEP, LAST), [6]),
    ("by twos", text(STEP, LAST, index=lambda i: 2 * i + 1), [6]),
    ("backwards", text(STEP, LAST, index=lambda i: 5 - i), [6]),
    ("from the end", text(STEP, LAST, index=lambda i: -1 - i), [6]),
    ("slices", text(SLICE, LAST), [6]),
    ("five ops", text(TWO, LAST), [6]),
    ("random numbers",
     text(NOISE + STEP.replace("%a{i}", "%e{i}").replace("%w", "%a{i}"), LAST), [6]),
    ("the index repeats, then goes on", text(STEP, "  return(%h7)\n", steps=8,
                                             index=lambda i: max(i - 3, 0)), [5]),
    ("uneven in the middle", text(STEP, "  return(%h9)\n", steps=10,
                                  index=lambda i: i + (i > 4)), [5, 5]),
    ("read in the middle",
     text(STEP, "  %r: Tensor = torch.mul(%h4, %h9)\n  return(%r)\n", steps=10), [5, 5]),
    ("in reverse order",
     text(STEP, "  %l: List[Tensor] = list.make(%h5, %h4, %h3, %h2, %h1, %h0)\n"
                "  %r: Tensor = torch.stack(%l, %one)\n  return(%r)\n"), [6]),
    ("with the start",
     text(STEP, "  %l: List[Tensor] = list.make(%v, %h0, %h1, %h2, %h3, %h4, %h5)\n"
                "  %r: Tensor = torch.stack(%l, %one)\n  return(%r)\n"), [6]),
    ("what each begins with",
     text(STEP, "  %l: List[Tensor] = list.make(%v, %h0, %h1, %h2, %h3, %h4)\n"
                "  %s: Tensor = torch.stack(%l, %one)\n"
                "  %r: (Tensor, Tensor) = tuple.make(%s, %h5)\n  return(%r)\n", RESULT), [6]),
    ("two lists, one of two values",
     text(STEP, "  %l: List[Tensor] = list.make(%b0, %h0, %b1, %h1, %b2, %h2, %b3, %h3, %b4, %h4, "
                "%b5, %h5)\n  %k: List[Tensor] = list.make(%b5, %b4, %b3, %b2, %b1, %b0)\n"
                "  %s: Tensor = torch.stack(%l, %one)\n  %u: Tensor = torch.stack(%k, %zero)\n"
                "  %r: (Tensor, Tensor) = tuple.make(%s, %u)\n  return(%r)\n", RESULT), [6]),
    ("a tuple that is stacked",
     text(STEP, "  %l: (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor) = tuple.make(%h0, %h1, %h2,"
                " %h3, %h4, %h5)\n  %r: Tensor = torch.stack(%l, %one)\n  return(%r)\n"), [6]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "counts"), [c[1:] for c in ROLLED], ids=[c[0] for c in ROLLED])
def test_rolled(source: str, counts: list[int]) -> None:
    assert trips(rerolled(source)) == counts


PRINT = "  print(%n{i})\n"
STAYS = [
    ("uneven indices", text(STEP, LAST, index=lambda i: i * i)),
    ("three iterations", text(STEP, "  return(%h2)\n", steps=3)),
    ("a missing step", text(STEP, LAST, index=lambda i: i + (i > 2))),
    ("a dim that counts",
     text("  %b{i}: Tensor = torch.mul(%x, %w)\n  %e{i}: Tensor = torch.exp(%b{i})\n"
          "  %h{i}: Tensor = call_torch(%e{i}, %n{i}) {{target='torch.roll', kwnames=()}}\n",
          LAST)),
    ("read in the middle", text(STEP, "  %r: Tensor = torch.mul(%h2, %h5)\n  return(%r)\n")),
    ("each returned by itself",
     text(STEP, "  %r: (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor) = tuple.make(%h0, %h1, %h2,"
                " %h3, %h4, %h5)\n  return(%r)\n",
          "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")),
    ("a list in another order",
     text(STEP, "  %l: List[Tensor] = list.make(%h0, %h2, %h1, %h3, %h4, %h5)\n"
                "  %r: Tensor = torch.stack(%l, %one)\n  return(%r)\n")),
]  # fmt: skip


@pytest.mark.parametrize("source", [c[1] for c in STAYS], ids=[c[0] for c in STAYS])
def test_stays(source: str) -> None:
    assert not loops(rerolled(source))


def test_different_weights_stay() -> None:
    weights = "".join(f"  %w{i}: Tensor = torch.add(%w, %n{i}, %one)\n" for i in range(6))
    body = "  %a{i}: Tensor = torch.mul({h}, %w{i})\n  %h{i}: Tensor = torch.tanh(%a{i})\n"
    params = ", ".join(f"%w{i}: Tensor" for i in range(6))
    source = text(body, LAST)
    fn = parse_function(source.replace("%w: Tensor", params))
    assert reroll(fn) is fn
    head, tail = source.split("  %a0", 1)
    assert not any(
        op.name == "torch.tanh" for loop in loops(rerolled(f"{head}{weights}  %a0{tail}"))
        for op in loop.blocks[0].ops
    )  # fmt: skip


def test_swapped() -> None:
    """`a, b = b, a * w` reads what two iterations before it made."""
    body = """
  %g{i}: Tensor = torch.mul({two}, %w)
  %k{i}: Tensor = torch.tanh(%g{i})
  %h{i}: Tensor = torch.add(%k{i}, %v, %one)
"""
    source = text("", "")
    for i in range(6):
        two = f"%h{i - 2}" if i > 1 else ("%v", "%w")[i]
        source += body.format(i=i, two=two)
    for end in (LAST, "  %r: Tensor = torch.sub(%h4, %h5, %one)\n  return(%r)\n"):
        fn = parse_function(source + end)
        after = reroll(fn)
        same(fn, after)
        assert trips(after) == [6]
        assert len(loops(after)[0].results) == 2  # of which the one is what the other was


def test_a_plain_swap_stays() -> None:
    """`a, b = b, a` of two values from outside: iterations of two steps each."""
    body = "  %b{i}: Tensor = torch.mul({h}, {s})\n  %h{i}: Tensor = torch.tanh(%b{i})\n"
    source = text("", "", steps=10)
    for i in range(10):
        s = "%w" if i % 2 else "%v"
        source += body.format(i=i, h=f"%h{i - 1}" if i else "%v", s=s)
    got = rerolled(source + "  return(%h9)\n")
    assert trips(got) == [5]
    assert sum(op.name == "torch.mul" for op in loops(got)[0].blocks[0].ops) == 2


def test_effects_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    got = rerolled(text(PRINT + STEP, LAST))
    assert not loops(got)  # what is printed is no index
    source = text("  print(%one)\n" + STEP, LAST)
    before, after = parse_function(source), reroll(parse_function(source))
    assert trips(after) == [6]
    capsys.readouterr()
    given = (torch.rand(12, 3), torch.rand(3), torch.rand(3))
    interpret(before, *given)
    printed = capsys.readouterr().out
    interpret(after, *given)
    assert capsys.readouterr().out == printed != ""


def test_an_effect_in_between() -> None:
    """The iterations before it and after it."""
    head = text(STEP, "", steps=5)
    rest = text(STEP, "  return(%h9)\n", steps=10).split("  %a5", 1)[1]
    constants = "".join(f"  %n{i}: int = const {{value={i}}}\n" for i in range(5, 10))
    got = rerolled(f"{head}  print(%h4)\n{constants}  %a5{rest}")
    assert trips(got) == [5, 5]


def test_writes_in_place() -> None:
    source = text("", "") + "  %o: Tensor = torch.clone(%x, %none)\n"
    for i in range(6):
        h, o = (f"%h{i - 1}", f"%o{i - 1}") if i else ("%v", "%o")
        source += SET.format(i=i, h=h, o=o)
    got = rerolled(source + "  return(%o5)\n")
    assert trips(got) == [6]
    assert len(loops(got)[0].results) == 2  # the table is carried, too


def test_a_first_iteration_of_another_kind() -> None:
    first = "  %h0: Tensor = torch.exp(%v)\n"
    rest = text(STEP, LAST).split("  %a1", 1)[1]
    got = rerolled(text("", "") + first + "  %a1" + rest)
    assert trips(got) == [5]
    assert loops(got)[0].blocks[0].ops[-1].operands[1].name == "h1"


def test_nested() -> None:
    source = text("", "", steps=6)
    h = "%v"
    for i in range(5):
        for j in range(6):
            source += f"""
  %a{i}{j}: Tensor = torch.getitem(%x, %n{i}, %n{j}, %none, %none) {{spec=('int', 'slice')}}
  %s{i}{j}: Tensor = torch.sum(%a{i}{j}, %dims, %keep, %none)
  %b{i}{j}: Tensor = torch.mul({h}, %s{i}{j})
  %h{i}{j}: Tensor = torch.tanh(%b{i}{j})
"""
            h = f"%h{i}{j}"
        source += f"  %k{i}: Tensor = torch.add({h}, %w, %one)\n"
        h = f"%k{i}"
    source = source.replace(
        "  %one: int",
        "  %keep: bool = const {value=False}\n  %dims: Optional[List[int]] = const {value=None}\n"
        "  %one: int",
    ).replace("%dims: Optional[List[int]]", "%dims: None")
    got = rerolled(source + f"  return({h})\n")
    assert trips(got) == [5, 6]


def test_places_in_the_source_are_those_of_the_first_iteration() -> None:
    source = text(STEP, LAST)
    lines = [
        f"{line}  # model.py:7" if " = torch.mul" in line else line for line in source.split("\n")
    ]
    got = rerolled("\n".join(lines))
    (loop,) = loops(got)
    assert {op.loc.line for op in loop.blocks[0].ops if op.name == "torch.mul"} == {7}


def test_long_chains_of_numbers() -> None:
    """What is computed from the number before, and views of views, do not nest without end."""
    source = text("", "", steps=2) + "  %k0: int = torch.size.dim(%x, %zero)\n  %x0: Tensor = "
    source += "torch.getitem(%x, %zero, %none, %none) {spec=('slice',)}\n"
    for i in range(1500):
        source += f"  %k{i + 1}: int = py.add(%k{i}, %one)\n"
        source += f"  %x{i + 1}: Tensor = torch.getitem(%x{i}, %zero, %none, %none) "
        source += "{spec=('slice',)}\n"
    rerolled(source + "  %r: Tensor = torch.mul(%x1500, %k1500)\n  return(%r)\n")
