"""The commands, called as a user would, in this process where that is enough."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lowtide import config
from lowtide.cli import _parser, app  # pyright: ignore[reportPrivateUsage]
from lowtide.tools import demo
from lowtide.tools.completion import commands


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`python -m lowtide …` in a process of its own."""
    command = [sys.executable, "-m", "lowtide", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)  # type: ignore[call-overload]


@pytest.fixture
def own_cache(tmp_path: Path):
    tmp_path.chmod(0o700)
    with config.override(cache_dir=str(tmp_path)):
        yield tmp_path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("lowtide 0")


@pytest.mark.parametrize("arguments", [["try"], ["demo", "--device", "tpu"]])
def test_arguments_that_make_no_sense(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app(arguments)
    assert end.value.code == 2
    assert "usage: lowtide" in capsys.readouterr().err


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from lowtide.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0 < done.stdout.index("lowtide try pkg.mod:fn") < done.stdout.index("options:")
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_help_of_a_command_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(_parser()):
        with pytest.raises(SystemExit):
            app([command.name, "--help"])
        said = capsys.readouterr().out
        assert f"for example:\n  lowtide {command.name}" in said or command.name == "completion"
        assert 0 < said.index("for example:\n") < said.index("options:")


def test_a_misspelled_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app(["memroy", "pkg.mod:fn"])
    assert end.value.code == 2
    assert "no command 'memroy'; did you mean `lowtide memory`?" in capsys.readouterr().err


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert app([]) == 2
    assert "lowtide try pkg.mod:fn" in capsys.readouterr().err


def test_doctor(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("machine", "torch", "compiler", "kernel", "cache folder"):
        assert f"  {name} " in out
    assert out.endswith("\n\nready\n")
    assert all(len(line) <= 80 or str(own_cache) in line for line in out.splitlines())
    assert app(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"name", "ok", "detail", "remedy"} <= set(findings[0])


def test_doctor_without_a_compiler_says_what_to_install(
    own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with config.override(compiler="no-such-compiler"):
        assert app(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "no-such-compiler" in out
    assert "→" in out
    *_, last = out.splitlines()
    assert last.startswith("not ready, compiler: ")
    assert f"→ {last.removeprefix('not ready, compiler: ')}" in out


def test_cache(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lowtide.runtime import cache

    cache.load_library('__attribute__((visibility("default"))) int cli(void) { return 1; }', "cli")
    assert app(["cache"]) == 0
    assert capsys.readouterr().out.startswith("1 kernels, ")
    assert app(["cache", "path"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_relative_to(own_cache)
    assert app(["cache", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernels"] == 1
    assert found["bytes"] > 0
    assert app(["cache", "path", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": found["path"]}
    assert app(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 kernels")
    assert app(["cache", "stats"]) == 0
    assert capsys.readouterr().out.startswith("0 kernels")


def test_demo_interrupted_ends_its_children() -> None:
    if os.name != "posix":
        pytest.skip("signals")
    process = subprocess.Popen(
        [sys.executable, "-m", "lowtide", "demo", "--quick"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what it runs in the background, this process perhaps, with SIGINT ignored,
        # and that is inherited.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    first = process.stderr.readline()  # the first step is under way in the child
    assert "boxes" in first
    time.sleep(0.2)
    for _ in range(3):  # Python drops an interrupt that meets it in a finalizer
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, errors = process.communicate(timeout=15)
            break
    else:
        process.kill()
        pytest.fail("the demo does not end")
    assert process.returncode == 130
    assert "stopped" in errors
    assert "Traceback" not in errors


def test_a_worker_that_fails_becomes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Steps:
        def step(self, text: str, done: int) -> None:
            pass

    monkeypatch.setattr(demo.sys, "executable", "/bin/false" if os.name == "posix" else "false")
    rows = demo._measure("boxes", True, "cpu", Steps())  # type: ignore[arg-type]
    assert [row["variant"] for row in rows] == ["eager", "torch.compile", "lowtide"]
    assert all("the process failed" in row["error"] for row in rows)


@pytest.mark.slow
def test_demo_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "DEMO_PROGRAMS", demo.DEMO_PROGRAMS[-1:])
    status = demo.run_demo(is_quick=True, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert [program["name"] for program in report["programs"]] == list(demo.DEMO_PROGRAMS)
    for program in report["programs"]:
        assert "def " in program["source"]
        ours = next(row for row in program["rows"] if row["variant"] == "lowtide")
        assert not ours["error"]
        assert ours["agrees"]
        assert ours["predicted_bytes"] >= 0
    assert status == 0
