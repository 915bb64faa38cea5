"""`python -m lowtide.opt`: each stage is entered from its text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor

import lowtide as lt
from lowtide import compiler, opt
from lowtide.ir.core import print_function
from lowtide.tile import axes, strips

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
SHAPES = "--from specialise --shape x=100x3,w=3,n=4"
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

PARTS = """\
sizes N
input w: f32[N] strides (1)
output b
== split part0.tensor expressions ==
input w: f32[N] strides (1)
b[i:N]: f32 = mul(w[i], 2.0)
output b
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


@pytest.mark.parametrize("name", ["plain", "loop", "scripted", "nested", "strips"])
def test_each_stage_reads_what_the_one_before_prints(
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, constant in ((axes, "LONG"), (strips, "FEWEST"), (strips, "MOST")):
        monkeypatch.setattr(module, constant, 16)  # so that small products are cut
    text, wanted = program_of(name, capsys, tmp_path)
    size = ("--size", "N=213,V=150,s0=40,s1=8")
    all_of_it = opt_of(text, "--from", "split", *size, capsys=capsys, path=tmp_path)
    assert {t.split()[1].rpartition(".")[0] for t in titles(all_of_it)} - {""} == wanted
    repeated = any(word in all_of_it for word in ("\nloop step", "\nloop start"))
    assert repeated == bool(wanted)
    kernels = ""
    for k, stage in enumerate(compiler.STAGES[4:], 4):
        text = kernels if stage == "emit" else text  # either of the two reads kernels
        found = opt_of(text, "--from", stage, *size, capsys=capsys, path=tmp_path)
        assert found == all_of_it[all_of_it.index(f"== {stage} ") :]
        text = opt_of(text, "--from", stage, "--to", stage, *size, capsys=capsys, path=tmp_path)
        kernels = text if compiler.STAGES[k] == "tile" else kernels


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


STRIPS = """\
size N >= 2
size V >= 2
input x: f32[N, 16] strides (16, 1)
input w: f32[V, 16] strides (16, 1)
t[n:N, v:V]: f32 = sum[c:16](mul(x[n, c], w[v, c]))
m[n:N]: f32 = max[v:V](t[n, v])
p[n:N, v:V]: f32 = exp(sub(t[n, v], m[n]))
a[n:N, c:16]: f32 = sum[v:V](mul(p[n, v], w[v, c]))
b[v:V, c:16]: f32 = sum[n:N](mul(p[n, v], x[n, c]))
output a, b
"""


@lt.script
def rows(x: Tensor, u: Tensor):
    h = x[0]
    hs: list[Tensor] = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] + u @ h)
        hs.append(h)
    return torch.stack(hs).sum(0), h


@lt.script
def nested(x: Tensor, u: Tensor):
    h = x[0]
    for t in range(x.shape[0]):
        g = h
        for _ in range(x.shape[1]):
            g = torch.tanh(u @ g)
        h = torch.sin(g + x[t])
    return h


def program_of(name: str, capsys: pytest.CaptureFixture[str], path: Path) -> tuple[str, set[str]]:
    """The text of a Program, and prefixes of its parts' kernels."""
    if name == "plain":
        return PROGRAM, set()
    if name == "loop":
        return LOOP, {"loop0", "part1"}
    if name == "strips":
        return STRIPS, {"strip0"}
    function = {"scripted": rows, "nested": nested}[name]
    function(torch.rand(40, 8), torch.rand(8, 8))
    options = ("--to", "specialise", "--shape", "x=40x8,u=8x8")
    shown = opt_of(print_function(function.graph), *options, capsys=capsys, path=path)
    (text,) = [s for s in shown.split("== specialise") if "\ninput " in s]
    inner = {"loop1.loop0", "loop1.part1"} if name == "nested" else {"part2"}
    return text.partition("==\n")[2], {"part0", "loop1", *inner}


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
        (
            f"== fuse loop0.groups ==\n{GROUPS}",
            "--from tile",
            "needs the section `interface` above",
        ),
        ("loop i: N\n" + PROGRAM, "--from fuse", "needs the section `interface` above"),
        (f"== split interface ==\n{PARTS}", "--from split", "reads a whole Program, not its parts"),
        (f"== split a ==\n{PROGRAM}== fuse a ==\n{PROGRAM}", "--from split", "not split, fuse"),
        ("until i\n" + PROGRAM, "--from fuse", "line 1: expected `loop` or `strips` before it"),
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
        (FUNCTION, "--from simplify --pass x", "there is no pass 'x'; write one of keep_what"),
        (PROGRAM, "--from normalise --rewrite x", "there is no rewrite 'x'; write one of algebra"),
        (PROGRAM, "--from differentiate --wrt y", "there is no input 'y'; write one of x, w"),
        (FUNCTION, "--from specialise --shape x=3", "--shape says nothing of `w`"),
        (FUNCTION, "--from specialise --shape x", "'x' is not of the form x=100x3"),
        (FUNCTION[:-11] + "ret", "", "line 11: expected `name(%operand, ...)`\n    ret\n    ^"),
        (PROGRAM[:-2] + "y", "--from fuse", "line 6: expected a value that is defined above"),
        (
            PROGRAM.replace("mul(x", "mull(x"),
            "--from fuse",
            "a function of elements, such as `exp`",
        ),
        (PROGRAM, "--from fuse --to normalise", "--to normalise comes before --from fuse"),
        (PROGRAM, "--from fuse --size N=x", "'x' is not a size; write --size N=1000"),
        (FUNCTION, "--from specialise --shape z=3", "--shape gives `z`; the text has x, w, n"),
        (FUNCTION, f"{SHAPES} --dtype z=float64", "--dtype gives `z`; the text has x, w, n"),
        (FUNCTION, SHAPES.replace("w=3", "w=4"), "a call with these arguments raises: "),
    ],
)
def test_errors(
    text: str, options: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    file.write_text(text)
    assert opt.main([str(file), *options.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), (b"\xd0\xff", "is not text")]
)
def test_files_that_are_none(
    content: bytes | None, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "text.txt"
    if content is not None:
        file.write_bytes(content)
    assert opt.main([str(file)]) == 2
    assert f"opt: {file} {message}" in capsys.readouterr().err
