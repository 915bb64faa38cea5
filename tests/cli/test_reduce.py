"""`lowtide reduce`: a planted fault is found in the stage that has it, in a part as small as it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lowtide import compiler
from lowtide.cli import app
from lowtide.ir.core import Function, print_function
from lowtide.ir.parser import parse_function
from lowtide.texpr import expr as ex
from lowtide.texpr.expr import Apply, Expr, Program, Rewriter
from lowtide.tile.group import Fusion
from lowtide.tile.ir import Kernel
from lowtide.tools import reduce_command

PROGRAM = """\
import torch


def fn(x, w):
    y = torch.sin(x * w) + 1
    z = torch.tanh(y)
    for t in range(2):
        z = z * w
    return torch.softmax(z, -1), y


def steps(x):
    h = x[0]
    for t in range(x.shape[0]):
        h = torch.sin(h + x[t])
    return h


def long_step(x):
    h = x[0]
    for t in range(x.shape[0]):
        g = torch.exp(-(h + x[t]).abs())
        h = torch.tanh(g * 2) + torch.cos(h)
        h = h * torch.sigmoid(g)
    return h


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 4)

    def forward(self, x):
        return torch.tanh(self.inner(x))
"""

TRACED = """\
import lowtide as lt
import torch
from reduced_program import fn


def other(x):
    return torch.tanh(x)


first = lt.trace(other, (torch.rand(5),))
traced = lt.trace(fn, (torch.rand(5, 3), torch.rand(3)))
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reduced_program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)


def reduced(name: str = "fn", shapes: str = "5x3,3") -> reduce_command.Reduced:
    return reduce_command.reduce(f"reduced_program:{name}", shapes, "float32")


def cosines(expr: Expr) -> Expr:
    """Each sine is a cosine."""

    def visit(e: Expr) -> Expr | None:
        is_sine = isinstance(e, Apply) and e.fn == "sin"
        return ex.apply("cos", e.args, e.dtype) if is_sine and isinstance(e, Apply) else None

    return Rewriter(visit)(expr)


def ops_of(found: reduce_command.Reduced) -> list[str]:
    return [op.name for op in found.function.walk() if op.name.startswith("torch.")]


@pytest.mark.parametrize(("name", "shapes"), [("fn", "5x3,3"), ("Net", "5x3")])
def test_nothing_differs(name: str, shapes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["reduce", f"reduced_program:{name}", "--shape", shapes]) == 0
    assert capsys.readouterr().out == "nothing differs\n"


def test_shapes_with_which_pytorch_raises(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["reduce", "reduced_program:fn", "--shape", "5x3,4"]) == 0
    out = capsys.readouterr().out
    assert out == "nothing differs: PyTorch raises RuntimeError, too; do the shapes fit?\n"


def test_a_fault_in_normalise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = compiler.normalise

    def wrong(program: Program, hints: dict[str, int]) -> Program:
        made = right(program, hints)
        defs = {n: replace(d, expr=cosines(d.expr)) for n, d in made.defs.items()}
        return replace(made, defs=defs)

    monkeypatch.setattr(compiler, "normalise", wrong)
    assert app(["reduce", "reduced_program:fn", "--shape", "5x3,3"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("the first stage that is wrong: normalise\n")
    assert "torch.sin" in text
    assert "docs/correctness.md" in text
    found = reduced()
    assert ops_of(found) == ["torch.sin"]
    assert found.to_dict()["stage"] == "normalise"


def test_a_fault_in_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def swap_sines(fn: Function) -> Function:
        return parse_function(print_function(fn).replace("torch.tanh", "torch.sin"))

    steps = (*compiler.SIMPLIFY[:4], swap_sines, *compiler.SIMPLIFY[4:])
    monkeypatch.setattr(compiler, "SIMPLIFY", steps)
    found = reduced()
    assert found.stage == "swap_sines"
    assert ops_of(found) == ["torch.tanh"]
    assert len(found.inputs) == 1


@pytest.mark.filterwarnings("ignore:.*differs from the function")
def test_a_fault_in_a_pass_over_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module traces when it is imported; another function comes before it."""

    def swap_sines(fn: Function) -> Function:
        return parse_function(print_function(fn).replace("torch.tanh", "torch.sin"))

    monkeypatch.setattr(compiler, "REROLL", (*compiler.REROLL, swap_sines))
    (tmp_path / "traced_program.py").write_text(TRACED)
    monkeypatch.delitem(sys.modules, "traced_program", raising=False)
    found = reduce_command.reduce("traced_program:traced", "5x3,3", "float32")
    assert found.stage == "swap_sines"
    assert ops_of(found) == ["torch.tanh"]


def test_a_fault_in_a_loop_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def swap_sines(fn: Function) -> Function:
        return parse_function(print_function(fn).replace("torch.tanh", "torch.sin"))

    monkeypatch.setattr(compiler, "SIMPLIFY", (*compiler.SIMPLIFY, swap_sines))
    found = reduced("long_step", "4x3")
    assert found.stage == "swap_sines"
    assert ops_of(found) == ["torch.tanh"]


Rewrite = Callable[[Expr], Expr]


def groups_with(rewrite: Rewrite, made: Fusion) -> Fusion:
    """A Fusion whose groups compute something else."""
    groups = [
        replace(g, defs={n: replace(d, expr=rewrite(d.expr)) for n, d in g.defs.items()})
        for g in made.groups
    ]
    return replace(made, groups=groups)


def kernel_with(rewrite: Rewrite, kernel: Kernel) -> Kernel:
    """A kernel whose nests compute something else."""
    for nest in kernel.nests():
        nest.writes = [replace(w, expr=rewrite(w.expr)) for w in nest.writes]
        nest.reads = {rewrite(e): b for e, b in nest.reads.items()}
    return kernel


def plant(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Make the sines of one stage wrong."""
    right = getattr(compiler, {"fuse": "fused", "tile": "tiled", "emit": "emitted"}[stage])

    def fused(*args, **options):
        return groups_with(cosines, right(*args, **options))

    def tiled(*args):
        return kernel_with(cosines, right(*args))

    def emitted(*args):
        return [text.replace("= sin_f32(", "= -sin_f32(") for text in right(*args)]

    made = {"fuse": fused, "tile": tiled, "emit": emitted}[stage]
    monkeypatch.setattr(compiler, right.__name__, made)


@pytest.mark.parametrize("stage", ["fuse", "tile", "emit"])
@pytest.mark.parametrize(("name", "shapes"), [("fn", "5x3,3"), ("steps", "40x3")])
def test_a_fault_in_kernels(
    stage: str, name: str, shapes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, stage)
    found = reduced(name, shapes)
    assert found.stage == stage
    if name == "fn":
        assert ops_of(found) == ["torch.sin"]


def test_a_fault_in_the_parts_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compiler.parts

    def wrong(program: Program, *args):
        defs = {n: replace(d, expr=cosines(d.expr)) for n, d in program.defs.items()}
        return right(replace(program, defs=defs), *args)

    monkeypatch.setattr(compiler, "parts", wrong)
    assert reduced("steps", "40x3").stage == "split or host"


def test_other_arguments_than_the_function_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["reduce", "reduced_program:fn", "--shape", "5x3"]) == 2
    assert capsys.readouterr().err.startswith("lowtide reduce: ")
