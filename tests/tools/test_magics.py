"""`%load_ext lowtide`: with IPython's own shell where it is installed, else with a stand-in."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

import lowtide as lt
from lowtide.tools.profiler.profile import Profile

HAS_IPYTHON = importlib.util.find_spec("IPython") is not None


class UsageError(Exception):
    """Stands for IPython's."""


class Shell:
    """What the magics use of IPython's shell."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[tuple[str, str], Callable[..., Any]] = {}

    def register_magic_function(self, f: Callable[..., Any], kind: str, name: str) -> None:
        self.magics[kind, name] = f

    def run_cell(self, text: str) -> None:
        exec(text, self.user_ns)

    def run_line_magic(self, name: str, line: str) -> Any:
        return self.magics["line", name](line)

    def run_cell_magic(self, name: str, line: str, cell: str) -> Any:
        return self.magics["cell", name](line, cell)


@pytest.fixture(params=["stand-in", "IPython"])
def shell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A shell with the magics, and the names of a session."""
    if request.param == "IPython":
        if not HAS_IPYTHON:
            pytest.skip("IPython is not installed")
        from IPython.core.interactiveshell import InteractiveShell

        shell: Any = InteractiveShell()
        shell.run_line_magic("load_ext", "lowtide")
    else:
        error, magic = ModuleType("IPython.core.error"), ModuleType("IPython.core.magic")
        error.UsageError = UsageError  # type: ignore[attr-defined]
        magic.no_var_expand = lambda f: f  # type: ignore[attr-defined]
        for module in (ModuleType("IPython"), ModuleType("IPython.core"), error, magic):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        shell = Shell()
        lt.load_ipython_extension(shell)
    shell.user_ns.update(torch=torch, lt=lt, double=double, x=torch.rand(300, 400), n=300)
    return shell


def double(x: torch.Tensor, *, by: dict[str, float] | None = None) -> torch.Tensor:
    return torch.cumsum(x * (2.0 if by is None else by["k"]), 1)


def test_memory_of_a_call(shell: Any) -> None:
    plan = shell.run_line_magic("lowtide_memory", "double(x)")
    assert plan.peak_bytes == lt.script(double).memory(torch.rand(300, 400)).peak_bytes
    shell.user_ns["compiled"] = lt.script(double)
    line = "compiled(torch.empty(n, 40, device='meta'), **{'by': {'k': 2.0}})"
    assert shell.run_line_magic("lowtide_memory", line).peak_bytes < plan.peak_bytes
    assert "_lowtide_arguments" not in shell.user_ns


@pytest.mark.parametrize("line", ["", "double", "double(x", "x = double(x)", "n(x)"])
def test_memory_of_no_call(shell: Any, line: str) -> None:
    with pytest.raises(Exception, match=r"%lowtide_memory f\(x, y\)|n is a int") as raised:
        shell.run_line_magic("lowtide_memory", line)
    assert type(raised.value).__name__ == "UsageError"


def test_the_profile_of_a_cell(shell: Any) -> None:
    prof = shell.run_cell_magic("lowtide_profile", "", "y = double(x)\nz = y + 1\n")
    assert isinstance(prof, Profile)
    assert prof.peak_bytes >= 2 * 480_000
    assert shell.user_ns["z"].shape == (300, 400)
    assert shell.run_cell_magic("lowtide_profile", "mine", "y = x.exp()") is None
    assert shell.user_ns["mine"].peak_bytes == 480_000


def test_the_name_of_a_profile(shell: Any) -> None:
    with pytest.raises(Exception, match="'--rows 3' is not a name; write %%lowtide_profile"):
        shell.run_cell_magic("lowtide_profile", "--rows 3", "y = 1")
    assert "y" not in shell.user_ns


@pytest.mark.skipif(not HAS_IPYTHON, reason="IPython is not installed")
def test_cells_that_are_run_again(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()
    cell = (
        "import torch\nimport lowtide as lt\n@lt.script\ndef f(x):\n    return torch.exp(x) * {}\n"
    )
    x = torch.rand(200, 300)
    for number in (2, 2, 3):
        shell.run_cell(cell.format(number), store_history=True).raise_error()
        f = shell.user_ns["f"]
        torch.testing.assert_close(f(x), torch.exp(x) * number)
        assert len(f.explain(x).kernels) == 1
    done = shell.run_cell("@lt.script\ndef g(x):\n    yield x\n", store_history=True)
    assert isinstance(done.error_in_exec, lt.CompileError)
    assert "yield x" in str(done.error_in_exec)
    shell.run_cell("%load_ext lowtide\n%lowtide_memory f(torch.rand(200, 300))\n")
    assert "peak 240,0" in capsys.readouterr().out
