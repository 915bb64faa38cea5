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

GROUPS = """\
size N
input w: f32[N] strides (1)
group k0
b[i:N]: f32 = mul(w[i], 2.0)
"""

HOST = """\
input w: f32[8] strides (1)
result w
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


@pytest.mark.parametrize(("option", "names"), [("--grad", "ct_x, ct_w"), ("--wrt=w", "ct_w")])
def test_the_file_may_follow_the_gradients(
    option: str, names: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(PROGRAM)
    assert opt.main(["--from", "differentiate", "--to", "differentiate", option, str(file)]) == 0
    assert f"\noutput {names}\n" in capsys.readouterr().out


def test_one_pass(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "eliminate_common_subexpressions"
    options = ("--from", "simplify", "--to", "simplify", "--pass", name)
    text = opt_of(FUNCTION, *options, capsys=capsys, path=tmp_path)
    assert titles(text) == ["simplify"]
    assert "torch.mul(%a, %a)" in text


@pytest.mark.parametrize("stage", compiler.STAGES[3:])
def test_each_stage_reads_what_the_one_before_prints(
    stage: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    all_of_it = opt_of(PROGRAM, "--from", "differentiate", capsys=capsys, path=tmp_path)
    text = PROGRAM
    for before in compiler.STAGES[3 : compiler.STAGES.index(stage)]:
        printed = opt_of(text, "--from", before, "--to", before, capsys=capsys, path=tmp_path)
        if (before, stage) != ("host", "emit"):  # either of the two reads kernels
            text = printed or text
    found = opt_of(text, "--from", stage, capsys=capsys, path=tmp_path)
    assert found
    assert all_of_it.endswith(found)


def test_a_host_program_enters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    kernels = opt_of(PROGRAM, "--from", "fuse", "--to", "fuse", capsys=capsys, path=tmp_path)
    kernels = opt_of(kernels, "--from", "tile", "--to", "tile", capsys=capsys, path=tmp_path)
    printed = opt_of(kernels, "--from", "host", "--to", "host", capsys=capsys, path=tmp_path)
    again = opt_of(printed, "--from", "host", capsys=capsys, path=tmp_path)
    assert titles(again) == ["host", "emit"]
    assert printed.partition("==\n")[2].strip() in again
    assert "run_k0(pack_k0(" in again


LOOP = """\
size T
input p: f32[T, 8] strides (8, 1)
input u: f32[8, 8] strides (8, 1)
input h0: f32[8] strides (1)
delay old: f32[T, 8] = h[-1] from h0
h[t:T, j:8]: f32 = tanh(add(p[t, j], %1))
  %1 = sum[k:8](mul(old[t, k], u[k, j]))
s[j:8]: f32 = sum[t:T](h[t, j])
output s
"""


def test_the_parts_of_a_loop_enter(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    groups = opt_of(LOOP, "--from", "fuse", "--to", "fuse", capsys=capsys, path=tmp_path)
    assert titles(groups) == ["fuse loop0.groups", "fuse part1.groups"]
    wanted = opt_of(LOOP, "--from", "fuse", capsys=capsys, path=tmp_path)
    kernels = opt_of(groups, "--from", "tile", "--to", "tile", capsys=capsys, path=tmp_path)
    found = opt_of(kernels, "--from", "emit", capsys=capsys, path=tmp_path)
    assert kernels.split("==\n")[1].partition("\n\n")[0] in wanted
    (c_of_steps,) = [x for x in found.split("== ") if x.startswith("emit loop0 C")]
    assert c_of_steps.partition("==\n")[2] in wanted


def test_a_kernel_that_reads_what_is_not_there_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = PROGRAM.replace("k:3", "k:300").replace("N, 3", "N, 300").replace("(3, 1)", "(300, 1)")
    kernels = opt_of(text, "--from", "fuse", "--to", "tile", capsys=capsys, path=tmp_path)
    text = kernels[kernels.rindex("sizes N") :]
    assert text.count("  fill b = ") == 1
    file = tmp_path / "text.txt"
    file.write_text("\n".join(line for line in text.splitlines() if "  fill b" not in line))
    assert opt.main([str(file), "--from", "emit"]) == 2
    assert "kernel k0 reads b, which nothing began" in capsys.readouterr().err


def test_one_rewrite(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    options = ("--from", "normalise", "--to", "normalise", "--rewrite", "algebra", "--size", "N=9")
    text = opt_of(PROGRAM, *options, capsys=capsys, path=tmp_path)
    assert "fma(" in text


def test_reads_what_comes_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PROGRAM))
    assert opt.main(["--from", "fuse", "--to", "fuse"]) == 0
    assert capsys.readouterr().out.startswith("== fuse groups ==\nsizes N\nsize N\ninput x: ")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", "--from fuse", "the text is empty"),
        ("== fuse groups ==\n\n", "--from tile", "the text is empty"),
        (f"== host ==\n{HOST}\n== host a ==\n{HOST}", "--from emit", "not 2: host, host a"),
        (f"== ir ==\n{FUNCTION}\n== simplify ==\n{FUNCTION}", "", "not 2: ir, simplify"),
        (PROGRAM, "--from parse", "there is no stage 'parse'; write one of ir, simplify"),
        (PROGRAM, "--from fuse --to done", "there is no stage 'done'"),
        (PROGRAM, "--from ir", "--from ir reads a Function (`def …`)"),
        (FUNCTION, "--from fuse", "--from fuse reads a Program (`input …`), not a Function"),
        (PROGRAM, "--from tile", "--from tile reads groups (`group k0`), not a Program"),
        (GROUPS, "--from emit", "--from emit reads a tile program (`kernel k0 …`) or a host"),
        (GROUPS.replace("k0", "k1"), "--from tile", "line 3: expected `k0`\n    group k1\n"),
        (GROUPS + "output c", "--from tile", "line 5: expected a value that is defined above"),
        (FUNCTION, "--from simplify --pass x", "there is no pass 'x'; write one of make_private"),
        (PROGRAM, "--from normalise --rewrite x", "there is no rewrite 'x'; write one of algebra"),
        (PROGRAM, "--from differentiate --wrt y", "there is no input 'y'; write one of x, w"),
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
