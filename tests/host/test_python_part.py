"""Parts without tensors run as Python code: the same values, types, exceptions and lines."""

from __future__ import annotations

import copy
import traceback
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.codegen.host.python_part import PythonPart
from lowtide.ir import interpret
from lowtide.ir.core import Function
from lowtide.ir.parser import parse_function
from tests.host import python_programs


def called(f: Any, args: Any) -> Any:
    args = copy.deepcopy(args)
    return f(*args), args


def assert_equal(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, torch.Tensor):
        assert torch.equal(got, want)
    elif isinstance(want, list | tuple):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_equal(a, b)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        assert_equal(list(got.values()), list(want.values()))
    else:
        assert repr(got) == repr(want)


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The text of each part that is made."""
    found: list[str] = []
    make = PythonPart.__init__

    def made(self: PythonPart, *args: Any) -> None:
        make(self, *args)
        found.append(self.text)

    monkeypatch.setattr(PythonPart, "__init__", made)
    return found


@pytest.mark.parametrize(
    ("f", "calls"), python_programs.PROGRAMS, ids=lambda x: getattr(x, "__name__", "")
)
def test_what_python_gives(f: Any, calls: Any, texts: list[str]) -> None:
    compiled = lt.script(f)
    for args in calls:
        assert_equal(called(compiled, args), called(f, args))
    assert texts


@pytest.mark.parametrize(
    ("f", "args"), python_programs.FAILING, ids=lambda x: getattr(x, "__name__", "")
)
def test_what_python_raises_and_where(f: Any, args: Any, texts: list[str]) -> None:
    with pytest.raises(Exception) as want:
        called(f, args)
    with pytest.raises(type(want.value)) as got:
        called(lt.script(f), args)
    assert str(got.value) == str(want.value)
    line = traceback.extract_tb(want.value.__traceback__)[-1].lineno
    lines = {
        frame.lineno
        for frame in traceback.extract_tb(got.value.__traceback__)
        if frame.filename == python_programs.__file__
    }
    assert line in lines
    assert texts


def part_of(text: str) -> tuple[PythonPart, Function]:
    fn = parse_function(text)
    *ops, end = fn.block.ops
    return PythonPart(ops, end.operands, {}), fn


LOOP = """\
def f(%n: int) -> int:
  %s: int = const {value=1}
  %t: bool = const {value=True}
  %r: int = loop(%n, %t, %s)
    block(%i: int, %c: int):
      %a: int = py.rshift(%c, %s)
      %b: int = py.xor(%a, %i)
      yield(%t, %b)
  return(%r)
"""
# %c is read once more after %b is made: so %b has a variable of its own
READ_LATER = """\
def f(%n: int) -> int:
  %s: int = const {value=1}
  %t: bool = const {value=True}
  %r: int, %q: int = loop(%n, %t, %s, %s)
    block(%i: int, %c: int, %d: int):
      %b: int = py.add(%c, %i)
      %e: int = py.mul(%c, %b)
      yield(%t, %b, %e)
  %w: int = py.sub(%r, %q)
  return(%w)
"""
# what is evaluated first stands first: here it has to have a variable
ORDER = """\
def f(%x: List[int]) -> int:
  %z: int = const {value=0}
  %a: int = list.pop(%x)
  %b: int = list.pop(%x)
  %r: int = py.sub(%b, %a)
  return(%r)
"""
TEXTS = [
    (
        LOOP,
        (9,),
        "def part(n):\n    c = 1\n    for i in range(n):\n        c = (c >> 1) ^ i\n"
        "    return (c,)\n",
    ),
    (
        READ_LATER,
        (4,),
        "def part(n):\n    c = 1\n    d = 1\n    for i in range(n):\n        b = c + i\n"
        "        c, d = b, (c * b)\n    w = c - d\n    return (w,)\n",
    ),
    (
        ORDER,
        ([5, 7],),
        "def part(x):\n    a = x.pop()\n    b = x.pop()\n    r = b - a\n    return (r,)\n",
    ),
]


@pytest.mark.parametrize(("text", "args", "expected"), TEXTS, ids=["loop", "read_later", "order"])
def test_its_text(text: str, args: Any, expected: str) -> None:
    part, fn = part_of(text)
    want = interpret.run(fn, *copy.deepcopy(args))
    env = dict(zip(fn.params, copy.deepcopy(args), strict=True))
    part.run(env)
    assert env[fn.block.terminator.operands[0]] == want
    assert part.text == expected


HEADS = [
    (
        python_programs.runs_over_what_tolist_gave,
        (torch.tensor([1.0, -1.0]), 2.0),
        ["for k, v_3 in enumerate(v):", "if v_3 > limit:", "for v_3 in xs:", "total += v_3 * k"],
    ),
    (
        python_programs.tested_at_both_ends,
        (27, 9),
        ["while (k != 1) and (k < 99):", "while left > 0:", "left = left - 3", "while i < n:"],
    ),
    (
        python_programs.keeps_what_a_branch_leaves,
        ("a", 9),
        ["u = n - i\n        if (u % 2) == 0:\n            u = u * 3\n        told ="],
    ),
    (python_programs.lists, ([3, 1, 2],), ["xs[1:]", "xs[::(-1)]"]),
    (python_programs.sieve, (50,), ["for k in range(2, n):"]),
]


@pytest.mark.parametrize(("f", "args", "lines"), HEADS, ids=lambda x: getattr(x, "__name__", ""))
def test_as_a_user_would_write_it(f: Any, args: Any, lines: list[str], texts: list[str]) -> None:
    called(lt.script(f), args)
    found = "\n".join(texts)
    assert [line for line in lines if line not in found] == [], found
