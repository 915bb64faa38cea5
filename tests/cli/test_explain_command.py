"""`lowtide explain`: how its texts become a function and tensors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import lowtide as lt
from lowtide.cli import app
from lowtide.tools.explain_command import (
    ArgumentFault,
    make_arguments,
    parse_dtype,
    parse_shape,
    resolve,
)


def test_shapes() -> None:
    assert parse_shape("1000x4") == (1000, 4)
    assert parse_shape(" 7 ") == (7,)
    assert parse_shape("0x3") == (0, 3)
    assert parse_shape("scalar") == ()
    for wrong in ("", "4x", "-1x2", "4*5", "axb"):
        with pytest.raises(ArgumentFault, match="is not a shape"):
            parse_shape(wrong)
    with pytest.raises(ArgumentFault, match="write 10x3, or scalar"):
        parse_shape("10 * 3")
    with pytest.raises(ArgumentFault, match="write --shape 10x3,5,scalar: "):
        make_arguments("(10, 3), [5], ()", "float32")


def test_dtypes() -> None:
    assert parse_dtype("torch.int64") is torch.int64
    with pytest.raises(ArgumentFault, match="write float32: 'flaot32' is not a dtype"):
        parse_dtype("flaot32")
    for wrong in ("float31", "nn", "", "qint8"):
        with pytest.raises(ArgumentFault, match="is not a dtype"):
            parse_dtype(wrong)


def test_arguments() -> None:
    one, two = make_arguments("2x3,scalar", "float32,int64")
    assert (one.shape, one.dtype, two.shape, two.dtype) == ((2, 3), torch.float32, (), torch.int64)
    assert [arg.dtype for arg in make_arguments("1,2,3", "float16")] == [torch.float16] * 3
    with pytest.raises(ArgumentFault, match="3 shapes and 2 dtypes"):
        make_arguments("1,2,3", "float32,int64")
    (large,) = make_arguments("1000000x1000000x100", "float64")  # 800 TB, of which none is taken
    assert large.device.type == "meta"
    for wrong in ("9" * 20, f"{1 << 40}x{1 << 40}"):
        with pytest.raises(ArgumentFault, match=r"no torch\.int64 tensor of shape"):
            make_arguments(wrong, "int64")


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "importing_module.py").write_text("import no_such_module_here")
    (tmp_path / "users_module.py").write_text("class A:\n    def f(x): return x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("users_module:A.f").__name__ == "f"
    for wrong, why in (
        ("users_module", "write users_module:A; "),
        ("users_module:g", "has no 'g'"),
        ("no_such_module_here:g", "was not found"),
        ("users_module:A.f(", "not of the form"),
        ("users_module:[1]", "is not a name"),
        ("./users_module.py:A", "write the file's module, users_module:A;"),
        ("./users_module.py", "write the file's module, users_module:A;"),
        (str(tmp_path / "users_module.py"), "write the file's module, users_module:A;"),
        ("users_module.A.f", "write users_module:A.f; "),
        ("users_module.A(3)", r"write users_module:A\(3\); "),
        ("importing_module:g", "install 'no_such_module_here'"),
    ):
        with pytest.raises(ArgumentFault, match=why):
            resolve(wrong)


def test_a_module_that_cannot_be_imported_is_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "misspelled_module.py").write_text("import torch\ndef f(x) return x\n")
    (tmp_path / "raising_module.py").write_text(
        "import torch\n\nx = torch.rand(3) @ torch.rand(4)\n"
    )
    (tmp_path / "leaving_module.py").write_text("import json\nimport sys\nsys.exit('no gpu')\n")
    (tmp_path / "reading_module.py").write_text("import json\n\n\njson.loads('{')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, place in (
        ("leaving_module", "leaving_module.py:3: SystemExit: no gpu"),
        ("reading_module", "reading_module.py:4: json.decoder.JSONDecodeError"),
        ("misspelled_module", "misspelled_module.py:2: SyntaxError"),
        ("raising_module", "raising_module.py:3: RuntimeError"),
    ):
        assert app(["memory", f"{name}:f", "--shape", "3"]) == 1
        said = capsys.readouterr().err
        assert f"{name} cannot be imported: " in said
        assert ("`if __name__ == '__main__':`" in said) == (name == "leaving_module")
        assert place in said
        assert "Traceback" not in said


def test_a_wrong_argument_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["explain", "lowtide.tools.programs:boxes_intersection", "--shape", "10y4"]) == 2
    assert "write 1000x4" in capsys.readouterr().err


def test_it_explains(capsys: pytest.CaptureFixture[str]) -> None:
    target = "lowtide.tools.programs:boxes_intersection"
    assert app(["explain", target, "--shape", "1000x4,500x4"]) == 0
    assert "1 kernel, 0 ops left to PyTorch, peak 2,0" in capsys.readouterr().out


USERS = """
import lowtide as lt
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

    @lt.export
    def encode(self, x):
        return self.fc(x) + 1

    def other(self, x):
        return x


class Sized(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fc = nn.Linear(size, 4)

    def forward(self, x):
        return self.fc(x)


class Plain:
    pass


def make():
    return Net()


def powers(x, n: int):
    return x**n


def picky(x):
    if x.shape[1] != 4:
        raise ValueError("four columns")
    return x * 2


def checked(x):
    assert x.shape[1] == 4
    return x * 2


def ninth(x):
    return x[9].cumsum(0)


def perhaps(x):
    if x.sum() > 3:
        raise ValueError("too much")
    return x * 2


def chosen(x):
    return x[x > 0].view(7, -1).cumsum(0)


net = Net()
compiled = lt.script(Net())
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_modules.py").write_text(USERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_modules", raising=False)
    return "users_modules"


@pytest.mark.parametrize(
    "name",
    ["net", "Net", "Net.forward", "make()", "compiled", "Sized(4)", "Sized(size=4).forward"],
)
def test_modules(name: str, users: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["explain", f"{users}:{name}", "--shape", "10x4"]) == 0
    assert capsys.readouterr().out.startswith("forward: 1 kernel")


@pytest.mark.parametrize("name", ["net.encode", "Net.encode", "make().encode", "compiled.encode"])
def test_methods(name: str, users: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["explain", f"{users}:{name}", "--shape", "10x4"]) == 0
    assert capsys.readouterr().out.startswith("encode: 1 kernel")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("net.other", "write `@lt.export`"),
        ("Sized", "users_modules:make()"),
        ("Sized(wide=4)", "unexpected keyword argument 'wide'"),
        ("Sized(net)", "write literals"),
        ("Plain", "is a class"),
        ("__name__", "of type str"),
        ("powers", "takes (x, n: int); --shape gives 1 tensor"),
    ],
)
def test_what_cannot_be_explained(
    name: str, why: str, users: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app(["explain", f"{users}:{name}", "--shape", "10x4"]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("command", ["memory", "explain"])
@pytest.mark.parametrize(
    ("target", "shape", "why"),
    [
        ("Net", "10x5", "`linear` fails (RuntimeError: "),
        ("picky", "10x5", "`raise` ends the program"),
        ("checked", "10x5", "`assert` ends the program"),
        ("ninth", "5x5", "`getitem` fails (IndexError: "),
    ],
)
def test_what_fails_on_such_shapes_is_status_2(
    users: str, capsys: pytest.CaptureFixture[str], command: str, target: str, shape: str, why: str
) -> None:
    assert app([command, f"{users}:{target}", "--shape", shape]) == 2
    said = capsys.readouterr()
    assert why in said.err
    assert "such a call fails: " in said.err
    assert app([command, f"{users}:{target}", "--shape", "10x4"]) == 0
    assert not capsys.readouterr().err


def test_what_may_fail_is_no_error(users: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a branch that the data take or not, and after sizes that the data decide."""
    for target in ("perhaps", "chosen"):
        assert app(["memory", f"{users}:{target}", "--shape", "10x4"]) == 0
        assert not capsys.readouterr().err


def test_the_failing_line_says_where_it_was_called(users: str) -> None:
    compiled = lt.script(resolve(f"{users}:Net()"))
    fails = compiled.memory(torch.empty(3, 5, device="meta")).fails
    assert "linear.py" not in fails  # PyTorch's own lines say nothing to the user
    assert "users_modules.py:12: `linear` fails" in fails
    assert not compiled.memory(torch.empty(3, 4, device="meta")).fails
