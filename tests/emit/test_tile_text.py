"""Groups and tile programs as text: what is printed is read back, and prints the same C."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import lowtide as lt
from lowtide.codegen.executable import Executable, compile_groups, compile_program
from lowtide.errors import VerifyError
from lowtide.execute import backend
from lowtide.ir.parser import ParseError
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Program
from lowtide.texpr.parser import parse_program
from lowtide.texpr.printer import sizes_of
from lowtide.tile.parser import parse_groups
from lowtide.tile.printer import print_groups
from tests.blocks.test_text import named, scattered
from tests.emit.test_kernels import HINTS, PROGRAMS
from tests.fuzz.check import python_function
from tests.fuzz.generate import generate
from tests.texpr import test_partition_texts, test_rewrite_texts
from tests.texts import Case

CASES = [
    case
    for case in (*test_rewrite_texts.CASES, *test_partition_texts.CASES)
    if case.fires or case.name != "nested_recurrences"  # those are refused
]


def check(made: Executable, hints: Mapping[str, int]) -> int:
    """Read both texts of all parts back; return how many kernels there are."""
    for kernels in made.kernels_by_head.values():
        for plans in ((), kernels.plans):
            text = print_groups(replace(kernels.grouped, kernels=plans))
            read = parse_groups(text)
            assert print_groups(read) == text
            again = compile_groups(read, {**dict.fromkeys(kernels.symbols, 64), **hints})
            if plans:  # without, a hint of a loop's step may be another one
                assert again.first.source == kernels.source
    return sum(len(k.plans) for k in made.kernels_by_head.values())


def check_program(program: Program, hints: Mapping[str, int]) -> None:
    every = [e for d in program.defs.values() for e in ex.walk(d.expr)]
    scalars = dict.fromkeys(e.name for e in every if isinstance(e, ex.Scalar))
    made = compile_program(program, symbols=[*hints], scalars=[*scalars], hints=hints)
    assert check(made, hints)


@contextmanager
def checked() -> Iterator[list[int]]:
    """A context in which each compiled Program is checked; numbers of kernels."""
    counts: list[int] = []

    def compiled(program: Program, **options: Any) -> Executable:
        made = compile_program(program, **options)
        counts.append(check(made, options["hints"]))
        return made

    backend.use(compiled)
    try:
        yield counts
    finally:
        backend.use(None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_of_the_golden_texts(name: str) -> None:
    check_program(named(name), HINTS)


def test_additions_at_places_of_data() -> None:
    check_program(scattered(), HINTS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_programs_of_the_text_tests(case: Case) -> None:
    program = parse_program(case.before)
    if all(d.adds_to or n in program.inputs for n, d in program.defs.items()):
        pytest.skip("nothing is computed")
    check_program(program, {a.name: max(a.low or 0, 64) for a in sizes_of(program)})


@pytest.mark.parametrize("seed", range(200, 212))
def test_random_programs(seed: int) -> None:
    program = generate(seed)
    tensors = program.arguments(program.runs[0])
    with checked() as counts:
        lt.script(python_function(program))(*tensors.values())
    assert all(counts)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def recurrent(x, h, u):
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u)
    return h


def norms(x, y):
    return F.layer_norm(F.gelu(x @ y), (y.shape[1],)).bfloat16()


def long_sums(x, w):
    """Accumulators in float64."""
    y = (x * w).exp()
    return torch.cat([y.sum(0), y.sum(1), (x * x).mean()[None]])


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (long_sums, [(700, 70), (70,)]),
        (attention, [(2, 70, 16)] * 3),
        (recurrent, [(9, 4, 40), (4, 40), (40, 40)]),
        (norms, [(60, 50), (50, 300)]),
    ],
)
def test_with_gradients(fn: Any, shapes: list[tuple[int, ...]]) -> None:
    inputs = [torch.randn(s).requires_grad_() for s in shapes]
    with checked() as counts:
        lt.script(fn)(*inputs).float().sum().backward()
    assert len(counts) > 1


GROUP = """\
sizes N
input x: f32[N, 300] strides (300, 1)
group k0
m[i:N]: f32 = max[j:300](x[i, j])
kernel k0 grid (i:N by 64) lanes 8 checks nan
  accumulator m[i]: f32 max last i holds m
  fill m = -inf
  nest (i, j vector x1)
    m = max[j](x[i, j])
  nest (i vector x1)
    m[i] = m[i]
output m
"""


def test_a_text_by_hand_is_compiled() -> None:
    made = compile_groups(parse_groups(GROUP), {"N": 70})
    x = torch.randn(70, 300)
    (found,) = made([x], [70], [])
    assert torch.equal(found, x.amax(1))


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("  fill m = -inf\n", "", VerifyError, "reads m, which nothing began"),
        ("fill m", "fill t", ParseError, "line 7: expected a buffer"),
        ("nest (i,", "loop (i,", ParseError, "line 8: expected one of for, fill, nest"),
        ("(i, j ", "(i, k ", ParseError, "line 8: expected `:`"),
        ("    m = max", "    n = max", ParseError, "line 9: expected a buffer or an element"),
        ("lanes 8", "lanes x", ParseError, "line 5: expected a number"),
        ("group k0", "group k1", ParseError, "line 3: expected `k0`"),
        ("kernel k0", "kernel k1", ParseError, "line 5: expected `k0`"),
        ("m[i] = m[i]", "m[i] = %s1", ParseError, "line 11: expected a part with a line"),
        (", j vector x1)", ", j vector x1) reads m", ParseError, "a buffer that is written above"),
        ("group k0\n", "", ParseError, "line 3: expected `group k0` before the first definition"),
    ],
)
def test_errors(old: str, new: str, error: type[Exception], message: str) -> None:
    assert GROUP.count(old) >= 1
    with pytest.raises(error) as caught:
        parse_groups(GROUP.replace(old, new, 1))
    assert message in str(caught.value)
