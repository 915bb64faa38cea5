"""Programs as text: what is printed is read back as the same Program; broken text shows where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lowtide.errors import UNKNOWN_LOC, Loc
from lowtide.execute import backend
from lowtide.ir.parser import ParseError
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Def, Program, Rewriter
from lowtide.texpr.index import Axis, as_index
from lowtide.texpr.normalise import normalise
from lowtide.texpr.parser import parse_program
from lowtide.texpr.printer import print_program, sizes_of
from tests.fuzz import gradients, loop_check, loops
from tests.fuzz.check import check as run
from tests.fuzz.generate import generate
from tests.pipeline.standin import StandIn


def axes_of(d: Def) -> dict[Axis, None]:
    """Its own, and those of its reductions, in order."""
    inner = [a for e in ex.walk(d.expr) if isinstance(e, ex.Reduce) for a in e.axes]
    return dict.fromkeys((*d.axes, *inner))


def placed(d: Any) -> Any:
    """With that of its place which a text keeps."""
    known = Loc(d.loc.file, d.loc.line) if d.loc.line else UNKNOWN_LOC
    return replace(d, loc=known)


def check(program: Program) -> None:
    """What its text is read as has the same contents, but for the identity of axes."""
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    again = parse_program(text, {a.name: as_index(a) for a in sizes_of(program)})
    defs = dict(again.defs)
    for name, d in again.defs.items():
        old = axes_of(program.defs[name])
        same = dict(zip(axes_of(d), map(as_index, old), strict=True))
        axes = tuple(list(old)[: len(d.axes)])
        defs[name] = replace(d, axes=axes, expr=Rewriter(atoms=same)(d.expr))
    original = replace(
        program,
        delays={n: placed(y) for n, y in program.delays.items()},
        defs={n: placed(d) for n, d in program.defs.items()},
    )
    assert replace(again, defs=defs).contents() == original.contents()


@pytest.fixture
def compiled() -> Iterator[list[Program]]:
    """The Programs that reach the code generator, and their normal forms."""
    found: list[Program] = []

    def record(program: Program, *, symbols: Any, scalars: Any, hints: Any) -> StandIn:
        found.append(program)
        if not program.delays:
            found.append(normalise(program, hints))
        return StandIn(program, symbols, scalars)

    backend.use(record)
    yield found
    backend.use(None)


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_round_trip(seed: int, compiled: list[Program]) -> None:
    run(generate(seed))
    gradients.check(generate(100 + seed))
    assert len(compiled) > 2
    for program in compiled:
        check(program)


@pytest.mark.parametrize("seed", [13, 18, 100, 102])
def test_loops_round_trip(seed: int, compiled: list[Program]) -> None:
    loop_check.check(loops.generate(seed))
    assert compiled
    for program in compiled:
        check(program)


ALL = """\
size N >= 2
size c0
input x: f32[N, 3, c0] strides (3*c0, c0, 1) order (0, 2, 1)
input n: i64[N] strides (1)
input g: bf16[N, 3] strides (3, 1)
delay h: f32[N, 3] = t2[-1] from t1 ends live why 'x[t]: # the step before'    # - model.py:3
delay live: bool[N] = t3[+1] from t4
t1[k:3]: f32 = 0.5    # zeros my model.py:12
t4[]: bool = True
t2[t:N, k:3]: f32 = mul(h[t, k], f32($scale))
t3[t:N]: bool = lt(t2[t, 0], inf)
t5[i:N, i.1:3]: i64 = argmin[j:c0](x[i, i.1, j])
t6[i:N]: f64 = select(eq(n[i], -3), -1e-05:f64, sum[j:((N + 1) // 2)](f64(x[i, j, [n[j]]])))
t7[i:2*N - 1]: bf16 = sum[j:3](mul(%2, %2))    # sum
  %1[j:3] = exp(g[(i // 2), j])
  %2[j:3] = add(%1, -0.0:bf16)
out[i:N]: i32 = at((i % 3)):i32
more[i:N]: i32 = 3:i32 added to out[clamp([n[i]], N)]
t8[]: i64 = add:i64(1:u8, 255:u8)
t9[i:N]: f64 = sum[j:4]:f64(f32(at(i + 4*j)))
equal N, 2*c0: "sizes of 'x'"
output t5, t6, t7, t9, out, more, x
check t4
shared_sums t6: f64, t99: f32
"""


def test_all_that_is_printed() -> None:
    """One of each; parts are written apart only where they are long, and parsed wherever."""
    program = parse_program(ALL)
    text = print_program(program)
    assert print_program(parse_program(text)) == text
    short = (
        "sum[j:3](mul(add(exp(g[(i // 2), j]), -0.0:bf16), add(exp(g[(i // 2), j]), -0.0:bf16)))"
    )
    lines = [x for x in ALL.splitlines() if not x.startswith("  %")]
    assert text.splitlines() == [x.replace("sum[j:3](mul(%2, %2))", short) for x in lines]
    check(program)


def test_long_parts_have_lines() -> None:
    deep = "exp(" * 90 + "x[i]" + ")" * 90
    program = parse_program(
        f"input x: f32[9] strides (1)\nt[i:9]: f32 = mul({deep}, {deep})\noutput t\n"
    )
    text = print_program(program)
    assert len(text.splitlines()) == 5
    assert max(map(len, text.splitlines())) < 300
    check(program)


@pytest.mark.parametrize(
    ("line", "message", "at"),
    [
        ("t[i:4]: f32 = exp(y[i])", "a value that is defined above, not y", "y[i])"),
        ("t[i:4]: f32 = exp(x[i]", "`)`", ""),
        ("t[i:4]: f16 = exp(x[i])", "an expression of f16, not of f32", ""),
        (
            "t[i:4]: f32 = maximum(x[i])",
            "another number of operands: `maximum` does not take 1",
            "",
        ),
        ("t[i:4]: f32 = add(x[i], 1)", "operands of one dtype, not f32, i64", ""),
        ("t[i:4]: f33 = x[i]", "a dtype: f64, f32", "f33 = x[i]"),
        ("x[i:4]: f32 = 1.0", "a new name, x is taken", ""),
        ("t[i:4]: f32 = sum[i:5](1.0)", "another name: i has an extent of 4", "](1.0)"),
        ("output t", "a value that is defined above", "t"),
        ("t[i:4]: f32 = x[i] + 1", "the end of the line", "+ 1"),
        ("t[i:4]: f32 = %1", "a part with a line of its own, not %1", "%1"),
        ("input y: f32[4]", "`strides`", ""),
    ],
)
def test_broken_text(line: str, message: str, at: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(f"input x: f32[4] strides (1)\n{line}\n")
    said, shown, caret = str(caught.value).splitlines()
    assert said.startswith(f"line 2: expected {message}")
    assert shown[len(caret) - 1 :] == at
