"""Host programs: their text, that it reads back, what `verify` refuses, and the memory they tell.

The goldens show what happens around the kernels of small programs: in place, a library product,
loops, loops within loops, loops that the data end, strips.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide.budget.dry_run import DryRun
from lowtide.budget.dry_run_steps import KernelStep
from lowtide.codegen.executable import compile_program
from lowtide.codegen.host.memory import events
from lowtide.codegen.host.parser import parse_host
from lowtide.codegen.host.printer import print_host
from lowtide.codegen.host.program import HostProgram
from lowtide.diagnostics import faults
from lowtide.errors import VerifyError
from lowtide.ir.parser import ParseError
from lowtide.memory.plan import peak_of
from lowtide.tile import axes, strips


def chamfer(a: Tensor, b: Tensor) -> Tensor:
    return ((a[:, None] - b[None]) ** 2).sum(-1).min(1).values.mean()


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def in_place(x: Tensor, w: Tensor) -> Tensor:
    h = torch.tanh(x @ w)
    return h * (h @ w).sum(1, keepdim=True)


def recurrent(x: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    out: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u)
        out.append(h)
    return torch.stack(out) * 2, h


def backwards(x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0] - 1, -1, -1):
        h = torch.sigmoid(h * 0.5 + x[t])
    return h


def nested(x: Tensor) -> Tensor:
    total = torch.zeros(x.shape[2])
    for i in range(x.shape[0]):
        h = total * 0.5
        for j in range(x.shape[1]):
            h = torch.tanh(h + x[i, j])
        total = total + h
    return total


def from_last(x: Tensor, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """A second loop begins with the last value of the first one, which is a result, too."""
    first: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h @ u)
        first.append(h)
    rows = (torch.stack(first) * 2 + x).sum(1)
    k = h
    for t in range(x.shape[0]):
        k = torch.tanh(x[t] * rows[t] + k @ u)
    return k, h


def early(x: Tensor, least: float) -> Tensor:
    h = torch.zeros(x.shape[1])
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + h)
        if h.abs().max() < least:
            break
    return h


def densities(x: Tensor, w: Tensor) -> Tensor:
    scores = x @ w.t()
    z = scores.logsumexp(-1)
    return (z - scores[:, 3]).mean() + 1e-3 * (z * z).mean()


N = 300
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "chamfer": (chamfer, (torch.ones(N, 3), torch.ones(N + 1, 3))),
    "product": (product, (torch.ones(N, N), torch.ones(N, N))),
    "in_place": (in_place, (torch.ones(N, N), torch.ones(N, N))),
    "recurrent": (recurrent, (torch.ones(N, 40), torch.ones(40, 40), torch.ones(40))),
    "backwards": (backwards, (torch.ones(N, 40),)),
    "nested": (nested, (torch.ones(N, 50, 40),)),
    "early": (early, (torch.ones(N, 40), 0.1)),
}


def region(fn: Callable[..., Any], args: tuple[Any, ...]) -> KernelStep:
    """The only region of a function."""
    compiled: Any = lt.script(fn)
    driver, values = compiled.resolve(compiled.bind(args, {}))
    (step,) = (s for s in DryRun(driver, values).steps if isinstance(s, KernelStep))
    return step


@pytest.mark.parametrize("name", PROGRAMS)
def test_text(name: str, golden: Callable[[str, str], None]) -> None:
    host = region(*PROGRAMS[name]).executable().host
    text = print_host(host)
    assert print_host(parse_host(text)) == text
    golden(name, _anywhere(text))


def test_a_result_that_a_loop_begins_with() -> None:
    args = torch.randn(5, 4), torch.randn(4, 4), torch.randn(4)
    with faults.strict():
        f: Any = lt.script(from_last)
        found = f(*args)
        assert f.memory(*args).peak_bytes >= sum(x.nbytes for x in found)
    torch.testing.assert_close(found, from_last(*args))


def test_strips(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over all rows begin as zeros; what is left of the rows is a loop of at most one trip."""
    for module, name in ((axes, "LONG"), (strips, "FEWEST"), (strips, "MOST")):
        monkeypatch.setattr(module, name, 16)
    leaves = (torch.ones(213, 16, requires_grad=True), torch.ones(150, 16, requires_grad=True))
    step = region(densities, leaves)
    host, gradient = step.entry.spec.host, step.entry.spec.gradient
    assert host is not None
    assert gradient is not None
    program = gradient.record(step.numbers)
    made = compile_program(program, symbols=host.symbols, scalars=(), hints=step.numbers)
    text = print_host(made.host)
    assert print_host(parse_host(text)) == text
    golden("strips", _anywhere(text))


def _anywhere(text: str) -> str:
    """Without the user's lines, and without bytes of work memory, which the width of vectors
    decides."""
    text = re.sub("    # - .*", "", text)
    return re.sub(r"^work (\S+) = .*", r"work \1", text, flags=re.MULTILINE) + "\n"


HEAD = "sizes s0\ninput x: f32[s0, 4]\n"
REFUSED = {
    "launch k0(x, y)\nresult x": "y is read before it is defined",
    "take y: f32[s0] output\nfree y\nresult y": "y is used after it is freed",
    "take x: f32[s0] output\nresult x": "x is defined twice",
    "take y: f32[s1] output\nresult y": "s1 is not a size",
    "take s0: f32[4] output\nresult s0": "s0 is a number and a tensor",
    "launch k0(x) sizes (n)\nresult x": "n is not a size",
    "launch k0(x) numbers (c0)\nresult x": "c0 is not a number",
    "launch k0(x) work w\nresult x": "w is read before it is defined",
    "launch k0(x[t, rows 2, bytes 16])\nresult x": "t is not the step of a loop around a launch",
    "launch k0(x) sizes (begun)\nresult x": "begun is not a size",
    "loop t from 0 by 1, s0 times:\n    loop t from 0 by 1, s0 times:\n        launch k0(x)\n"
    "result x": "t is the step of two nested loops",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(VerifyError, match=REFUSED[text]):
        parse_host(HEAD + text)


FAULTS = {
    "tke y: f32[4] output\nresult x": "one of size, take, over",
    "take y: f33[4] output\nresult x": "a dtype",
    "take y: f32[4] thing\nresult x": "a kind before this",
    "loop t from 0 by 1, s0 times:\n    free x\nresult x": "`launch` or `loop` in the body",
    "fill x = 'a'\nresult x": "a number before this",
    "launch k0(x": "expected `,`",
    "free x": "a last line `result",
}


@pytest.mark.parametrize("text", FAULTS)
def test_faults_of_a_text_show_the_line(text: str) -> None:
    with pytest.raises(ParseError, match=FAULTS[text]):
        parse_host(HEAD + text)


def peak(text: str, **sizes: int) -> tuple[int, str]:
    program: HostProgram = parse_host(HEAD + text)
    plan = peak_of(events(program, sizes, 2))
    return plan.peak_bytes, plan.formula


def test_the_peak_is_read_from_the_statements() -> None:
    text = """\
take a: f32[s0, 4] temporary
work k0.work = 64
launch k0(x, a) work k0.work
free k0.work
over b: f32[s0, 4] temporary = a
launch k1(a, b)
free a
take c: f32[s0] output
launch k2(b, c)
free b
result c"""
    assert peak(text, s0=10) == (10 * 16 + 2 * 64, "16*s0 + 2*(64)")


def test_sizes_that_a_program_computes_stand_as_numbers() -> None:
    text = "size rows = clamp(s0, 257)\ntake a: f32[rows] output\nresult a"
    assert peak(text, s0=1000) == (1024, "4*256")


OUTLIVES = """\
take h: f32[s0, 4] temporary
size t = 0
loop t from 0 by 1, s0 times:
    launch k0(x, h[t, rows s0, bytes 16])
view last: f32[4] = h[s0 - 1]
own last: f32[4] output
free h
take y: f32[s0, 4] output
launch k1(last, y)
result last, y"""


def test_what_outlives_its_stack_has_memory_of_its_own() -> None:
    assert peak(OUTLIVES, s0=10000) == (160000 + 16, "16*s0 + 16")


def test_a_small_stack_stays_with_what_outlives_it() -> None:
    assert peak(OUTLIVES, s0=10) == (160 + 160, "16*s0 + 16*s0")


def test_a_copy_without_gaps_counts() -> None:
    assert peak("dense h = x\nfree h\nresult x", s0=10) == (160, "16*s0")
