"""`python -m lowtide.opt`: each stage is entered from its text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lowtide import compiler, opt

FUNCTION = """\
def f(%x: Tensor, %w: Tensor, %n: int) -> Tensor:
  %1: int = const {value=1}
  %t: bool = const {value=True}
  %a: Tensor = torch.add(%x, %w, %1)
  %a.1: Tensor = torch.add(%x, %w, %1)
  %b: Tensor = torch.mul(%a, %a.1)
  %h: Tensor = loop(%n, %t, %b)
    block(%i: int, %h.1: Tensor):
      %c: Tensor = torch.tanh(%h.1)
      yield(%t, %c)
  return(%h)
"""
PROGRAM = """\
size N
input x: f32[N, 3] strides (3, 1)
input w: f32[N] strides (1)
a[i:N, k:3]: f32 = mul(x[i, k], 2.0)
b[i:N]: f32 = sum[k:3](mul(a[i, k], w[i]))
output b
"""


def opt_of(text: str, *options: str, capsys: pytest.CaptureFixture[str], path: Path) -> str:
    """What the command prints."""
    file = path / "text.txt"
    file.write_text(text)
    assert opt.main([str(file), *options]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def titles(text: str) -> list[str]:
    return [line.strip("= ") for line in text.splitlines() if line.startswith("== ")]


def test_from_ir_to_the_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shapes = ("--shape", "x=100x3,w=3,n=4", "--dtype", "w=float64")
    found = titles(opt_of(FUNCTION, *shapes, "--grad", capsys=capsys, path=tmp_path))
    assert list(dict.fromkeys(t.split()[0] for t in found)) == list(compiler.STAGES)
    assert "differentiate backward" in found


def test_one_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "eliminate_common_subexpressions"
    options = ("--from", "simplify", "--to", "simplify", "--pass", name)
    text = opt_of(FUNCTION, *options, capsys=capsys, path=tmp_path)
    assert titles(text) == ["simplify"]
    assert "torch.mul(%a, %a)" in text


@pytest.mark.parametrize("stage", compiler.STAGES[3:])
def test_programs_enter_each_stage(
    stage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What a stage prints is what the next one reads."""
    text = opt_of(PROGRAM, "--from", stage, capsys=capsys, path=tmp_path)
    assert titles(text)[0].startswith(stage)
    if stage == "normalise":
        normal = opt_of(PROGRAM, "--from", stage, "--to", stage, capsys=capsys, path=tmp_path)
        again = opt_of(normal, "--from", "fuse", "--to", "fuse", capsys=capsys, path=tmp_path)
        assert again in text


def test_a_host_program_enters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    printed = opt_of(PROGRAM, "--from", "host", "--to", "host", capsys=capsys, path=tmp_path)
    again = opt_of(printed, "--from", "host", capsys=capsys, path=tmp_path)
    assert titles(again) == ["host", "emit"]
    assert printed.partition("==\n")[2].strip() in again
    assert "run_k0(pack_k0(" in again


def test_one_rewrite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--from", "normalise", "--to", "normalise", "--rewrite", "algebra", "--size", "N=9")
    text = opt_of(PROGRAM, *options, capsys=capsys, path=tmp_path)
    assert "fma(" in text


def test_reads_what_comes_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROGRAM))
    assert opt.main(["--from", "fuse", "--to", "fuse"]) == 0
    assert capsys.readouterr().out == "== fuse groups ==\nk0: b\n\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (PROGRAM, "--from parse", "there is no stage 'parse'; write one of ir, simplify"),
        (PROGRAM, "--from fuse --to done", "there is no stage 'done'"),
        (PROGRAM, "--from ir", "--from ir reads a Function (`def …`)"),
        (FUNCTION, "--from tile", "--from tile reads a Program (`input …`), not a Function"),
        (FUNCTION, "--from simplify --pass x", "there is no pass 'x'; write one of make_private"),
        (PROGRAM, "--from normalise --rewrite x", "there is no rewrite 'x'; write one of algebra"),
        (PROGRAM, "--from differentiate --grad y", "there is no input 'y'; write one of x, w"),
        (FUNCTION, "--from specialise --shape x=3", "--shape says nothing of `w`"),
        (FUNCTION, "--from specialise --shape x", "'x' is not of the form x=100x3"),
        (FUNCTION[:-11] + "ret", "", "line 11: expected `name(%operand, ...)`\n    ret\n    ^"),
        (PROGRAM[:-2] + "y", "--from fuse", "line 6: expected a value that is defined above"),
    ],
)
def test_errors(
    text: str, options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text)
    assert opt.main([str(file), *options.split()]) == 2
    assert message in capsys.readouterr().err
