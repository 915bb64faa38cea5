"""`lowtide profile` and `lowtide memory`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lowtide.cli import app

TARGET = "lowtide.tools.programs:boxes_intersection"
SCRIPT = """\
import sys
import torch
import beside

def pairs(x):
    return (x[:, None] - x[None, :]).abs().sum()

if __name__ == "__main__":
    x = torch.ones(64)
    print("args", sys.argv[1:], pairs(x).item(), beside.NAME)
    if "exit" in sys.argv:
        sys.exit(7)
    if "words" in sys.argv:
        sys.exit("went wrong")
    if "raise" in sys.argv:
        raise ValueError("no good")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'neighbour'\n")
    return path


@pytest.fixture(autouse=True)
def _forget_neighbour():
    yield
    sys.modules.pop("beside", None)


def test_a_table_follows_the_scripts_output(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv, main = list(sys.argv), sys.modules["__main__"]
    assert app(["profile", "--rows", "2", str(script), "--lr", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("args ['--lr', '3'] 0.0 neighbour\n")
    lines = out.splitlines()
    assert lines[1].startswith("peak ")
    assert lines[4].split()[0] in ("aten::sub", "aten::abs")
    assert f"{script.name}:6" in lines[4]
    assert "live at the peak:" in lines
    assert "\x1b" not in out
    assert sys.argv == argv
    assert sys.modules["__main__"] is main


@pytest.mark.parametrize(("word", "status"), [("exit", 7), ("words", 1), ("raise", 1)])
def test_the_scripts_status_passes_through(
    script: Path, capsys: pytest.CaptureFixture[str], word: str, status: int
) -> None:
    assert app(["profile", str(script), word]) == status
    captured = capsys.readouterr()
    assert "aten::sub" in captured.out
    if word == "words":
        assert "went wrong" in captured.err
    if word == "raise":
        assert "ValueError: no good" in captured.err
        assert "profile_command" not in captured.err


def test_a_script_that_is_no_python_has_pythons_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "misspelled.py").write_text("import torch\nx = torch.ones(3\n")
    assert app(["profile", str(tmp_path / "misspelled.py")]) == 1
    said = capsys.readouterr()
    assert "misspelled.py" in said.err
    assert "SyntaxError" in said.err
    assert "profile_command" not in said.err
    assert not said.out


def test_the_script_finds_its_file_from_another_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os\nos.chdir('/')\nwith open(__file__) as file:\n    print(file.readline())\n"
    (tmp_path / "moving.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert app(["profile", "moving.py"]) == 0
    assert "import os" in capsys.readouterr().out


def test_the_traceback_of_a_failed_op_has_the_scripts_lines_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing.py").write_text(
        "import torch\ndef f(x):\n    return x @ torch.ones(3, 3)\nf(torch.ones(4, 4))\n"
    )
    assert app(["profile", str(tmp_path / "failing.py")]) == 1
    said = capsys.readouterr().err
    files = re.findall(r'File "(.*?)", line (\d+)', said)
    assert files == [(str(tmp_path / "failing.py"), line) for line in ("4", "3")], said


def test_json_is_all_there_is_on_stdout(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["profile", "--json", "--sort", "calls", str(script)]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["peak_bytes"] > 2 * 64 * 64 * 4
    calls = [row["calls"] for row in found["rows"]]
    assert calls == sorted(calls, reverse=True)
    assert "neighbour" in captured.err


def test_files(script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    names = {"--html": "a.html", "--plot": "a.svg", "--trace": "a.json"}
    options = [text for key, name in names.items() for text in (key, str(tmp_path / name))]
    assert app(["profile", *options, str(script)]) == 0
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "a.svg").exists()
    assert json.loads((tmp_path / "a.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["no_such.py"], "no file 'no_such.py'"),
        (["--sort", "beauty", "SCRIPT"], "allowed are self_bytes"),
        (["--rows", "-2", "SCRIPT"], "--rows -2 is not a number of rows"),
        (["--html", "/no/such/folder/a.html", "SCRIPT"], "the folder of"),
        (["--trace", "/", "SCRIPT"], "'/' cannot be written"),
        (["--plot", "a.gif", "SCRIPT"], "must end in .png, .svg, .pdf"),
    ],
)
def test_options_that_make_no_sense(
    script: Path, capsys: pytest.CaptureFixture[str], options: list[str], why: str
) -> None:
    given = [str(script) if option == "SCRIPT" else option for option in options]
    assert app(["profile", *given]) == 2
    captured = capsys.readouterr()
    assert why in captured.err
    assert captured.out == ""


def test_a_terminal_gets_a_rich_table(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert app(["profile", str(script)]) == 0
    out = capsys.readouterr().out
    assert "aten::sub" in out
    assert "held by" in out


def test_a_table_fits_a_narrow_terminal(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert app(["profile", str(script)]) == 0
    out = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    table = out.partition("live at the peak")[0].splitlines()
    assert max(map(len, table)) <= 80
    assert any(line.startswith("aten::sub ") and f"{script.name}:" in line for line in table)


def test_memory_of_a_step_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    peaks: list[int] = []
    for more in ([], ["--backward"]):
        assert app(["memory", TARGET, "--shape", "1000x4,500x4", "--json", *more]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak_bytes"])
    assert peaks[1] > peaks[0] + 2_000_000  # the cotangent of all pairs


def test_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["memory", TARGET, "--shape", "1000x4,500x4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("peak 2,0")
    assert "boxes1.shape[0]" in out
    assert app(["memory", TARGET, "--shape", "1000x4,500x4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak_bytes"] >= 2_000_000
    assert {"formula", "buffers", "sizes"} <= set(found)


def test_explain_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["explain", TARGET, "--shape", "1000x4,500x4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"]["peak_bytes"] >= 2_000_000


def test_wrong_arguments_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["memory", TARGET, "--shape", "10y4"]) == 2
    assert "'10y4' is not a shape" in capsys.readouterr().err


def test_ctrl_c_shows_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stopped.py").write_text(
        "import torch\nkept = torch.ones(64)\nraise KeyboardInterrupt\n"
    )
    page = tmp_path / "page.html"
    assert app(["profile", "--html", str(page), str(tmp_path / "stopped.py")]) == 130
    captured = capsys.readouterr()
    assert "aten::ones" in captured.out
    assert captured.err == "stopped\n"
    assert page.exists()


def test_a_module_with_relative_imports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "runnable_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "beside_it.py").write_text("NAME = 'relative'\n")
    text = "import sys, torch\nfrom .beside_it import NAME\nprint(NAME, __name__, sys.argv[1:])\n"
    for name in ("train.py", "__main__.py"):
        (package / name).write_text(text + "torch.ones(3)\n")
    monkeypatch.chdir(tmp_path)
    for name in ("runnable_package.train", "runnable_package"):
        assert app(["profile", "-m", name, "--lr", "1"]) == 0
        assert capsys.readouterr().out.startswith("relative __main__ ['--lr', '1']\npeak 12 B")
    assert app(["profile", "-m", "runnable_package.no_such"]) == 2
    assert "no such module" in capsys.readouterr().err


def test_a_file_that_fails_late_costs_no_table(
    script: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lowtide.tools.profiler.profile.Profile.html", full)
    trace = tmp_path / "trace.json"
    given = ["profile", "--html", str(tmp_path / "page.html"), "--trace", str(trace), str(script)]
    assert app(given) == 1
    captured = capsys.readouterr()
    assert "No space left" in captured.err
    assert "aten::sub" in captured.out
    assert json.loads(trace.read_text())["traceEvents"]


def test_without_matplotlib_nothing_is_run(
    script: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert app(["profile", "--plot", str(tmp_path / "a.png"), str(script)]) == 2
    captured = capsys.readouterr()
    assert "pip install 'lowtide[profile]'" in captured.err
    assert captured.out == ""


def test_json_is_alone_where_child_processes_print(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(
        "import os, torch\ntorch.ones(3)\nos.system('echo child')\n"
    )
    command = [sys.executable, "-m", "lowtide", "profile", "--json", str(tmp_path / "parent.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["peak_bytes"] == 12
    assert "child" in done.stderr


def test_threads_of_the_script_are_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, torch\ngo = threading.Event()\n"
        "def late():\n    go.wait()\n    torch.ones(50)\n"
        "threading.Thread(target=late).start()\nthreading.Timer(0.05, go.set).start()\n"
    )
    assert app(["profile", str(tmp_path / "threaded.py")]) == 0
    assert "threaded.py:5" in capsys.readouterr().out


def test_a_terminal_gets_the_plan_as_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert app(["memory", TARGET, "--shape", "1000x4,500x4"]) == 0
    out = capsys.readouterr().out
    assert "2,016,896" in out.splitlines()[0]
    assert "s0 = boxes1.shape[0]" in out
    assert "<unknown>" not in out
    assert "alive at the peak" in out
    assert "programs.py:" in out
